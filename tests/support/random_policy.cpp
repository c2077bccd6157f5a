#include "tests/support/random_policy.h"

#include <algorithm>
#include <cmath>

#include "scheduler/policies.h"
#include "scheduler/sequence.h"
#include "tests/support/test_rng.h"

namespace llmb::test {

namespace {

int64_t draw(uint64_t seed, int64_t a, int64_t b = 0, int64_t c = 0) {
  return TestRng(seed + static_cast<uint64_t>(a * 1'000'003 + b * 10'007 + c)).between(0, 7);
}

}  // namespace

Policy random_priorities(uint64_t seed, int32_t num_levels) {
  return {[=](const Sequence& s, double) { return Ranking{Rank{draw(seed, s.id)}}; }, num_levels};
}

Policy last_come_first_served(int32_t num_levels) {
  return {[](const Sequence& s, double) { return Ranking{Rank{-s.id}}; }, num_levels};
}

Policy levels_by_output(int32_t quantum, int32_t num_levels) {
  return {[=](const Sequence& s, double) { return Ranking{Rank{s.num_output_tokens() / quantum}}; }, num_levels};
}

Policy with_patience(uint64_t seed, double patience_ms, int32_t num_levels) {
  const auto rank = [=](const Sequence& s, double now_ms) {
    const double until_ms = s.arrival_ms + patience_ms;
    return now_ms < until_ms ? Ranking{Rank{draw(seed, s.id)}, until_ms} : Ranking{Rank{-1}};
  };
  return {rank, num_levels};
}

Policy restless(uint64_t seed, double period_ms, int32_t num_levels) {
  const auto rank = [=](const Sequence& s, double now_ms) {
    const auto period = static_cast<int64_t>(std::floor(now_ms / period_ms)) + 1;
    return Ranking{Rank{draw(seed, s.id, s.num_output_tokens(), period)}, static_cast<double>(period) * period_ms};
  };
  return {rank, num_levels};
}

Policy random_policy(uint64_t seed) {
  TestRng rng(seed);
  const int32_t num_levels = rng.between(0, kMaxLevels);
  switch (rng.between(0, 13)) {
    case 0:
      return random_priorities(seed, num_levels);
    case 1:
      return last_come_first_served(num_levels);
    case 2:
      return levels_by_output(rng.log_between(1, 8), num_levels);
    case 3:
      return with_patience(seed, rng.log_between(1, 100), num_levels);
    case 4:
      return restless(seed, rng.log_between(1, 20), num_levels);
    case 5:
      return shortest_job_first();
    case 6:
      return multi_level_feedback_queue(
          {rng.log_between(1, 8), rng.log_between(1, 64), static_cast<double>(rng.log_between(1, 100))});
    default:
      return {};
  }
}

}  // namespace llmb::test
