// A backend that fails in the middle of a job, or computes NaN: FAULTS rows 24 (errors of the device) and 27, over the
// engine, the coordinator and a file, on the ledger backend, with one plan in flight and with two.
#include <doctest/doctest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "tests/support/engine_job.h"
#include "tests/support/tiny_model.h"

namespace llmb::test {

namespace {

constexpr int kNumLines = 40;

int64_t max_tokens(int64_t line) { return 1 + line % 9; }

std::string lines() {
  std::string text;
  for (int i = 0; i < kNumLines; ++i)
    text += R"({"prompt_token_ids":[1,2,)" + std::to_string(3 + i) + R"(],"ignore_eos":true,"max_tokens":)" +
            std::to_string(max_tokens(i)) + "}\n";
  return text;
}

EngineJobOptions options(BackendScript script = {}) {
  EngineJobOptions o;
  o.config = tiny_config();
  o.scheduler.max_num_seqs = 4;
  o.scheduler.max_model_len = 64;
  o.script = std::move(script);
  return o;
}

std::map<int64_t, std::string> reference() {
  const EngineJob job(lines());
  REQUIRE(job.run(options()).status.ok());
  auto records = records_by_index(job.output());
  REQUIRE(records.size() == kNumLines);
  return records;
}

}  // namespace

TEST_CASE(
    "FAULTS 24: a device error at any step ends the run with it, what was done is kept, and the next run completes") {
  const auto expected = reference();
  for (const int32_t max_plans : {1, 2})
    for (const int64_t step : {0, 1, 2, 7, 20})
      for (const bool at_submit : {false, true}) {
        CAPTURE(max_plans);
        CAPTURE(step);
        CAPTURE(at_submit);
        const EngineJob job(lines());
        BackendScript script{.max_plans_in_flight = max_plans};
        (at_submit ? script.submit_errors : script.wait_errors)[step] = device_error("illegal address");
        const EngineJobOutcome outcome = job.run(options(script));
        const Status& status = outcome.status;
        CHECK(status.code() == StatusCode::kDeviceError);
        CHECK(status.message().find("illegal address") != std::string::npos);
        const auto kept = records_by_index(job.partial_output());
        for (const auto& [index, record] : kept) CHECK(record == expected.at(index));
        // Every output before the failing step's was handed on, also that of the step in flight when submit() failed.
        for (const auto& [line, num_tokens] : outcome.num_sampled) {
          CAPTURE(line);
          CHECK(kept.contains(line) == (num_tokens == max_tokens(line)));
        }
        CHECK(kept.contains(0) == (step > 0));  // one token: done by step 0
        CHECK(kept.contains(1) == (step > 1));
        CHECK(job.run(options()).status.ok());
        CHECK(records_by_index(job.output()) == expected);
      }
}

TEST_CASE("FAULTS 27: a row of NaN is that line's numeric_error, all others are as without it") {
  const auto expected = reference();
  for (const int32_t max_plans : {1, 2}) {
    const EngineJob job(lines());
    BackendScript script{.max_plans_in_flight = max_plans};
    script.nan_groups = {{3, 0}, {9, 1}};
    const EngineJobOutcome outcome = job.run(options(script));
    CHECK(outcome.status.ok());
    CHECK(outcome.num_failed == 2);
    int num_errors = 0;
    const auto found = records_by_index(job.output());
    REQUIRE(found.size() == kNumLines);
    for (const auto& [index, record] : found) {
      if (record == expected.at(index)) continue;
      ++num_errors;
      CHECK(nlohmann::json::parse(record)["error"]["code"] == "numeric_error");
    }
    CHECK(num_errors == 2);
  }
}

TEST_CASE(
    "one interrupt lets what runs finish, two leave it; nothing is in flight afterwards and the next run completes") {
  const auto expected = reference();
  for (const int32_t max_plans : {1, 2})
    for (const int num_interrupts : {1, 2})
      for (const int at_step : {1, 2, 5, 11}) {
        CAPTURE(max_plans);
        CAPTURE(num_interrupts);
        CAPTURE(at_step);
        const EngineJob job(lines());
        EngineJobOptions interrupted = options({.max_plans_in_flight = max_plans});
        int num_calls = 0;
        int64_t num_running = 0, num_done = 0;
        interrupted.on_progress = [&](const JobProgress& progress, std::atomic<int>* interrupts) {
          if (progress.engine.num_input_tokens == 0 || ++num_calls != at_step) return;  // counts from the first step on
          num_running = progress.engine.num_running;
          num_done = progress.num_done;
          *interrupts = num_interrupts;
        };
        const EngineJobOutcome outcome = job.run(interrupted);
        CHECK(outcome.status.ok());
        CHECK(outcome.num_left > 0);
        if (num_interrupts == 2) CHECK(outcome.num_completed == num_done);
        else CHECK(outcome.num_completed >= num_done + num_running - 4 * (max_plans - 1));
        const auto kept = records_by_index(job.partial_output());
        CHECK(static_cast<int64_t>(kept.size()) == outcome.num_completed);
        for (const auto& [index, record] : kept) CHECK(record == expected.at(index));
        CHECK(job.run(options()).status.ok());
        CHECK(records_by_index(job.output()) == expected);
      }
}

TEST_CASE("one error more than allowed ends the run with whatever is in flight") {
  for (const int32_t max_plans : {1, 2}) {
    const EngineJob job(lines());
    BackendScript script{.max_plans_in_flight = max_plans};
    script.nan_groups = {{3, 0}, {4, 0}, {5, 0}};
    EngineJobOptions o = options(script);
    o.max_errors = 1;
    const EngineJobOutcome outcome = job.run(o);
    CHECK(outcome.status.ok());
    CHECK(outcome.num_failed == 2);
    CHECK(outcome.num_left > 0);
    const auto kept = records_by_index(job.partial_output());
    CHECK(static_cast<int64_t>(kept.size()) == outcome.num_completed + outcome.num_failed);
  }
}

}  // namespace llmb::test
