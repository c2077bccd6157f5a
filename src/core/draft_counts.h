// How many drafts the entries of a plan end with. A draft that a form leaves no choice of, behind no other draft, is certain:
// it is no guess.
#pragma once

#include <bit>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/step_plan.h"

namespace llmb {

// The only token that the mask allows; none: it allows several, or none, or is empty.
inline std::optional<TokenId> only_token(std::span<const uint32_t> mask) {
  std::optional<TokenId> token;
  for (size_t word = 0; word < mask.size(); ++word) {
    if (mask[word] == 0) continue;
    if (token || !std::has_single_bit(mask[word])) return std::nullopt;
    token = static_cast<TokenId>(word * 32) + std::countr_zero(mask[word]);
  }
  return token;
}

// Drafts of a verified group that are guesses: all from the first one that is not certain on.
inline int32_t num_guesses(const StepPlan& plan, const SampleGroup& group) {
  int32_t row = group.row_begin;
  if (is_tree(plan, group)) return group.num_rows() - 1;
  for (; row + 1 < group.row_end; ++row) {
    const TokenId draft = plan.tokens[plan.sample_rows[row + 1].token_row];
    if (only_token(mask_of(plan.sample_rows[row], plan.masks, plan.mask_words)) != draft) break;
  }
  return group.row_end - 1 - row;
}

// num_drafts: [num_entries]  rows at the end of each one that are guesses
inline void count_drafts(const StepPlan& plan, std::vector<int32_t>* num_drafts) {
  num_drafts->assign(plan.entries.size(), 0);
  for (const SampleGroup& group : plan.groups)
    if (group.mode == SampleMode::kVerify) (*num_drafts)[static_cast<size_t>(group.entry)] = num_guesses(plan, group);
}

}  // namespace llmb
