#include "grammar/token_walk.h"

#include <algorithm>

#include "grammar/matcher.h"

namespace llmb::grammar {

TokenWalk::TokenWalk(ExprArena* arena, const Vocabulary* vocabulary, bool needs_ends)
    : arena_(*arena), vocabulary_(*vocabulary), kept_(arena), needs_ends_(needs_ends) {
  for (int byte = 0; byte < 256; ++byte) class_of_[byte] = arena->byte_class(static_cast<uint8_t>(byte));
}

void TokenWalk::begin(int32_t deeper_than, int64_t max_nodes) {
  deeper_than_ = deeper_than;
  num_nodes_ = 0;
  max_nodes_ = max_nodes;
}

bool TokenWalk::find(ExprId expr, int32_t deeper_than, FoundTokens* found) {
  begin(deeper_than, INT64_MAX);
  if (vocabulary_.has_children(0)) find_below(vocabulary_.children(0), num_tokens(), expr, found);
  return arena_.size() < kMaxUnionsArena;
}

// At the child and its later siblings, whose tokens end at tokens_end.
void TokenWalk::find_below(const TrieChild* child, int32_t tokens_end, ExprId expr, FoundTokens* found) {
  const int32_t row = arena_.row(expr);
  for (bool is_last = false; !is_last; ++child) {
    is_last = child->is_last;
    // Subtrees that are taken or left out as a whole are jumped over, which no processor foresees.
    if (!is_last && !child[1].is_leaf()) __builtin_prefetch(vocabulary_.children(child[1]));
    const int32_t byte_class = class_of_[child->byte];
    ExprId next = arena_.known_in(row, byte_class);
    if (next == kNothing) continue;
    if (next < 0) {
      next = arena_.next(expr, byte_class);
      if (arena_.size() >= kMaxUnionsArena) return;
      if (next == kNothing) continue;
    }
    ++num_nodes_;
    const int32_t end = is_last ? tokens_end : child[1].tokens_begin;
    if (child->is_leaf() && deeper_than_ == 0) found->add(child->tokens_begin, end);
    else find_at(*child, end, expr, next, found);
  }
}

void TokenWalk::find_at(const TrieChild& child, int32_t tokens_end, ExprId before, ExprId next, FoundTokens* found) {
  constexpr int32_t kManyTokens = 4;
  const bool is_deep = deeper_than_ == 0 || vocabulary_.depth(child.node) > deeper_than_;
  if (!is_deep && vocabulary_.deepest(child.node) <= deeper_than_) return;
  if (child.is_leaf()) return found->add(child.tokens_begin, tokens_end);
  // The groups of a wide character's first byte begin at it.
  const ExprId start = begins_wide(child.byte) ? before : next;
  if (is_deep && (tokens_end - child.tokens_begin > kManyTokens || kept_.knows(start)) &&
      is_whole(start, vocabulary_.groups_below(child))) {
    found->add(child.tokens_begin, tokens_end);
    // Behind a whole character of the nodes that are taken the expression is the same.
    if (needs_ends_ && arena_.is_nullable(start))
      for (int32_t i = child.node, end = vocabulary_.nodes()[i].end; i < end; ++i)
        if (vocabulary_.has_children(i) && ((i == child.node && start == next) || vocabulary_.ends_character(i)))
          found->ends.push_back(i);
    return;
  }
  if (is_deep) {
    found->add(child.tokens_begin, vocabulary_.children(child)->tokens_begin);
    if (needs_ends_ && arena_.is_nullable(next)) found->ends.push_back(child.node);
  }
  find_below(vocabulary_.children(child), tokens_end, next, found);
}

bool TokenWalk::find_difference(ExprId from, ExprId to, int64_t max_nodes, FoundTokens* added, FoundTokens* removed) {
  begin(0, max_nodes);
  if (!is_similar({from, to})) return false;
  pairs_.clear();
  if (vocabulary_.has_children(0)) differ_below(vocabulary_.children(0), num_tokens(), {from, to}, added, removed);
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

// As find_below().
void TokenWalk::differ_below(const TrieChild* first, int32_t tokens_end, Pair pair, FoundTokens* added,
                             FoundTokens* removed) {
  for (bool is_last = false; !is_last; ++first) {
    if (num_nodes_ > max_nodes_ || arena_.size() >= kMaxUnionsArena) return;
    const TrieChild& child = *first;
    is_last = child.is_last;
    const int32_t byte_class = class_of_[child.byte];
    const Pair next = {arena_.next(pair.from, byte_class), arena_.next(pair.to, byte_class)};
    if (next.from == next.to) continue;
    ++num_nodes_;
    const int32_t end = is_last ? tokens_end : first[1].tokens_begin;
    const Pair start = begins_wide(child.byte) ? pair : next;
    if (next.from == kNothing) find_at(child, end, pair.to, next.to, added);
    else if (next.to == kNothing) removed->add(child.tokens_begin, end);
    else if (!child.is_leaf() && !stays(start, vocabulary_.groups_below(child)))
      differ_below(vocabulary_.children(child), end, next, added, removed);
  }
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
    for (const CharsBehind& chars : chars_behind(static_cast<uint8_t>(byte)))
      if (!leads_home(pair, next, chars.rest)) known->leaving |= CharGroups{1} << chars.group;
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
