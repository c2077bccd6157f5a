// A step is planned while the one before runs: the answers are the same bytes as without it, and the times add up.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "model/config_loader.h"
#include "tests/support/engine_job.h"
#include "tests/support/source_dir.h"
#include "tests/support/tiny_model.h"
#include "tokenizer/tokenizer.h"

namespace llmb::test {

namespace {

// Every way in which a sequence can end, and every way in which one sampling depends on the token before.
std::string mixed_lines() {
  const std::vector<std::string> ways = {
      R"("max_tokens":30)",
      R"("max_tokens":30,"ignore_eos":true)",
      R"("max_tokens":40,"stop":["e"])",
      R"("max_tokens":40,"stop":["th","an"],"include_stop_str_in_output":true)",
      R"("max_tokens":25,"frequency_penalty":0.5,"stop":["o"])",
      R"("max_tokens":25,"repetition_penalty":1.2,"temperature":1)",
      R"("max_tokens":20,"min_tokens":10,"stop":["a"])",
      R"("max_tokens":20,"stop_token_ids":[300,301,302,303,304,305,306,307,308,309],"logprobs":2)",
      R"("max_tokens":1)",
  };
  std::string text;
  for (int i = 0; i < 90; ++i)
    text += R"({"prompt":"A story of number )" + std::to_string(i * i) + R"( and )" + std::string(i % 40, 'x') +
            R"(","seed":)" + std::to_string(i) + "," + ways[i % ways.size()] +
            R"(,"return_token_ids":true})"
            "\n";
  return text;
}

EngineJobOptions bundled_model() {
  EngineJobOptions o;
  const std::string dir = source_dir() + "/data/model";
  const auto config = load_model_config(dir);
  REQUIRE(config.ok());
  auto tokenizer = Tokenizer::load(dir);
  REQUIRE(tokenizer.ok());
  o.config = *config;
  o.tokenizer = std::move(*tokenizer);
  o.eos_token_ids = config->eos_token_ids;
  o.ledger.eos_rate = 0.03;
  o.ledger.check_every_slot = true;
  o.scheduler.max_model_len = 128;
  return o;
}

}  // namespace

TEST_CASE("the output has the same bytes with one plan in flight and with two, however the schedule goes") {
  struct Schedule {
    BatchingMode mode;
    int32_t max_num_seqs, max_num_batched_tokens, block_size, num_blocks;
  };
  const std::vector<Schedule> schedules = {
      {BatchingMode::kContinuous, 256, 2048, 16, 1000}, {BatchingMode::kContinuous, 8, 512, 16, 100},
      {BatchingMode::kContinuous, 8, 16, 4, 40},  // preempts
      {BatchingMode::kContinuous, 3, 3, 16, 100},       {BatchingMode::kStatic, 8, 512, 16, 100},
      {BatchingMode::kDynamic, 8, 512, 16, 100},        {BatchingMode::kNone, 8, 512, 16, 100},
  };
  std::string expected;
  bool preempted[2] = {};
  for (const Schedule& schedule : schedules)
    for (const int32_t max_plans : {1, 2}) {
      CAPTURE(static_cast<int>(schedule.mode));
      CAPTURE(schedule.max_num_seqs);
      CAPTURE(max_plans);
      EngineJobOptions o = bundled_model();
      o.scheduler.batching = schedule.mode;
      o.scheduler.max_num_seqs = schedule.max_num_seqs;
      o.scheduler.max_num_batched_tokens = schedule.max_num_batched_tokens;
      o.scheduler.block_size = schedule.block_size;
      o.scheduler.num_blocks = schedule.num_blocks;
      o.script.max_plans_in_flight = max_plans;
      const EngineJob job(mixed_lines());
      const EngineJobOutcome outcome = job.run(o);
      REQUIRE_MESSAGE(outcome.status.ok(), outcome.status.message());
      CHECK(outcome.num_failed == 0);
      CHECK(outcome.last_progress.engine.num_output_tokens == outcome.num_output_tokens);  // no row of an ended sequence
      preempted[max_plans - 1] |= outcome.num_preemptions > 0;
      if (expected.empty()) expected = job.output();
      CHECK(job.output() == expected);
    }
  CHECK(preempted[0]);
  CHECK(preempted[1]);
  for (const char* reason : {R"("finish_reason":"length")", R"("stop_reason":"e")", R"("finish_reason":"stop")"})
    CHECK(expected.find(reason) != std::string::npos);
}

TEST_CASE("steps are timed from output to output, so that they add up to the run") {
  for (const int32_t max_plans : {1, 2}) {
    VirtualClock clock;
    EngineJobOptions o;
    o.config = tiny_config();
    o.scheduler.max_model_len = 64;
    o.ledger.clock = &clock;
    o.ledger.step_ms = 3;
    o.script.max_plans_in_flight = max_plans;
    const EngineJob job(R"({"prompt_token_ids":[1,2,3],"ignore_eos":true,"max_tokens":10})"
                        "\n");
    const EngineJobOutcome outcome = job.run(o);
    REQUIRE(outcome.status.ok());
    CHECK(outcome.num_steps == 10);
    CHECK(outcome.busy_ms == 30);
    CHECK(clock.now_ms() == 30);
  }
}

}  // namespace llmb::test
