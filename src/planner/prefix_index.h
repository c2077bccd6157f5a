// Finds for each prompt how many of its first tokens an earlier prompt has, and which: the trie of all prompts, kept as
// a table of hashed prefixes. Of the prefixes of one prompt, those that are known are the shortest ones, so the longest
// of them is found by bisection.
//
// The table takes no more memory than it is given. Where it is full, every second of its prefixes is forgotten: from then
// on it knows those whose length is a multiple of 2 (4, 8, …), and what is shared is rounded down to that.
//
// Two prefixes count as equal where their 58-bit hashes are, so plans and figures may be made of it, answers may not.
// Not thread-safe. add() takes a few ns a token and about log2(tokens) + (tokens that are new) accesses of the table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/types.h"

namespace llmb {

class PrefixIndex {
 public:
  // REQUIRES: max_bytes >= 1 KiB
  explicit PrefixIndex(size_t max_bytes);

  struct Shared {
    int32_t num_tokens = 0;  // that the prompt has in common with the earlier one; the whole prompt at most
    int32_t prompt = -1;     // the first that begins with them, counted from 0 in order of add(); -1: none
  };
  // The part shared with the prompts added before; this one comes next.
  Shared add(std::span<const TokenId> prompt);

  int32_t num_prompts() const { return num_prompts_; }
  // Lengths of prefixes are multiples of it: 1 as long as the table holds all.
  int32_t granularity() const { return 1 << level_; }

 private:
  using Key = uint64_t;  // the hash, and below it how often 2 divides the length; 0: no entry
  static Key key_of(uint64_t hash, int32_t num_tokens);
  size_t slot_of(Key key) const;  // of the key, or where it would stand
  void insert(Key key, int32_t prompt);
  void rebuild(size_t capacity);

  const size_t max_capacity_;     // slots
  std::vector<Key> keys_;         // [capacity], a power of two
  std::vector<int32_t> prompts_;  // [capacity]
  size_t num_keys_ = 0;
  int32_t level_ = 0;
  int32_t num_prompts_ = 0;
  std::vector<uint64_t> hashes_;  // [prompt tokens + 1] of the prompt being added
};

}  // namespace llmb
