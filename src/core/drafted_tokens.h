// Drafts of a plan that only the device knows: a draft model's steps leave them there for the step that verifies them
// (backend/draft_feed.h). They stand beside the unseen tokens that invariant 6 of core/step_plan.h is about.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "base/status.h"
#include "core/step_plan.h"
#include "core/types.h"

namespace llmb {

// Tokens that stand in slots of what a head guesses for a place: the best ones.
inline constexpr int32_t kBestOfHead = 4;

// Stands in a plan, and in a guess, for the token in a slot of the device's.
constexpr TokenId drafted_token(int32_t slot) { return std::numeric_limits<TokenId>::min() + slot; }
constexpr bool is_drafted(TokenId token) { return token < std::numeric_limits<TokenId>::min() / 2; }
// REQUIRES: is_drafted(token)
constexpr int32_t drafted_slot(TokenId token) { return token - std::numeric_limits<TokenId>::min(); }

// Stands, before unseen_token(group), for the token that the group's last one was drawn behind.
constexpr TokenId token_before_unseen(int32_t group) { return std::numeric_limits<TokenId>::min() / 2 + group; }
constexpr bool is_before_unseen(TokenId token) { return !is_drafted(token) && token < std::numeric_limits<TokenId>::min() / 4; }
// REQUIRES: is_before_unseen(token)
constexpr int32_t group_before_unseen(TokenId token) { return token - std::numeric_limits<TokenId>::min() / 2; }

// Whether the plan is one to draft by, of a model for itself.
inline bool is_drafting(const StepPlan& plan) {
  return plan.num_layers > 0 || plan.is_mtp || !plan.hidden_rows.empty();
}

inline bool has_drafted(const StepPlan& plan) { return std::any_of(plan.tokens.begin(), plan.tokens.end(), is_drafted); }

// A backend that takes plans which draft, or those that verify what they drafted, while both are on the device.
struct DraftRules {
  int32_t num_drafted = 0;  // slots of a feed, that rows of an entry but its first may stand for. > 0: entries with is_mtp
                            // may follow groups in flight
  // The plan in flight drafts. What follows a group of it lies as many tokens ahead of its base as the group's entry did,
  // or one: so does a whole chain of these plans, whose first one may follow what the target verifies.
  bool passes_on = false;
};

// As in core/step_plan.h, by these rules. An entry of two rows that follows a group may begin with token_before_unseen().
Status validate_step_plan(const StepPlan& plan, int32_t num_blocks, const StepPlan* in_flight, int32_t num_host_blocks,
                          const DraftRules& drafts);

}  // namespace llmb
