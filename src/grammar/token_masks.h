// Which tokens of a vocabulary may come next. What an expression allows by itself is worked out once; only tokens that
// reach beyond the rule at hand are followed through the frames.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "grammar/matcher.h"
#include "grammar/shared_tokens.h"
#include "grammar/token_walk.h"
#include "grammar/vocabulary.h"

namespace llmb::grammar {

struct ConfigurationHash {
  size_t operator()(const Configuration& configuration) const;
};

// Not thread-safe. Caches are bounded: what does not fit makes all of a cache be forgotten.
class TokenMasks {
 public:
  // All outlive it; arena and bodies are settled and the matcher's.
  TokenMasks(Matcher* matcher, ExprArena* arena, std::span<const ExprId> bodies, const Vocabulary* vocabulary);

  std::shared_ptr<const Mask> mask(const Configuration& configuration);

  size_t num_bytes() const { return by_expr_bytes_ + by_configuration_bytes_ + walk_.num_bytes(); }
  // All that was found: the arena has forgotten its expressions.
  void forget();

 private:
  std::shared_ptr<const Mask> find_mask(const Configuration& configuration);
  std::shared_ptr<const ExprTokens> tokens_of(ExprId expr);
  std::shared_ptr<const ExprTokens> find_or_share_tokens(ExprId expr);
  ExprTokens find_tokens(ExprId expr, int64_t* num_nodes);
  void note_near(ExprId expr, const std::shared_ptr<const ExprTokens>& tokens, int64_t num_nodes);
  // A repetition with a limit has the short tokens of the same repetition without one.
  ExprTokens find_limited_tokens(ExprId expr, ExprId without_limits, int32_t num_bytes);
  FoundTokens collect(ExprId expr, int32_t deeper_than);
  void add(const FoundTokens& found, ExprTokens* tokens) const;
  // By the tokens of an expression that was looked up lately, where the two differ little.
  bool find_near(ExprId expr, ExprTokens* tokens);
  // Visits the nodes of the subtree behind `top` that the state reaches and that lead deeper; visit(node, state).
  template <typename Visit>
  void walk(Matcher& matcher, int32_t top, int32_t deeper_than, const MatcherState& start, const Visit& visit);

  Matcher& matcher_;
  ExprArena& arena_;
  const Vocabulary& vocabulary_;
  Matcher inner_;          // for expressions by themselves
  const bool needs_ends_;  // tokens may go on behind the end of a rule: there are calls
  TokenWalk walk_;
  int32_t class_of_[256];             // of bytes
  std::vector<MatcherState> states_;  // [depth + 1]
  std::vector<const TrieChild*> next_;  // [depth + 1]  that a walk looks at; null: none is left
  struct Near {
    ExprId expr = kNothing;
    std::shared_ptr<const ExprTokens> tokens;  // dense, without ends
    int64_t num_nodes = 0;                     // that were looked at for them
  };
  std::vector<Near> near_;  // the last few
  // That looking for differences may still look at in vain: it goes on as long as it pays.
  int64_t spare_nodes_ = 1000;
  std::unordered_map<ExprId, std::shared_ptr<const ExprTokens>> by_expr_;
  size_t by_expr_bytes_ = 0;  // of those that are not shared
  std::unordered_map<Configuration, std::shared_ptr<const Mask>, ConfigurationHash> by_configuration_;
  size_t by_configuration_bytes_ = 0;
};

}  // namespace llmb::grammar
