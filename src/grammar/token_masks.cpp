#include "grammar/token_masks.h"

#include <algorithm>
#include <iterator>

#include "core/step_plan.h"

namespace llmb::grammar {

namespace {

constexpr size_t kMaxExprBytes = size_t{48} << 20, kMaxConfigurationBytes = size_t{16} << 20;

void set_bit(Mask* mask, TokenId token) { (*mask)[token / 32] |= 1u << token % 32; }

}  // namespace

size_t ConfigurationHash::operator()(const Configuration& configuration) const {
  size_t h = configuration.size();
  for (const int32_t value : configuration) h = (h ^ static_cast<size_t>(value)) * 0x9E3779B97F4A7C15u ^ h >> 31;
  return h;
}

TokenMasks::TokenMasks(Matcher* matcher, ExprArena* arena, std::span<const ExprId> bodies, const Vocabulary* vocabulary)
    : matcher_(*matcher),
      arena_(*arena),
      vocabulary_(*vocabulary),
      inner_(arena, bodies),
      kept_(arena),
      needs_ends_(bodies.size() > 1 || arena->has_call(bodies[0])),
      states_(static_cast<size_t>(vocabulary->max_depth()) + 1),
      exprs_(static_cast<size_t>(vocabulary->max_depth()) + 1) {
  for (int byte = 0; byte < 256; ++byte) class_of_[byte] = arena->byte_class(static_cast<uint8_t>(byte));
}

template <typename Visit>
void TokenMasks::walk(Matcher& matcher, int32_t top, int32_t deeper_than, const MatcherState& start,
                      const Visit& visit) {
  const std::vector<TrieNode>& nodes = vocabulary_.nodes();
  const int32_t top_depth = nodes[top].depth, end = nodes[top].end;
  states_[0] = start;
  for (int32_t node = top + 1; node < end;) {
    const int32_t depth = nodes[node].depth - top_depth;
    if (vocabulary_.deepest(node) <= deeper_than ||
        !matcher.step(states_[depth - 1], class_of_[nodes[node].byte], &states_[depth])) {
      node = nodes[node].end;
      continue;
    }
    visit(node, states_[depth]);
    ++node;
  }
}

void TokenMasks::forget() {
  by_expr_ = {}, by_configuration_ = {};
  kept_.forget();
  by_expr_bytes_ = by_configuration_bytes_ = 0;
}

// Adds the tokens of the nodes [node, end).
void TokenMasks::add_tokens(int32_t node, int32_t end, ExprTokens* found) const {
  const auto begin = vocabulary_.tokens().begin() + vocabulary_.nodes()[node].tokens_begin;
  const auto tokens_end = vocabulary_.tokens().begin() + vocabulary_.tokens_end(end - 1);
  if (found->bits.empty()) found->few.insert(found->few.end(), begin, tokens_end);
  else std::for_each(begin, tokens_end, [found](TokenId token) { set_bit(&found->bits, token); });
  if (found->few.size() > static_cast<size_t>(vocabulary_.num_words())) make_dense(found);
}

void TokenMasks::make_dense(ExprTokens* tokens) const {
  tokens->bits.resize(static_cast<size_t>(vocabulary_.num_words()), 0);
  for (const TokenId token : tokens->few) set_bit(&tokens->bits, token);
  tokens->few = {};
}

// False, with anything found, where it makes too many expressions.
bool TokenMasks::collect_without_calls(ExprId expr, int32_t deeper_than, ExprTokens* found) {
  constexpr int32_t kManyNodes = 6;
  const std::vector<TrieNode>& nodes = vocabulary_.nodes();
  exprs_[0] = expr;
  for (int32_t node = 1; node < nodes[0].end;) {
    const TrieNode& here = nodes[node];
    const ExprId next = deeper_than > 0 && vocabulary_.deepest(node) <= deeper_than
                            ? kNothing
                            : arena_.next(exprs_[here.depth - 1], class_of_[here.byte]);
    if (next == kNothing) {
      node = here.end;
      continue;
    }
    exprs_[here.depth] = next;
    const CharGroups groups = vocabulary_.groups_below(node);
    const bool is_whole = deeper_than == 0 && here.end - node > kManyNodes &&
                          (kept_.stays(next, groups) || (!needs_ends_ && kept_.lives(next, groups)));
    const int32_t end = is_whole ? here.end : node + 1;
    if (here.depth > deeper_than) {
      add_tokens(node, end, found);
      for (int32_t i = node; needs_ends_ && arena_.is_nullable(next) && i < end; ++i)
        if (vocabulary_.has_children(i) && (i == node || vocabulary_.ends_character(i))) found->ends.push_back(i);
    }
    node = end;
    if (arena_.size() >= kMaxUnionsArena) return false;
  }
  return true;
}

// Collects the tokens of nodes below `deeper_than`.
void TokenMasks::collect(ExprId expr, int32_t deeper_than, ExprTokens* found) {
  const ExprTokens before = arena_.has_call(expr) ? ExprTokens() : *found;
  if (!arena_.has_call(expr) && collect_without_calls(expr, deeper_than, found)) return;
  if (!arena_.has_call(expr)) *found = before;
  walk(inner_, 0, deeper_than, inner_.start_without_calls(expr), [&](int32_t node, const MatcherState& state) {
    if (vocabulary_.nodes()[node].depth <= deeper_than) return;
    add_tokens(node, node + 1, found);
    if (needs_ends_ && state.is_complete && vocabulary_.has_children(node)) found->ends.push_back(node);
  });
}

ExprTokens TokenMasks::find_limited_tokens(ExprId expr, ExprId without_limits, int32_t num_bytes) {
  ExprTokens found;
  const ExprTokens& free = tokens_of(without_limits);  // valid until the next call
  if (num_bytes >= vocabulary_.max_depth()) return free;
  num_bytes = std::min(num_bytes, kMaxShortBytes);
  const auto depth_of = [this](int32_t node) { return vocabulary_.nodes()[node].depth; };
  std::copy_if(free.ends.begin(), free.ends.end(), std::back_inserter(found.ends),
               [&](int32_t node) { return depth_of(node) <= num_bytes; });
  found.bits = free.bits;
  const Mask& shorter = vocabulary_.tokens_up_to(num_bytes);
  for (size_t i = 0; i < found.bits.size(); ++i) found.bits[i] &= shorter[i];
  for (const TokenId token : free.few)
    if (is_allowed(shorter, token)) found.few.push_back(token);
  collect(expr, num_bytes, &found);
  return found;
}

ExprTokens TokenMasks::find_tokens(ExprId expr) {
  constexpr int32_t kWorthwhile = 4;  // more bytes than most tokens have are walked one by one else
  int32_t num_bytes = 0;
  const ExprId without_limits = arena_.without_limits(expr, &num_bytes);
  if (without_limits != expr && num_bytes >= kWorthwhile) return find_limited_tokens(expr, without_limits, num_bytes);
  ExprTokens found;
  collect(expr, 0, &found);
  return found;
}

const ExprTokens& TokenMasks::tokens_of(ExprId expr) {
  if (const auto known = by_expr_.find(expr); known != by_expr_.end()) return *known->second;
  std::string written = arena_.written(expr);
  if (!written.empty() && !needs_ends_) written += "without ends";
  auto found = written.empty() ? nullptr : vocabulary_.shared_tokens().find(written);
  if (found == nullptr) {
    ExprTokens tokens = find_tokens(expr);
    if (tokens.few.size() > static_cast<size_t>(vocabulary_.num_words())) make_dense(&tokens);
    if (by_expr_bytes_ > kMaxExprBytes) by_expr_.clear(), by_expr_bytes_ = 0;
    by_expr_bytes_ += tokens.num_bytes();
    found = std::make_shared<const ExprTokens>(std::move(tokens));
    // A few tokens are found again as fast, so they are not shared.
    if (!written.empty() && !found->bits.empty()) vocabulary_.shared_tokens().add(written, found);
  }
  return *by_expr_.emplace(expr, std::move(found)).first->second;
}

std::shared_ptr<const Mask> TokenMasks::mask(const Configuration& configuration) {
  if (const auto known = by_configuration_.find(configuration); known != by_configuration_.end()) return known->second;
  auto mask = std::make_shared<Mask>(static_cast<size_t>(vocabulary_.num_words()), 0);
  const MatcherState state = matcher_.load(configuration);
  const std::vector<Item> items(matcher_.items(state).begin(), matcher_.items(state).end());
  for (const Item& item : items) {
    const ExprTokens& tokens = tokens_of(item.expr);
    for (size_t i = 0; i < tokens.bits.size(); ++i) (*mask)[i] |= tokens.bits[i];
    for (const TokenId token : tokens.few) set_bit(mask.get(), token);
    if (tokens.ends.empty()) continue;
    const MatcherState returned = matcher_.return_from(state, item.frame);
    if (matcher_.items(returned).empty()) continue;
    for (const int32_t end : tokens.ends)
      walk(matcher_, end, 0, returned, [&](int32_t node, const MatcherState&) {
        for (int32_t i = vocabulary_.nodes()[node].tokens_begin; i < vocabulary_.tokens_end(node); ++i)
          set_bit(mask.get(), vocabulary_.tokens()[i]);
      });
  }
  if (state.is_complete)
    for (const TokenId token : vocabulary_.end_tokens()) set_bit(mask.get(), token);
  const size_t num_bytes = mask->size() * 4 + configuration.size() * 4 + 64;
  if (by_configuration_bytes_ + num_bytes > kMaxConfigurationBytes)
    by_configuration_.clear(), by_configuration_bytes_ = 0;
  by_configuration_bytes_ += num_bytes;
  by_configuration_.emplace(configuration, mask);
  return mask;
}

}  // namespace llmb::grammar
