// A request's times: by the caller's clock, or virtual, where they depend on the request alone.
#include "engine/active_request.h"

#include <doctest/doctest.h>

namespace llmb {

namespace {

RequestLatency latency_of(double virtual_token_ms, const std::vector<double>& times, double arrival_ms) {
  auto request = std::make_shared<Request>();
  request->prompt_tokens = {1, 2, 3};
  request->arrival_ms = arrival_ms;
  ActiveRequest active(request, 0, nullptr, virtual_token_ms);
  CHECK_FALSE(active.was_scheduled());
  active.mark_scheduled(times[0]);
  active.mark_scheduled(times[0] + 1000);  // again, after a preemption
  CHECK(active.was_scheduled());
  StepOutput output;
  output.tokens = {7};
  for (size_t i = 1; i < times.size(); ++i) active.add_token(output, 0, false, times[i]);
  return active.finish(FinishReason::kLength, std::nullopt, 0).latency;
}

}  // namespace

TEST_CASE("times are measured from the arrival") {
  const RequestLatency latency = latency_of(0, {110, 130, 140, 170}, 100);
  CHECK(latency.queue_ms == 10);
  CHECK(latency.ttft_ms == 30);
  CHECK(latency.e2e_ms == 70);
  CHECK(latency.tpot_ms == 20);
  CHECK(latency.itl_p50_ms == 20);
}

TEST_CASE("FAULTS 8: a clock that was behind the arrival gives no negative duration") {
  const RequestLatency latency = latency_of(0, {50, 60, 70}, 100);
  CHECK(latency.queue_ms == 0);
  CHECK(latency.ttft_ms == 0);
  CHECK(latency.e2e_ms == 0);
}

TEST_CASE("virtual times count the request's own tokens, whatever the schedule") {
  for (const double late : {0.0, 12345.678}) {
    const RequestLatency latency = latency_of(0.5, {110 + late, 130 + 7 * late, 140 + 9 * late}, 100 + late / 3);
    CHECK(latency.queue_ms == 0);
    CHECK(latency.ttft_ms == 1.5);
    CHECK(latency.e2e_ms == 2);
    CHECK(latency.tpot_ms == 0.5);
    CHECK(latency.itl_p99_ms == 0.5f);
  }
}

}  // namespace llmb
