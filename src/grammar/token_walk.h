// The tokens that an expression without calls allows, found in a vocabulary's trie.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "grammar/kept_groups.h"
#include "grammar/vocabulary.h"

namespace llmb::grammar {

struct FoundTokens {
  // Tokens [begin, end) of the vocabulary's order.
  struct Span {
    int32_t begin, end;
  };

  std::vector<Span> spans;    // in order; they do not touch
  std::vector<int32_t> ends;  // as ExprTokens'
  int32_t num_tokens = 0;

  // Tokens that lie behind all that were added.
  void add(int32_t begin, int32_t end) {
    if (begin == end) return;
    num_tokens += end - begin;
    if (!spans.empty() && spans.back().end == begin) spans.back().end = end;
    else spans.push_back({begin, end});
  }
};

// Not thread-safe. The arena is settled and outlives it, as the vocabulary does.
class TokenWalk {
 public:
  TokenWalk(ExprArena* arena, const Vocabulary* vocabulary, bool needs_ends);

  // The tokens of nodes below `deeper_than`. False, with anything found, where it makes too many expressions.
  // REQUIRES: no calls
  bool find(ExprId expr, int32_t deeper_than, FoundTokens* found);
  // Tokens that `to` allows and `from` does not, and, among others that `to` does not allow, those that only `from`
  // allows. False, with anything found, where the two begin too differently or differ at more than max_nodes nodes.
  // REQUIRES: no calls, no ends
  bool find_difference(ExprId from, ExprId to, int64_t max_nodes, FoundTokens* added, FoundTokens* removed);
  // That the last call looked at.
  int64_t num_nodes() const { return num_nodes_; }

  size_t num_bytes() const { return kept_.num_bytes(); }
  // The arena has forgotten its expressions.
  void forget() { kept_.forget(); }

 private:
  struct Pair {
    ExprId from, to;
    bool operator==(const Pair&) const = default;
  };
  // Groups all of whose characters lead from the pair to itself or to one expression; those of which some does not.
  struct KnownPair {
    Pair pair;
    CharGroups staying = 0, leaving = 0;
    bool has_wide = false;
  };

  void begin(int32_t deeper_than, int64_t max_nodes);
  int32_t num_tokens() const { return static_cast<int32_t>(vocabulary_.tokens().size()); }
  void find_below(const TrieChild* child, int32_t tokens_end, ExprId expr, FoundTokens* found);
  void find_at(const TrieChild& child, int32_t tokens_end, ExprId before, ExprId next, FoundTokens* found);
  // Every text of the groups' characters is allowed behind the expression.
  bool is_whole(ExprId expr, CharGroups groups) {
    return kept_.stays(expr, groups) || (!needs_ends_ && kept_.lives(expr, groups));
  }
  bool is_similar(Pair pair);
  void differ_below(const TrieChild* first, int32_t tokens_end, Pair pair, FoundTokens* added, FoundTokens* removed);
  bool stays(Pair pair, CharGroups groups);
  void find_leaving(KnownPair* known, int first_byte, int last_byte, CharGroups groups);
  bool leads_home(Pair pair, Pair at, Utf8Rest rest);

  ExprArena& arena_;
  const Vocabulary& vocabulary_;
  KeptGroups kept_;
  const bool needs_ends_;  // tokens may go on behind the end of a rule: there are calls
  int32_t class_of_[256];  // of bytes
  int32_t deeper_than_ = 0;
  int64_t num_nodes_ = 0, max_nodes_ = 0;
  std::vector<KnownPair> pairs_;
};

}  // namespace llmb::grammar
