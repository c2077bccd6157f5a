// Writes sequences into a StepPlan.
#pragma once

#include <cstdint>
#include <span>

#include "core/step_plan.h"
#include "scheduler/constrained_drafts.h"
#include "scheduler/proposer.h"
#include "scheduler/sequence.h"

namespace llmb {

// Appends the next `num_tokens` pending tokens of the sequence as an entry; with the last of them also the drafts
// behind it and the group that samples all these rows. REQUIRES: 1 <= num_tokens <= num_pending_tokens(), no drafts
// before the last; its blocks hold them all; states of its constraint for all drafts.
void append_entry(const Sequence& sequence, int32_t num_tokens, const Drafts& drafts, const DraftStates& states,
                  StepPlan* plan);

// The same without drafts, for a sequence whose tokens are in other blocks than its own: `table`, in a plan with one
// layer group.
void append_entry(const Sequence& sequence, int32_t num_tokens, std::span<const BlockId> table, StepPlan* plan);

// Appends a group by which the sequence, too, gets a token for the first row of an earlier group. REQUIRES: the rows up
// to this one are its known tokens.
void append_group_like(const Sequence& sequence, int32_t group, StepPlan* plan);

}  // namespace llmb
