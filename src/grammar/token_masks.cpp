#include "grammar/token_masks.h"

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
      vocabulary_(*vocabulary),
      inner_(arena, bodies),
      states_(static_cast<size_t>(vocabulary->max_depth()) + 1) {
  for (int byte = 0; byte < 256; ++byte) class_of_[byte] = arena->byte_class(static_cast<uint8_t>(byte));
}

template <typename Visit>
void TokenMasks::walk(Matcher& matcher, int32_t top, const MatcherState& start, const Visit& visit) {
  const std::vector<TrieNode>& nodes = vocabulary_.nodes();
  const int32_t top_depth = nodes[top].depth, end = nodes[top].end;
  states_[0] = start;
  for (int32_t node = top + 1; node < end;) {
    const int32_t depth = nodes[node].depth - top_depth;
    if (!matcher.step(states_[depth - 1], class_of_[nodes[node].byte], &states_[depth])) {
      node = nodes[node].end;
      continue;
    }
    visit(node, states_[depth]);
    ++node;
  }
}

const TokenMasks::ExprTokens& TokenMasks::tokens_of(ExprId expr) {
  if (const auto known = by_expr_.find(expr); known != by_expr_.end()) return known->second;
  if (by_expr_bytes_ > kMaxExprBytes) by_expr_.clear(), by_expr_bytes_ = 0;
  ExprTokens found;
  walk(inner_, 0, inner_.start_without_calls(expr), [&](int32_t node, const MatcherState& state) {
    const auto begin = vocabulary_.tokens().begin();
    found.few.insert(found.few.end(), begin + vocabulary_.nodes()[node].tokens_begin,
                     begin + vocabulary_.tokens_end(node));
    if (state.is_complete && vocabulary_.has_children(node)) found.ends.push_back(node);
  });
  if (found.few.size() > static_cast<size_t>(vocabulary_.num_words())) {
    found.bits.assign(static_cast<size_t>(vocabulary_.num_words()), 0);
    for (const TokenId token : found.few) set_bit(&found.bits, token);
    found.few = {};
  }
  by_expr_bytes_ += found.num_bytes();
  return by_expr_.emplace(expr, std::move(found)).first->second;
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
      walk(matcher_, end, returned, [&](int32_t node, const MatcherState&) {
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
