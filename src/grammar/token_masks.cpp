#include "grammar/token_masks.h"

#include <algorithm>
#include <iterator>

#include "core/step_plan.h"

namespace llmb::grammar {

namespace {

constexpr size_t kMaxExprBytes = size_t{48} << 20, kMaxConfigurationBytes = size_t{16} << 20;

void set_bit(Mask* mask, TokenId token) {
  const auto bit = static_cast<uint32_t>(token);
  (*mask)[bit / 32] |= 1u << bit % 32;
}

void clear_bit(Mask* mask, TokenId token) {
  const auto bit = static_cast<uint32_t>(token);
  (*mask)[bit / 32] &= ~(1u << bit % 32);
}

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
      needs_ends_(bodies.size() > 1 || arena->has_call(bodies[0])),
      walk_(arena, vocabulary, needs_ends_),
      states_(static_cast<size_t>(vocabulary->max_depth()) + 1),
      next_(states_.size()) {
  for (int byte = 0; byte < 256; ++byte) class_of_[byte] = arena->byte_class(static_cast<uint8_t>(byte));
}

template <typename Visit>
void TokenMasks::walk(Matcher& matcher, int32_t top, int32_t deeper_than, const MatcherState& start,
                      const Visit& visit) {
  size_t depth = 0;
  states_[0] = start, next_[0] = vocabulary_.has_children(top) ? vocabulary_.children(top) : nullptr;
  while (true) {
    if (next_[depth] == nullptr) {
      if (depth-- == 0) return;
      continue;
    }
    const TrieChild& child = *next_[depth];
    next_[depth] = child.is_last ? nullptr : &child + 1;
    const int32_t byte_class = class_of_[child.byte];
    if (!matcher.may_step(states_[depth], byte_class) || vocabulary_.deepest(child.node) <= deeper_than ||
        !matcher.step(states_[depth], byte_class, &states_[depth + 1]))
      continue;
    visit(child.node, states_[depth + 1]);
    if (!child.is_leaf()) next_[++depth] = vocabulary_.children(child);
  }
}

void TokenMasks::forget() {
  by_expr_ = {}, by_configuration_ = {};
  near_ = {};
  walk_.forget();
  by_expr_bytes_ = by_configuration_bytes_ = 0;
}

// Where most tokens are found, those that are not are taken out of all.
void TokenMasks::add(const FoundTokens& found, ExprTokens* tokens) const {
  tokens->ends.insert(tokens->ends.end(), found.ends.begin(), found.ends.end());
  const std::vector<TokenId>& all = vocabulary_.tokens();
  const size_t num_words = static_cast<size_t>(vocabulary_.num_words());
  const size_t num_all = all.size(), num_found = static_cast<size_t>(found.num_tokens);
  if (tokens->bits.empty() && tokens->few.size() + num_found <= num_words) {
    for (const FoundTokens::Span span : found.spans)
      tokens->few.insert(tokens->few.end(), all.begin() + span.begin, all.begin() + span.end);
    return;
  }
  if (tokens->bits.empty() && tokens->few.empty() && num_found > num_all / 2) {
    tokens->bits = vocabulary_.text_tokens();
    int32_t next = 0;
    const auto leave_out = [&](int32_t end) {
      for (; next < end; ++next) clear_bit(&tokens->bits, all[next]);
    };
    for (const FoundTokens::Span span : found.spans) leave_out(span.begin), next = span.end;
    leave_out(static_cast<int32_t>(num_all));
    return;
  }
  tokens->bits.resize(num_words, 0);
  for (const TokenId token : tokens->few) set_bit(&tokens->bits, token);
  tokens->few = {};
  for (const FoundTokens::Span span : found.spans)
    for (int32_t i = span.begin; i < span.end; ++i) set_bit(&tokens->bits, all[i]);
}

// Collects the tokens of nodes below `deeper_than`.
FoundTokens TokenMasks::collect(ExprId expr, int32_t deeper_than) {
  FoundTokens found;
  if (!arena_.has_call(expr) && walk_.find(expr, deeper_than, &found)) return found;
  found = {};
  walk(inner_, 0, deeper_than, inner_.start_without_calls(expr), [&](int32_t node, const MatcherState& state) {
    if (vocabulary_.depth(node) <= deeper_than) return;
    found.add(vocabulary_.nodes()[node].tokens_begin, vocabulary_.tokens_end(node));
    if (needs_ends_ && state.is_complete && vocabulary_.has_children(node)) found.ends.push_back(node);
  });
  return found;
}

bool TokenMasks::find_near(ExprId expr, ExprTokens* tokens) {
  constexpr int64_t kShare = 4;  // of the nodes that the other one took, where looking for differences is given up
  const std::vector<TokenId>& all = vocabulary_.tokens();
  for (size_t i = near_.size(); i-- > 0 && spare_nodes_ > 0;) {
    FoundTokens added, removed;
    const int64_t most = std::min(near_[i].num_nodes / kShare, spare_nodes_);
    const bool is_near = walk_.find_difference(near_[i].expr, expr, most, &added, &removed);
    spare_nodes_ += (is_near ? near_[i].num_nodes : 0) - walk_.num_nodes();
    if (!is_near) continue;
    *tokens = *near_[i].tokens;
    for (const FoundTokens::Span span : removed.spans)
      for (int32_t t = span.begin; t < span.end; ++t) clear_bit(&tokens->bits, all[t]);
    add(added, tokens);
    return true;
  }
  return false;
}

ExprTokens TokenMasks::find_limited_tokens(ExprId expr, ExprId without_limits, int32_t num_bytes) {
  ExprTokens found;
  const std::shared_ptr<const ExprTokens> free = tokens_of(without_limits);
  num_bytes = std::min(num_bytes, kMaxShortBytes);
  std::copy_if(free->ends.begin(), free->ends.end(), std::back_inserter(found.ends),
               [&](int32_t node) { return vocabulary_.depth(node) <= num_bytes; });
  found.bits = free->bits;
  const Mask& shorter = vocabulary_.tokens_up_to(num_bytes);
  for (size_t i = 0; i < found.bits.size(); ++i) found.bits[i] &= shorter[i];
  for (const TokenId token : free->few)
    if (is_allowed(shorter, token)) found.few.push_back(token);
  add(collect(expr, num_bytes), &found);
  return found;
}

ExprTokens TokenMasks::find_tokens(ExprId expr, int64_t* num_nodes) {
  // Behind so many bytes tokens are walked one by one: most tokens are shorter, or at least some are.
  constexpr int32_t kMostTokens = 16, kWorthwhile = 4;
  constexpr int32_t kMostNeeded = 32;  // times, of which there must be more: fewer bytes do not come to the end
  int32_t num_bytes = 0;
  const ExprId without_limits = arena_.without_limits(expr, /*least_upper=*/0, kMostNeeded, &num_bytes);
  const bool may_be_limited = without_limits != expr && num_bytes >= kWorthwhile;
  if (may_be_limited && num_bytes >= kMostTokens) return find_limited_tokens(expr, without_limits, num_bytes);
  ExprTokens found;
  const bool may_be_near = !needs_ends_ && !arena_.has_call(expr);
  if (may_be_near && find_near(expr, &found)) return found;
  if (may_be_limited) found = find_limited_tokens(expr, without_limits, num_bytes);
  else add(collect(expr, 0), &found);
  *num_nodes = may_be_near ? walk_.num_nodes() : 0;
  return found;
}

void TokenMasks::note_near(ExprId expr, const std::shared_ptr<const ExprTokens>& tokens, int64_t num_nodes) {
  constexpr size_t kMaxNear = 3;
  constexpr int64_t kManyNodes = 500;
  if (num_nodes < kManyNodes || tokens->bits.empty()) return;
  if (near_.size() == kMaxNear) near_.erase(near_.begin());
  near_.push_back({expr, tokens, num_nodes});
}

std::shared_ptr<const ExprTokens> TokenMasks::find_or_share_tokens(ExprId expr) {
  std::string written = arena_.written(expr);
  if (!written.empty() && !needs_ends_) written += "without ends";
  if (!written.empty())
    if (auto shared = vocabulary_.shared_tokens().find(written)) return shared;
  int64_t num_nodes = 0;
  ExprTokens tokens = find_tokens(expr, &num_nodes);
  if (by_expr_bytes_ > kMaxExprBytes) by_expr_.clear(), by_expr_bytes_ = 0;
  by_expr_bytes_ += tokens.num_bytes();
  const auto found = std::make_shared<const ExprTokens>(std::move(tokens));
  note_near(expr, found, num_nodes);
  // A few tokens are found again as fast, so they are not shared.
  constexpr size_t kMany = 64;
  if (!written.empty() && (!found->bits.empty() || found->few.size() >= kMany)) vocabulary_.shared_tokens().add(written, found);
  return found;
}

// Limits that no token reaches say nothing about tokens.
std::shared_ptr<const ExprTokens> TokenMasks::tokens_of(ExprId expr) {
  if (const auto known = by_expr_.find(expr); known != by_expr_.end()) return known->second;
  const int32_t longest = vocabulary_.max_depth();
  int32_t num_bytes = 0;
  const ExprId with_near_limits = arena_.without_limits(expr, longest, longest + 1, &num_bytes);
  if (with_near_limits != expr) return tokens_of(with_near_limits);
  auto found = find_or_share_tokens(expr);
  by_expr_.emplace(expr, found);
  return found;
}

std::shared_ptr<const Mask> TokenMasks::mask(const Configuration& configuration) {
  if (const auto known = by_configuration_.find(configuration); known != by_configuration_.end()) return known->second;
  std::shared_ptr<const Mask> mask = find_mask(configuration);
  const size_t num_bytes = mask->size() * 4 + configuration.size() * 4 + 64;
  if (by_configuration_bytes_ + num_bytes > kMaxConfigurationBytes)
    by_configuration_.clear(), by_configuration_bytes_ = 0;
  by_configuration_bytes_ += num_bytes;
  by_configuration_.emplace(configuration, mask);
  return mask;
}

std::shared_ptr<const Mask> TokenMasks::find_mask(const Configuration& configuration) {
  const MatcherState state = matcher_.load(configuration);
  const std::vector<Item> items(matcher_.items(state).begin(), matcher_.items(state).end());
  if (items.size() == 1 && !state.is_complete) {  // often it is all that one expression allows
    std::shared_ptr<const ExprTokens> tokens = tokens_of(items[0].expr);
    if (!tokens->bits.empty() && tokens->few.empty() && tokens->ends.empty()) return {tokens, &tokens->bits};
  }
  auto mask = std::make_shared<Mask>(static_cast<size_t>(vocabulary_.num_words()), 0);
  for (const Item& item : items) {
    const std::shared_ptr<const ExprTokens> found = tokens_of(item.expr);
    const ExprTokens& tokens = *found;
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
  return mask;
}

}  // namespace llmb::grammar
