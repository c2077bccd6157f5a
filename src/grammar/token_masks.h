// Which tokens of a vocabulary may come next. What an expression allows by itself is worked out once; only tokens that
// reach beyond the rule at hand are followed through the frames.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "grammar/matcher.h"
#include "grammar/vocabulary.h"

namespace llmb::grammar {

using Mask = std::vector<uint32_t>;  // [num_words]

struct ConfigurationHash {
  size_t operator()(const Configuration& configuration) const;
};

// Not thread-safe. Caches are bounded: what does not fit makes all of a cache be forgotten.
class TokenMasks {
 public:
  // All outlive it; arena and bodies are settled and the matcher's.
  TokenMasks(Matcher* matcher, ExprArena* arena, std::span<const ExprId> bodies, const Vocabulary* vocabulary);

  std::shared_ptr<const Mask> mask(const Configuration& configuration);

 private:
  // Tokens, as bits or one by one where they are few; and the nodes behind whose bytes the expression may end, where
  // tokens go on.
  struct ExprTokens {
    Mask bits;
    std::vector<TokenId> few;
    std::vector<int32_t> ends;
    size_t num_bytes() const { return bits.size() * 4 + few.size() * 4 + ends.size() * 4 + 64; }
  };

  const ExprTokens& tokens_of(ExprId expr);
  ExprTokens find_tokens(ExprId expr);
  // What is repeated with a limit has its short tokens from the same without one.
  ExprTokens find_limited_tokens(ExprId expr, ExprId without_limits, int32_t num_bytes);
  const Mask& tokens_up_to(int32_t num_bytes);
  void collect(ExprId expr, int32_t deeper_than, ExprTokens* found);
  // Visits the nodes of the subtree behind `top` that the state reaches and that lead deeper; visit(node, state).
  template <typename Visit>
  void walk(Matcher& matcher, int32_t top, int32_t deeper_than, const MatcherState& start, const Visit& visit);

  Matcher& matcher_;
  ExprArena& arena_;
  const Vocabulary& vocabulary_;
  Matcher inner_;                     // for expressions by themselves
  int32_t class_of_[256];             // of bytes
  std::vector<MatcherState> states_;  // [depth + 1]
  std::unordered_map<ExprId, ExprTokens> by_expr_;
  size_t by_expr_bytes_ = 0;
  std::unordered_map<int32_t, Mask> up_to_;  // tokens of at most so many bytes
  std::unordered_map<Configuration, std::shared_ptr<const Mask>, ConfigurationHash> by_configuration_;
  size_t by_configuration_bytes_ = 0;
};

}  // namespace llmb::grammar
