// Blocks and states that ranks have parts of, as bytes of one backend (Backend::read_blocks): of each block the parts of
// ranks 0, 1, … in turn, then of the state likewise.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace llmb {

// A rank's part of a block, and of a state slot.
struct RankBytes {
  int64_t block = 0, state = 0;
};

class RankBlocks {
 public:
  explicit RankBlocks(std::vector<RankBytes> of_ranks = {});

  RankBytes all() const { return all_; }
  int64_t part_bytes(size_t rank, size_t num_blocks, bool has_state) const;
  // Between what a rank gives or takes, and what all do.
  void put_part(size_t rank, size_t num_blocks, bool has_state,
                const uint8_t* part,   // [part_bytes()]
                uint8_t* all) const;   // [num_blocks, all().block], then [all().state]
  void take_part(size_t rank, size_t num_blocks, bool has_state, const uint8_t* all, uint8_t* part) const;

 private:
  template <class Copy>
  void for_each_piece(size_t rank, size_t num_blocks, bool has_state, const Copy& copy) const;

  std::vector<RankBytes> of_ranks_, before_;  // [ranks]  what each gives, and those before it
  RankBytes all_;
};

}  // namespace llmb
