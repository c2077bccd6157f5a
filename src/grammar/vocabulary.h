// A vocabulary as a trie of bytes. Immutable once made, and thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/types.h"
#include "grammar/shared_tokens.h"
#include "grammar/walk_memory.h"

namespace llmb::grammar {

// Groups of characters that patterns seldom tell apart: letters, digits, each mark, the rest of ASCII; wide characters,
// which have several bytes, by the first byte of their UTF-8, and where Unicode's other spaces are among them by the
// second. No group has a bit from 63 on.
using CharGroups = uint64_t;
inline constexpr int32_t kNoCharGroup = 6;  // bytes that are no UTF-8
inline constexpr int32_t kFirstWideGroup = 51, kNumWideGroups = 12;
inline constexpr CharGroups kWideGroups = ((CharGroups{1} << kNumWideGroups) - 1) << kFirstWideGroup;
int32_t char_group(uint8_t first_byte, uint8_t second_byte);  // a bit of CharGroups

inline bool begins_wide(uint8_t byte) { return byte >= 0xC2 && byte <= 0xF4; }

// The rest of a character: a byte from `first` to `last`, then more from 0x80 to 0xBF.
struct Utf8Rest {
  uint8_t first = 0x80, last = 0xBF;
  int32_t num_bytes = 0;
  bool operator==(const Utf8Rest&) const = default;
};
Utf8Rest rest_behind(uint8_t first_byte);  // no bytes: it begins no wide character

// Characters of one group that begin with the same byte.
struct CharsBehind {
  int32_t group = 0;
  Utf8Rest rest;
};
std::span<const CharsBehind> chars_behind(uint8_t first_byte);  // all that begin so

// Nodes in depth-first order, so that a node's subtree is the nodes [node, end). Node 0 is the root. Small, as walks
// are as fast as nodes are read.
struct TrieNode {
  int32_t end = 0;
  int32_t tokens_begin = 0;   // of the tokens that are spelled by the way to it
  uint16_t groups_below = 0;  // into group_sets_
  uint8_t byte = 0;
};

// A node as its parent's list has it: most walks need no more of it.
struct TrieChild {
  int32_t node = 0;
  int32_t tokens_begin = 0;   // of those at it and below it, up to the next child's
  int32_t first_child = -1;   // into the children of all nodes; -1: it has none
  uint16_t groups_below = 0;  // as TrieNode's
  uint8_t byte = 0;
  bool is_last = false;  // of its parent's

  bool is_leaf() const { return first_child < 0; }
};

// The most that walking may add to all grammars over a vocabulary.
inline constexpr size_t kMaxWalkBytes = size_t{256} << 20;

inline constexpr int32_t kMaxShortBytes = 128;

class Vocabulary {
 public:
  // bytes_of(token): what the token stands for; "": it is never part of a text (special tokens). `end_tokens` end an
  // answer.
  Vocabulary(int32_t vocab_size, const std::function<std::string(TokenId)>& bytes_of, std::vector<TokenId> end_tokens,
             size_t max_walk_bytes = kMaxWalkBytes);

  int32_t size() const { return static_cast<int32_t>(texts_.size()); }
  int32_t num_words() const { return (size() + 31) / 32; }  // of a mask
  const std::string& text(TokenId token) const { return texts_[token]; }
  const std::vector<TokenId>& end_tokens() const { return end_tokens_; }
  bool is_end_token(TokenId token) const;

  const std::vector<TrieNode>& nodes() const { return nodes_; }
  // Tokens of the node are tokens()[node.tokens_begin, the next node's tokens_begin).
  const std::vector<TokenId>& tokens() const { return tokens_; }
  int32_t tokens_end(int32_t node) const {
    return node + 1 < static_cast<int32_t>(nodes_.size()) ? nodes_[node + 1].tokens_begin
                                                          : static_cast<int32_t>(tokens_.size());
  }
  bool has_children(int32_t node) const { return nodes_[node].end > node + 1; }
  int32_t depth(int32_t node) const { return depth_[node]; }  // bytes
  // The groups of the characters that lie below the node, where one ends at it; of a node whose byte begins a wide
  // character, where this one begins at it: of that one, too.
  CharGroups groups_below(int32_t node) const { return group_sets_[nodes_[node].groups_below]; }
  CharGroups groups_below(const TrieChild& child) const { return group_sets_[child.groups_below]; }
  int32_t deepest(int32_t node) const { return deepest_[node]; }  // depth below the node, or its own
  int32_t max_depth() const { return max_depth_; }
  // The tokens of at most so many bytes. REQUIRES: 0 <= num_bytes <= kMaxShortBytes
  const Mask& tokens_up_to(int32_t num_bytes) const { return up_to_[num_bytes]; }
  // A node's children side by side, so that those that a walk does not reach are only looked at in their list: the
  // first, and others up to the last. REQUIRES: it has children
  const TrieChild* children(int32_t node) const { return &children_[children_begin_[node]]; }
  const TrieChild* children(const TrieChild& of) const { return &children_[of.first_child]; }
  // All tokens but those that are no text.
  const Mask& text_tokens() const { return text_tokens_; }
  // The way to the node ends with a whole character.
  bool ends_character(int32_t node) const { return ends_character_[node]; }
  // The only parts that change.
  SharedTokens& shared_tokens() const { return *shared_tokens_; }
  WalkMemory& walk_memory() const { return *walk_memory_; }

 private:
  void list_children();
  void find_groups();
  CharGroups groups_inside(int32_t node, Utf8Rest rest);
  CharGroups groups_at(int32_t node) const;

  std::vector<std::string> texts_;
  std::vector<TokenId> end_tokens_;
  std::vector<TrieNode> nodes_;
  std::vector<TokenId> tokens_;
  std::vector<int32_t> depth_, deepest_;  // [nodes]
  std::vector<CharGroups> group_sets_;
  std::vector<TrieChild> children_;      // in order of their parents
  std::vector<int32_t> children_begin_;  // [nodes]
  std::vector<bool> ends_character_;  // [nodes]
  int32_t max_depth_ = 0;
  std::vector<Mask> up_to_;  // [kMaxShortBytes + 1]
  Mask text_tokens_;
  const std::unique_ptr<SharedTokens> shared_tokens_ = std::make_unique<SharedTokens>();
  const std::unique_ptr<WalkMemory> walk_memory_;
};

}  // namespace llmb::grammar
