// Puts records that finish in any order back into input order (`--order input`), in bounded memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>

namespace llmb {

// Not thread-safe. Lines that get no record (blank ones) are simply never expected.
//
// Invariants: size() <= window; every expected index is released exactly once, in the order of expect().
class OrderBuffer {
 public:
  explicit OrderBuffer(size_t window) : window_(window) {}  // window >= 1

  // The next record, in order, will be that of line `index`. REQUIRES: has_room(), index above every earlier one.
  void expect(int64_t index);

  // Appends to `out` the records that are now next in order: none, this one, or this one and those that waited for it.
  // REQUIRES: `index` was expected and not put yet.
  void put(int64_t index, std::string record, std::string& out);

  bool has_room() const { return slots_.size() < window_; }
  size_t size() const { return slots_.size(); }  // expected and not released

 private:
  struct Slot {
    int64_t index;
    std::optional<std::string> record;
  };
  const size_t window_;
  std::deque<Slot> slots_;  // sorted by index
  int64_t last_index_ = -1;
};

}  // namespace llmb
