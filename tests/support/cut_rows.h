// Rows that are cut at any place of a block, move to the host, and go on behind what they had.
#pragma once

#include <doctest/doctest.h>

#include <cstdint>
#include <vector>

#include "backend/backend.h"
#include "scheduler/scheduler.h"
#include "tests/support/scheduled_run.h"
#include "tests/support/window_requests.h"

namespace llmb::test {

struct CutRows {
  int64_t num_preemptions = 0, num_swaps_in = 0;
};

// Runs a prompt of `length` tokens beside one of each of `other_lengths`, all answered by `num_tokens`, in a pool that is
// too small for both, and checks that answers and the number of rows computed are those of an ample pool.
inline CutRows check_cut_rows(Backend& ample, Backend& small, SchedulerConfig config, int32_t length,
                              const std::vector<int32_t>& other_lengths, int32_t num_tokens) {
  config.enable_prefix_caching = true;
  config.preemption = PreemptionMode::kSwap;
  CutRows sums;
  for (const int32_t other_length : other_lengths) {
    CAPTURE(other_length);
    const auto requests = window_requests({length, other_length}, num_tokens);
    const ScheduledRun expected = run_scheduled(ample, config, nullptr, requests);
    const ScheduledRun run = run_scheduled(small, config, nullptr, requests);
    const bool is_same = run.answers == expected.answers;
    CHECK(is_same);
    CHECK(run.num_rows == expected.num_rows);
    sums.num_preemptions += run.num_preemptions;
    sums.num_swaps_in += run.num_swaps_in;
  }
  return sums;
}

}  // namespace llmb::test
