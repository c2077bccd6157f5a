// Random jobs of the bundled model on the CPU: the same bytes whoever drafts, however many tokens and whatever the
// schedule, also where a job is killed and continued with another drafter. LLMB_NUM_MODEL_JOBS raises the count (500),
// LLMB_JOB_SEED replays one.
#include <doctest/doctest.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/support/model_drafters.h"
#include "tests/support/test_rng.h"

namespace llmb::test {

namespace {

int64_t from_environment(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  return text ? std::strtoll(text, nullptr, 10) : otherwise;
}

std::string random_lines(TestRng* rng) {
  const char* const prompts[] = {"Once upon a time", "<|user|>Tell me a story about an owl.<|end|><|assistant|>",
                                 "<|user|>What is 89 plus 528?<|end|><|assistant|>", "the fox the owl the fox the"};
  std::string lines;
  for (int32_t i = 0, count = rng->log_between(2, 10); i < count; ++i) {
    nlohmann::json line;
    line["prompt"] = prompts[rng->between(0, 3)];
    line["max_tokens"] = rng->log_between(1, 50);
    line["seed"] = rng->between(0, 1000);
    line["return_token_ids"] = true;
    line["temperature"] = rng->chance(0.5) ? 0.0 : 0.8;
    if (rng->chance(0.2)) line["frequency_penalty"] = 0.5;
    if (rng->chance(0.2)) line["repetition_penalty"] = 1.3;
    if (rng->chance(0.2)) line["top_p"] = 0.9;
    if (rng->chance(0.3)) line["logprobs"] = rng->between(0, 3);
    if (rng->chance(0.3)) line["stop"] = {"the"};
    if (rng->chance(0.2)) line["min_tokens"] = rng->between(0, line["max_tokens"].get<int32_t>());
    if (rng->chance(0.2)) line["n"] = 2;
    lines += line.dump() + "\n";
  }
  return lines;
}

void choose_schedule(TestRng* rng, EngineJobOptions* o) {
  SchedulerConfig& s = o->scheduler;
  s.batching = static_cast<BatchingMode>(rng->between(0, 3));
  s.batch_window_ms = 0;
  s.max_num_seqs = rng->log_between(1, 64);
  s.max_num_batched_tokens = rng->log_between(2, 256);
  s.block_size = rng->chance(0.5) ? 4 : 16;
  s.num_blocks = 96 / s.block_size + rng->log_between(1, 24);  // one sequence fits; more preempt each other
  s.enable_prefix_caching = rng->chance(0.5);
  s.max_num_drafts = 64;
  o->load.block_size = s.block_size;
  o->load.num_threads = rng->between(1, 2);
}

DraftSetup random_setup(TestRng* rng) {
  DraftSetup setup;
  setup.by = static_cast<DraftBy>(rng->between(0, 3));
  setup.num_layers = rng->between(1, 4);
  setup.max_tokens = rng->between(0, 16);
  setup.num_blocks = rng->log_between(1, 100);
  setup.max_num_batched_tokens = rng->log_between(2, 64);
  setup.max_model_len = rng->chance(0.8) ? 96 : 48;
  setup.looks_up = rng->chance(0.5);
  setup.is_tree = rng->chance(0.5);
  setup.drafts_always = rng->chance(0.8);
  return setup;
}

}  // namespace

TEST_CASE("random jobs of the bundled model have the same bytes whoever drafts, killed and continued too") {
  const bool replay = std::getenv("LLMB_JOB_SEED") != nullptr;
  const int64_t first = from_environment("LLMB_JOB_SEED", 1),
                num_jobs = from_environment("LLMB_NUM_MODEL_JOBS", replay ? 1 : 6);
  const SteadyClock clock;
  const EngineJobOptions model = bundled_model();
  int64_t num_drafted = 0, num_accepted = 0, num_preemptions = 0, num_killed = 0;
  for (int64_t seed = first; seed < first + num_jobs; ++seed) {
    CAPTURE(seed);
    TestRng rng(static_cast<uint64_t>(seed));
    const std::string lines = random_lines(&rng);
    const EngineJob plain(lines), drafted(lines);
    REQUIRE(plain.run(model).status.ok());
    for (bool is_done = false; !is_done;) {
      EngineJobOptions o = model;
      choose_schedule(&rng, &o);
      const DraftSetup setup = random_setup(&rng);
      o.scheduler.allows_trees = has_trees(setup);
      StepCost cost;
      const auto speculator = make_speculator(setup, &o, cost, clock);
      o.proposer = speculator.get();
      o.step_cost = &cost;
      int32_t steps_left = rng.chance(0.4) ? rng.between(1, 30) : INT32_MAX;
      o.on_progress = [&](const JobProgress&, std::atomic<int>* interrupted) {
        if (--steps_left == 0) *interrupted = 2;
      };
      const EngineJobOutcome outcome = drafted.run(o);
      REQUIRE_MESSAGE(outcome.status.ok(), outcome.status.message());
      is_done = steps_left > 0;
      num_killed += !is_done;
      num_preemptions += outcome.num_preemptions;
      for (const SpeculationMetrics::Kind& kind : speculator->metrics().drafters) {
        num_drafted += kind.num_drafted;
        num_accepted += kind.num_accepted;
      }
    }
    REQUIRE(records_by_index(drafted.output()) == records_by_index(plain.output()));
  }
  MESSAGE(num_jobs << " jobs: " << num_drafted << " drafts, " << num_accepted << " accepted, " << num_preemptions
                   << " preemptions, " << num_killed << " times killed");
  if (!replay) CHECK(num_accepted > 0);
}

}  // namespace llmb::test
