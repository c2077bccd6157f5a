// The published ratios of steps and the waste bounds, on the workload of tools/bench_batching.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "tools/batching_workload.h"

namespace llmb::test {

namespace {

constexpr int kNumLengths = 4;
constexpr int32_t kLongest[kNumLengths] = {32, 128, 512, 1536};
constexpr double kRatio[kNumLengths] = {2.0, 2.2, 3.3, 4.1};

BatchingWorkload make_workload(int i, uint64_t seed) {
  BatchingWorkload workload;
  workload.longest_output_tokens = kLongest[i];
  workload.seed = seed;
  return workload;
}

double ratio(int i, uint64_t seed) {
  const BatchingWorkload workload = make_workload(i, seed);
  return static_cast<double>(run_batching_workload(BatchingMode::kStatic, workload).num_steps) /
         static_cast<double>(run_batching_workload(BatchingMode::kContinuous, workload).num_steps);
}

}  // namespace

TEST_CASE("static batching needs 2.0, 2.2, 3.3 and 4.1 times the steps of continuous, within 10 %") {
  for (int i = 0; i < kNumLengths; ++i) {
    CAPTURE(kLongest[i]);
    CHECK(std::fabs(ratio(i, 0) / kRatio[i] - 1) <= 0.1);  // the seed that the tool prints
    double sum = 0;
    for (uint64_t seed = 0; seed < 4; ++seed) sum += ratio(i, seed);
    CHECK(std::fabs(sum / 4 / kRatio[i] - 1) <= 0.1);
  }
}

TEST_CASE("every mode produces the same tokens; paging wastes at most 2 %, reserving 2,048 slots 60 to 75 %") {
  for (int i = 0; i < kNumLengths; ++i) {
    CAPTURE(kLongest[i]);
    const BatchingWorkload workload = make_workload(i, 0);
    const BatchingResult continuous = run_batching_workload(BatchingMode::kContinuous, workload);
    for (const BatchingMode mode : {BatchingMode::kNone, BatchingMode::kStatic, BatchingMode::kDynamic}) {
      const BatchingResult other = run_batching_workload(mode, workload);
      CHECK(other.output_hash == continuous.output_hash);
      CHECK(other.num_output_tokens == continuous.num_output_tokens);
    }
    CHECK(continuous.num_prompt_tokens == 512'000);
    CHECK(continuous.num_preemptions == 0);
    CHECK(continuous.paged_waste > 0);
    CHECK(continuous.paged_waste <= 0.02);
    CHECK(continuous.reserved_waste >= 0.60);
    CHECK(continuous.reserved_waste <= 0.75);
  }
}

TEST_CASE("output lengths are drawn again until they fit: none above the longest, no heap at it") {
  for (int i = 0; i < kNumLengths; ++i) {
    const std::vector<int32_t> lengths = draw_output_lengths(make_workload(i, 0));
    REQUIRE(lengths.size() == 1000);
    int num_longest = 0;
    for (const int32_t length : lengths) {
      CHECK(length >= 1);
      CHECK(length <= kLongest[i]);
      num_longest += length == kLongest[i];
    }
    CHECK(num_longest < 60);  // 1000 / 32, and chance
  }
}

// No step gives more than a token to each running sequence, and no sequence gets more than one of a step.
int64_t fewest_steps(const BatchingWorkload& workload) {
  int64_t sum = 0, longest = 0;
  for (const int32_t length : draw_output_lengths(workload)) {
    sum += length;
    longest = std::max<int64_t>(longest, length);
  }
  return std::max(longest, ceil_div(sum, int64_t{workload.max_num_seqs}));
}

TEST_CASE("with lengths known, planned orders take at most 1.02 times the fewest steps that there can be") {
  for (const int32_t max_num_seqs : {64, 128}) {
    for (const int32_t longest : kLongest) {
      BatchingWorkload workload;
      workload.longest_output_tokens = longest;
      workload.max_num_seqs = max_num_seqs;
      CAPTURE(max_num_seqs);
      CAPTURE(longest);
      const auto steps = [&](Schedule schedule) {
        workload.schedule = schedule;
        return run_batching_workload(BatchingMode::kContinuous, workload);
      };
      const BatchingResult in_file_order = steps(Schedule::kFile);
      for (const Schedule schedule : {Schedule::kLongestFirst, Schedule::kAuto}) {
        const BatchingResult planned = steps(schedule);
        MESSAGE(max_num_seqs << " rows, longest " << longest << ": " << planned.num_steps << " of at least "
                             << fewest_steps(workload) << " steps, in file order " << in_file_order.num_steps);
        CHECK(static_cast<double>(planned.num_steps) <= 1.02 * static_cast<double>(fewest_steps(workload)));
        CHECK(planned.output_hash == in_file_order.output_hash);
      }
    }
  }
}

}  // namespace llmb::test
