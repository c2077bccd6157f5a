#include "grammar/token_walk.h"

#include <algorithm>

#include "grammar/matcher.h"

namespace llmb::grammar {

void FoundTokens::add_nodes(const Vocabulary& vocabulary, int32_t node, int32_t node_end) {
  const int32_t begin = vocabulary.nodes()[node].tokens_begin, end = vocabulary.tokens_end(node_end - 1);
  if (begin == end) return;
  num_tokens += end - begin;
  if (!spans.empty() && spans.back().end == begin) spans.back().end = end;
  else spans.push_back({begin, end});
}

TokenWalk::TokenWalk(ExprArena* arena, const Vocabulary* vocabulary, bool needs_ends)
    : arena_(*arena), vocabulary_(*vocabulary), kept_(arena), needs_ends_(needs_ends) {
  for (int byte = 0; byte < 256; ++byte) class_of_[byte] = arena->byte_class(static_cast<uint8_t>(byte));
}

void TokenWalk::begin(int32_t deeper_than, int64_t max_nodes) {
  deeper_than_ = deeper_than;
  num_nodes_ = 0;
  max_nodes_ = max_nodes;
}

// The root's children lie far apart, so that most of them are only looked at in their list.
template <typename Visit>
void TokenWalk::for_children(int32_t node, const Visit& visit) const {
  const std::vector<TrieNode>& nodes = vocabulary_.nodes();
  if (node == 0) {
    for (const TrieChild& child : vocabulary_.first_nodes()) visit(child.node, child.byte);
    return;
  }
  for (int32_t child = node + 1, end = nodes[node].end; child < end; child = nodes[child].end)
    visit(child, nodes[child].byte);
}

bool TokenWalk::find(ExprId expr, int32_t deeper_than, FoundTokens* found) {
  begin(deeper_than, INT64_MAX);
  for_children(0, [&](int32_t node, uint8_t byte) { find_at(node, byte, expr, found); });
  return arena_.size() < kMaxUnionsArena;
}

// Every text of the groups' characters is allowed behind the expression.
bool TokenWalk::is_whole(ExprId expr, CharGroups groups) {
  return kept_.stays(expr, groups) || (!needs_ends_ && kept_.lives(expr, groups));
}

void TokenWalk::find_at(int32_t node, uint8_t byte, ExprId before, FoundTokens* found) {
  constexpr int32_t kManyNodes = 6;
  if (deeper_than_ > 0 && vocabulary_.deepest(node) <= deeper_than_) return;
  const ExprId next = arena_.next(before, class_of_[byte]);
  if (next == kNothing || arena_.size() >= kMaxUnionsArena) return;
  ++num_nodes_;
  const TrieNode& here = vocabulary_.nodes()[node];
  const bool is_leaf = here.end == node + 1;
  // The groups of a wide character's first byte begin at it.
  const ExprId start = begins_wide(byte) ? before : next;
  const bool takes_all = !is_leaf && deeper_than_ == 0 && (here.end - node > kManyNodes || kept_.knows(start)) &&
                         is_whole(start, vocabulary_.groups_below(node));
  if (deeper_than_ == 0 || vocabulary_.depth(node) > deeper_than_) {
    found->add_nodes(vocabulary_, node, takes_all ? here.end : node + 1);
    // Behind a whole character of the nodes that are taken the expression is the same.
    if (needs_ends_ && !is_leaf && arena_.is_nullable(takes_all ? start : next))
      for (int32_t i = node; i < (takes_all ? here.end : node + 1); ++i)
        if (vocabulary_.has_children(i) &&
            ((i == node && (!takes_all || start == next)) || vocabulary_.ends_character(i)))
          found->ends.push_back(i);
  }
  if (!takes_all && !is_leaf) for_children(node, [&](int32_t child, uint8_t b) { find_at(child, b, next, found); });
}

bool TokenWalk::find_difference(ExprId from, ExprId to, int64_t max_nodes, FoundTokens* added, FoundTokens* removed) {
  begin(0, max_nodes);
  if (!is_similar({from, to})) return false;
  pairs_.clear();
  differ_below(0, {from, to}, added, removed);
  return num_nodes_ <= max_nodes_ && arena_.size() < kMaxUnionsArena;
}

// Half of the bytes lead from both to one expression, or from both to themselves.
bool TokenWalk::is_similar(Pair pair) {
  int32_t num_alive = 0, num_alike = 0;
  for (int byte = 0; byte < 0x80; ++byte) {
    const Pair next = {arena_.next(pair.from, class_of_[byte]), arena_.next(pair.to, class_of_[byte])};
    num_alive += next.from != kNothing || next.to != kNothing;
    num_alike += next.from != kNothing && (next.from == next.to || next == pair);
  }
  return 2 * num_alike >= num_alive;
}

void TokenWalk::differ_below(int32_t top, Pair pair, FoundTokens* added, FoundTokens* removed) {
  for_children(top, [&](int32_t node, uint8_t byte) {
    if (num_nodes_ > max_nodes_ || arena_.size() >= kMaxUnionsArena) return;
    const Pair next = {arena_.next(pair.from, class_of_[byte]), arena_.next(pair.to, class_of_[byte])};
    if (next.from == next.to) return;
    ++num_nodes_;
    const TrieNode& here = vocabulary_.nodes()[node];
    if (next.from == kNothing) return find_at(node, byte, pair.to, added);
    if (next.to == kNothing) return removed->add_nodes(vocabulary_, node, here.end);
    const Pair start = begins_wide(byte) ? pair : next;
    if (here.end > node + 1 && !stays(start, vocabulary_.groups_below(node))) differ_below(node, next, added, removed);
  });
}

// Every text of the groups' characters is allowed behind both or behind neither.
bool TokenWalk::stays(Pair pair, CharGroups groups) {
  constexpr size_t kMaxPairs = 8;
  auto known = std::find_if(pairs_.begin(), pairs_.end(), [&](const KnownPair& k) { return k.pair == pair; });
  if (known == pairs_.end()) {
    if (pairs_.size() == kMaxPairs) return false;
    pairs_.push_back({pair, 0, CharGroups{1} << kNoCharGroup});
    known = pairs_.end() - 1;
    find_leaving(&*known, 0, 0x7F, ~(kWideGroups | known->leaving));
  }
  if ((groups & known->leaving) == 0 && (groups & kWideGroups) != 0 && !known->has_wide) {
    known->has_wide = true;
    find_leaving(&*known, 0xC2, 0xF4, kWideGroups);
  }
  return (groups & ~known->staying) == 0;
}

void TokenWalk::find_leaving(KnownPair* known, int first_byte, int last_byte, CharGroups groups) {
  const Pair pair = known->pair;
  for (int byte = first_byte; byte <= last_byte; ++byte) {
    const Pair next = {arena_.next(pair.from, class_of_[byte]), arena_.next(pair.to, class_of_[byte])};
    for_groups_behind(static_cast<uint8_t>(byte), [&](int32_t group, Utf8Rest rest) {
      if (!leads_home(pair, next, rest)) known->leaving |= CharGroups{1} << group;
    });
  }
  known->staying |= groups & ~known->leaving;
}

// All that completes the character leads from `at` to the pair, or to one expression.
bool TokenWalk::leads_home(Pair pair, Pair at, Utf8Rest rest) {
  if (at.from == at.to) return true;
  if (rest.num_bytes == 0) return at == pair;
  if (at.from == kNothing || at.to == kNothing) return false;
  int32_t last_class = -1;
  for (int byte = rest.first; byte <= rest.last; ++byte) {
    if (class_of_[byte] == last_class) continue;
    last_class = class_of_[byte];
    const Pair next = {arena_.next(at.from, last_class), arena_.next(at.to, last_class)};
    if (!leads_home(pair, next, {0x80, 0xBF, rest.num_bytes - 1})) return false;
  }
  return true;
}

}  // namespace llmb::grammar
