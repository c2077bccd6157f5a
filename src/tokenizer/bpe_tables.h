// The tables that byte-pair merging looks things up in. Immutable once filled; const methods are thread-safe.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "core/types.h"

namespace llmb {

constexpr uint32_t kNoRank = UINT32_MAX;

// Pairs of symbols to their rank and the symbol they become. Open addressing.
class MergeTable {
 public:
  struct Merge {
    uint32_t rank = kNoRank;
    TokenId result = -1;
  };

  explicit MergeTable(size_t num_merges) {
    size_t size = 16;
    while (size < num_merges * 2) size *= 2;
    slots_.resize(size);
  }

  // The last of equal pairs stays, as in Hugging Face tokenizers.
  void insert(TokenId left, TokenId right, Merge merge) {
    Slot& slot = slots_[find_slot(key_of(left, right))];
    slot = {key_of(left, right), merge};
  }

  Merge find(TokenId left, TokenId right) const { return slots_[find_slot(key_of(left, right))].merge; }

 private:
  struct Slot {
    uint64_t key = UINT64_MAX;
    Merge merge;
  };
  static uint64_t key_of(TokenId left, TokenId right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }
  size_t find_slot(uint64_t key) const {
    const size_t mask = slots_.size() - 1;
    size_t slot = (key * 0x9E3779B97F4A7C15u >> 32) & mask;
    while (slots_[slot].key != key && slots_[slot].key != UINT64_MAX) slot = (slot + 1) & mask;
    return slot;
  }
  std::vector<Slot> slots_;
};

// Pairs of characters across which some merge can join: text may be cut everywhere else without changing the result.
class CharPairSet {
 public:
  void insert(char32_t left, char32_t right) {
    if ((size_ + 1) * 2 > slots_.size()) grow();
    uint64_t& slot = slots_[find_slot(key_of(left, right))];
    if (slot == kFree) ++size_;
    slot = key_of(left, right);
  }
  bool contains(char32_t left, char32_t right) const {
    return !slots_.empty() && slots_[find_slot(key_of(left, right))] != kFree;
  }

 private:
  static constexpr uint64_t kFree = UINT64_MAX;
  static uint64_t key_of(char32_t left, char32_t right) { return static_cast<uint64_t>(left) << 32 | right; }
  size_t find_slot(uint64_t key) const {
    const size_t mask = slots_.size() - 1;
    size_t slot = (key * 0x9E3779B97F4A7C15u >> 32) & mask;
    while (slots_[slot] != key && slots_[slot] != kFree) slot = (slot + 1) & mask;
    return slot;
  }
  void grow() {
    const std::vector<uint64_t> old = std::move(slots_);
    slots_.assign(std::max<size_t>(64, old.size() * 2), kFree);
    for (const uint64_t key : old) {
      if (key != kFree) slots_[find_slot(key)] = key;
    }
  }
  std::vector<uint64_t> slots_;
  size_t size_ = 0;
};

}  // namespace llmb
