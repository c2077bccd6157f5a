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

inline bool has_drafted(const StepPlan& plan) { return std::any_of(plan.tokens.begin(), plan.tokens.end(), is_drafted); }

// As in core/step_plan.h; all rows of an entry but its first may also stand for tokens in so many slots, and where there
// are any, entries with is_mtp may follow groups in flight.
Status validate_step_plan(const StepPlan& plan, int32_t num_blocks, const StepPlan* in_flight, int32_t num_host_blocks,
                          int32_t num_drafted);

}  // namespace llmb
