#include "backend/ranks/rank_blocks.h"

#include <cstring>
#include <utility>

namespace llmb {

RankBlocks::RankBlocks(std::vector<RankBytes> of_ranks) : of_ranks_(std::move(of_ranks)) {
  for (const RankBytes& bytes : of_ranks_) {
    before_.push_back(all_);
    all_.block += bytes.block;
    all_.state += bytes.state;
  }
}

int64_t RankBlocks::part_bytes(size_t rank, size_t num_blocks, bool has_state) const {
  return static_cast<int64_t>(num_blocks) * of_ranks_[rank].block + (has_state ? of_ranks_[rank].state : 0);
}

// copy(offset in the part, offset in all, bytes)
template <class Copy>
void RankBlocks::for_each_piece(size_t rank, size_t num_blocks, bool has_state, const Copy& copy) const {
  const RankBytes own = of_ranks_[rank], before = before_[rank];
  const auto count = static_cast<int64_t>(num_blocks);
  for (int64_t i = 0; i < count; ++i) copy(i * own.block, i * all_.block + before.block, own.block);
  if (has_state) copy(count * own.block, count * all_.block + before.state, own.state);
}

void RankBlocks::put_part(size_t rank, size_t num_blocks, bool has_state, const uint8_t* part, uint8_t* all) const {
  for_each_piece(rank, num_blocks, has_state, [&](int64_t from, int64_t to, int64_t bytes) {
    if (bytes > 0) std::memcpy(all + to, part + from, static_cast<size_t>(bytes));
  });
}

void RankBlocks::take_part(size_t rank, size_t num_blocks, bool has_state, const uint8_t* all, uint8_t* part) const {
  for_each_piece(rank, num_blocks, has_state, [&](int64_t to, int64_t from, int64_t bytes) {
    if (bytes > 0) std::memcpy(part + to, all + from, static_cast<size_t>(bytes));
  });
}

}  // namespace llmb
