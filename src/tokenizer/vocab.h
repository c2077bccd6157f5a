// The token strings of a model and their ids, both ways.
// Immutable once built; const methods are thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "core/types.h"

namespace llmb {

// Bounds on what a tokenizer file may hold; the largest published vocabulary has under a million entries.
constexpr size_t kMaxVocabEntries = size_t{1} << 20;
constexpr size_t kMaxTokenBytes = 16384;

// Invariants: strings are unique and valid UTF-8; ids are unique and in [0, size()).
class Vocab {
 public:
  // data_loss where the string or the id is already there, the id is out of range or there are too many entries.
  Status add(std::string_view token, int64_t id);

  std::optional<TokenId> find(std::string_view token) const;
  bool contains(TokenId id) const { return id >= 0 && id < size() && entries_[id].length != kNone; }
  std::string_view text(TokenId id) const;                                // "" where there is no such id
  TokenId size() const { return static_cast<TokenId>(entries_.size()); }  // highest id + 1
  size_t num_entries() const { return num_entries_; }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  struct Entry {
    uint32_t offset = 0;
    uint32_t length = kNone;
  };
  size_t slot_of(std::string_view token) const;
  void grow();

  std::string bytes_;           // all token strings, one after the other
  std::vector<Entry> entries_;  // by id
  std::vector<TokenId> slots_;  // open addressing, -1: free; a power of two
  size_t num_entries_ = 0;
};

// A fast hash for short strings; not stable between versions.
uint64_t hash_bytes(std::string_view bytes);

}  // namespace llmb
