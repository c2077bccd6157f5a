// How often each token occurs in a sequence, kept up to date token by token, in the form that a StepPlan carries.
//
// Not thread-safe. Invariants: counts() names each token at most once; a token of the prompt only has output_count 0.
#pragma once

#include <unordered_map>
#include <vector>

#include "core/request.h"
#include "core/step_plan.h"

namespace llmb {

class PenaltyCounts {
 public:
  void add_prompt_token(TokenId token) { entry(token); }
  void add_output_token(TokenId token) { ++entry(token).output_count; }
  const std::vector<TokenPenalty>& counts() const { return counts_; }

 private:
  TokenPenalty& entry(TokenId token) {
    const auto [at, is_new] = index_.try_emplace(token, counts_.size());
    if (is_new) counts_.push_back({token, 0});
    return counts_[at->second];
  }

  std::vector<TokenPenalty> counts_;
  std::unordered_map<TokenId, size_t> index_;
};

}  // namespace llmb
