// The vocabulary as a trie over bytes, for models that look for the entries a text begins with.
// Immutable once built; const methods are thread-safe.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "tokenizer/vocab.h"

namespace llmb {

class TokenTrie {
 public:
  static constexpr uint32_t kRoot = 0;
  static constexpr uint32_t kNone = UINT32_MAX;

  void add(std::string_view token, TokenId id);

  // The node one byte on, or kNone.
  uint32_t step(uint32_t node, uint8_t byte) const {
    return slots_.empty() ? kNone : slots_[find_slot(key_of(node, byte))].node;
  }
  TokenId id(uint32_t node) const { return ids_[node]; }  // -1: no entry ends here

 private:
  struct Slot {
    uint64_t key = UINT64_MAX;
    uint32_t node = kNone;
  };
  static uint64_t key_of(uint32_t node, uint8_t byte) { return static_cast<uint64_t>(node) << 8 | byte; }
  size_t find_slot(uint64_t key) const {
    const size_t mask = slots_.size() - 1;
    size_t slot = (key * 0x9E3779B97F4A7C15u >> 32) & mask;
    while (slots_[slot].key != key && slots_[slot].key != UINT64_MAX) slot = (slot + 1) & mask;
    return slot;
  }
  void grow();

  std::vector<Slot> slots_;
  std::vector<TokenId> ids_ = {-1};
};

}  // namespace llmb
