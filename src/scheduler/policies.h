// Policies for requests that arrive over time (rank.h says what a policy is).
#pragma once

#include "scheduler/rank.h"

namespace llmb {

// The request with the least work goes first, prompt and max_tokens together. It waits for nobody's end to run: those that
// run stay. A long one waits as long as shorter ones come.
Policy shortest_job_first();

// A multi-level feedback queue that newcomers join where they belong (skip-join MLFQ: FastServe, Wu et al., 2023). Who
// gives way may lose its blocks and be computed again, where FastServe swaps all of them out: so each gives way once at
// most, to newcomers that joined a better level, and falls by what it has got only then. With more of it, recorded conversations
// took several times as long (tools/bench_policies).
struct FeedbackQueue {
  // Work that a level allows, in decoded tokens: the first this, each next one four times that of the one before.
  int32_t first_quantum = 16;
  // Prompt tokens whose computation takes as long as one decoded token. A prompt counts as work from the start, so a long
  // one joins a lower level at once instead of being interrupted on its way down.
  int32_t prompt_tokens_per_token = 64;
  // Who waits for so long since it arrived goes before all others, once and then to its end.
  double patience_ms = 60'000;
};
Policy multi_level_feedback_queue(const FeedbackQueue& queue = {});

}  // namespace llmb
