// Which experts a token goes through and how it weighs them, by the definitions of ExpertsConfig, one after the other.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "core/model_config.h"

namespace llmb::test {

// Experts that the row may choose from.
template <typename T>
std::vector<bool> naive_groups(const std::vector<T>& choice, const ExpertsConfig& c) {
  const int32_t size = c.num_experts / c.num_groups;
  std::vector<std::pair<T, int32_t>> groups;  // by score, the lowest of equals first
  for (int32_t g = 0; g < c.num_groups; ++g) {
    std::vector<T> members(choice.begin() + g * size, choice.begin() + (g + 1) * size);
    std::sort(members.rbegin(), members.rend());
    T score = 0;
    for (int32_t i = 0; i < std::min(size, c.scores_of_group); ++i) score += members[static_cast<size_t>(i)];
    groups.push_back({-score, g});
  }
  std::sort(groups.begin(), groups.end());
  std::vector<bool> allowed(choice.size());
  for (int32_t i = 0; i < c.top_groups; ++i)
    for (int32_t e = 0; e < size; ++e) allowed[static_cast<size_t>(groups[i].second * size + e)] = true;
  return allowed;
}

// (expert, weight) of one row.
template <typename T>
std::vector<std::pair<int32_t, T>> naive_route(const float* logits, const float* choice_bias, const ExpertsConfig& c) {
  std::vector<T> scores;
  const float top = *std::max_element(logits, logits + c.num_experts);
  T all = 0;
  for (int32_t e = 0; e < c.num_experts; ++e) {
    scores.push_back(c.scores == ExpertScores::kSoftmax ? std::exp(static_cast<T>(logits[e]) - top)
                                                        : 1 / (1 + std::exp(-static_cast<T>(logits[e]))));
    all += scores.back();
  }
  if (c.scores == ExpertScores::kSoftmax)
    for (T& score : scores) score /= all;
  std::vector<T> choice = scores;
  for (int32_t e = 0; choice_bias != nullptr && e < c.num_experts; ++e) choice[e] += choice_bias[e];
  std::vector<bool> allowed = naive_groups(choice, c);
  std::vector<std::pair<int32_t, T>> chosen;
  T total = 0;
  for (int32_t i = 0; i < c.top_k; ++i) {
    int32_t best = -1;
    for (int32_t e = 0; e < c.num_experts; ++e)
      if (allowed[static_cast<size_t>(e)] && (best < 0 || choice[e] > choice[best])) best = e;
    allowed[static_cast<size_t>(best)] = false;
    chosen.push_back({best, scores[best]});
    total += scores[best];
  }
  for (auto& [expert, weight] : chosen) {
    if (c.norm_topk_prob) weight /= total;
    weight *= static_cast<T>(c.weight_scale);
  }
  return chosen;
}

}  // namespace llmb::test
