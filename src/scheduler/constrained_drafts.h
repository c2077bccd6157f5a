// Drafts of a sequence that has a constraint.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/token_constraint.h"
#include "scheduler/proposer.h"
#include "scheduler/sequence.h"

namespace llmb {

// How far the constraint has come behind each draft. [drafts], or empty: no constraint
using DraftStates = std::vector<std::unique_ptr<ConstraintState>>;

struct ChainLimits {
  int32_t guesses = 0;  // drafts of a group that has guesses among them
  int32_t rows = 0;     // drafts of one that has none; >= guesses
};

// Keeps of the drafts those that the constraint allows, behind drafts that it allows. Tokens that end the answer are no
// drafts, since the form allows no token behind them. Behind a chain of drafts, or behind the last token where there are
// none, come the tokens that the form leaves no choice of, as far as the limits go: so these need no steps of their own,
// while each is still drawn for its row, among one. *num_forced is set to their number.
// REQUIRES: the sequence has a constraint, and nothing of it is in flight; drafts: limits.guesses at most
DraftStates constrain_drafts(const Sequence& sequence, ChainLimits limits, Drafts* drafts, int32_t* num_forced);

}  // namespace llmb
