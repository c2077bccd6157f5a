#include "scheduler/policies.h"

#include <cmath>

#include "scheduler/sequence.h"

namespace llmb {

Policy shortest_job_first() {
  return {[](const Sequence& s, double) { return Ranking{Rank{int64_t{s.num_prompt_tokens()} + s.max_new_tokens}}; }, 0};
}

Policy multi_level_feedback_queue(const FeedbackQueue& queue) {
  const auto rank = [queue](const Sequence& s, double /*now_ms*/) {
    const int64_t work = s.num_prompt_tokens() / queue.prompt_tokens_per_token + s.num_output_tokens();
    int32_t level = 0;
    for (int64_t quantum = queue.first_quantum; work >= quantum && level + 1 < kMaxLevels; quantum *= 4) ++level;
    return Ranking{Rank{std::llround(1000 * (s.arrival_ms + level * queue.level_ms))}};
  };
  return {rank, /*num_levels=*/1};
}

}  // namespace llmb
