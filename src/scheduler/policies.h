// Policies for requests that arrive over time (rank.h says what a policy is).
#pragma once

#include "scheduler/rank.h"

namespace llmb {

// The request with the least work goes first, prompt and max_tokens together. It waits for nobody's end to run: those that
// run stay. A long one waits as long as shorter ones come.
Policy shortest_job_first();

// A multi-level feedback queue that newcomers join where they belong (skip-join MLFQ: FastServe, Wu et al., 2023), whose
// levels stand apart by time: who joins a level goes as if it had come level_ms later than on the level above. So nobody
// starves: whoever arrives (kMaxLevels - 1) * level_ms later goes behind it. With levels that went strictly before each
// other the requests with the longest answers were later than first come, first served has them. That arrivals shifted
// by size shorten the mean and the tail both: Boost, Yu and Scully, 2024.
//
// A running sequence gives way once at most, to newcomers of a better rank, and falls by what it has got only then: of
// recorded answers, those that have run for longer need less until they end, so further demotions cost more than they give
// (tools/bench_policies).
struct FeedbackQueue {
  // Work that a level allows, in decoded tokens: the first this, each next one four times that of the one before.
  int32_t first_quantum = 16;
  // Prompt tokens whose computation takes as long as one decoded token. A prompt counts as work from the start, so a long
  // one joins a lower level at once instead of being interrupted on its way down.
  int32_t prompt_tokens_per_token = 16;
  double level_ms = 3000;
};
Policy multi_level_feedback_queue(const FeedbackQueue& queue = {});

}  // namespace llmb
