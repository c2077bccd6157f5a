// Jobs whose drafts may reach the step that verifies them on the device, run with and without drafts. On the host
// layer, which counts what the host waits for.
#pragma once

#include <doctest/doctest.h>

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "core/drafted_tokens.h"
#include "kernels/simt/settings.h"
#include "tests/backend_cuda/drafted_job.h"
#include "tests/support/test_rng.h"

namespace llmb::test {

inline constexpr int32_t kMaxLen = 64;

inline EngineJobOptions fed_job(const std::string& model_dir) {
  EngineJobOptions o = deterministic_cuda_job(model_dir);
  o.scheduler.max_model_len = kMaxLen;
  o.scheduler.max_num_seqs = 4;
  o.scheduler.max_num_batched_tokens = 48;
  o.scheduler.num_blocks = 40;
  o.scheduler.max_num_drafts = 24;
  o.scheduler.allows_trees = false;
  return o;
}

inline nlohmann::json fed_line(int i, int max_tokens) {
  std::vector<int> tokens;
  for (int at = 0; at < 5 + i % 4 * 4; ++at) tokens.push_back((at * at * (i % 2 + 2) + at) % 61 + 1);
  return {{"prompt_token_ids", tokens}, {"seed", i}, {"max_tokens", max_tokens}, {"return_token_ids", true},
          {"temperature", i % 2 == 0 ? 0.0 : 0.8}};
}

// Greedy and sampled, with log-probabilities: what stays on the device.
inline std::string fed_lines(int max_tokens = 40) {
  std::string text;
  for (int i = 0; i < 6; ++i) {
    nlohmann::json line = fed_line(i, max_tokens);
    if (i % 3 == 0) line["logprobs"] = 2;
    text += line.dump() + "\n";
  }
  return text;
}

// With what does not, unless all must, several answers, and ends that only a token tells.
inline std::string mixed_lines(int32_t vocab_size, bool all_stay = false) {
  std::vector<int> stops = {3, 9, 14, 22, 31, 40, 47, 58, 66, 75, 83, 90, 101, 112, 120};
  std::erase_if(stops, [&](int token) { return token >= vocab_size; });
  std::string text;
  for (int i = 0; i < 8; ++i) {
    nlohmann::json line = fed_line(i, i % 2 == 0 ? 34 : 17);
    if (i == 1 || i == 6) line["stop_token_ids"] = stops;
    if (i == 2 && !all_stay) line["repetition_penalty"] = 1.2;
    if (i == 3) line["logprobs"] = 1;
    if (i == 3 && !all_stay) line["frequency_penalty"] = 0.4;
    if (i == 4) line["n"] = 2, line["temperature"] = 1.0;
    if (i == 5) line["stop_token_ids"] = stops, line["min_tokens"] = 9;
    if (i == 7) line["n"] = 3, line["stop_token_ids"] = stops;
    if (i == 7 && !all_stay) line["presence_penalty"] = 0.5;
    text += line.dump() + "\n";
  }
  return text;
}

inline std::string answers_without_drafts(const std::string& lines, EngineJobOptions o) {
  o.scheduler.max_num_drafts = 0;
  const EngineJob plain(lines);
  REQUIRE(plain.run(o).status.ok());
  return plain.output();
}

// Counts the plans whose drafts the host does not know when they have run, and those that were made, drafts included,
// while another one was in flight.
class UnseenPlans final : public Proposer {
 public:
  // sees_all: no plan is made before the one before it has run
  UnseenPlans(Speculator& inner, bool sees_all) : inner_(inner), sees_all_(sees_all) {}
  void begin_plan(const PlanOutlook& outlook) override {
    is_ahead_ = outlook.num_in_flight > 0;
    inner_.begin_plan(outlook);
  }
  void propose(const Sequence& s, int32_t max_drafts, Drafts* drafts) override {
    inner_.propose(s, max_drafts, drafts);
    if (is_ahead_ && drafts->size() > 0) ++num_ahead, is_ahead_ = false;  // once a plan
  }
  bool must_see(const Sequence& sequence) const override { return inner_.must_see(sequence); }
  bool must_see_all() const override { return sees_all_ || inner_.must_see_all(); }
  void see_drafts(StepPlan* plan) override { inner_.see_drafts(plan); }
  void on_verified(const Sequence& s, int32_t num_drafts, int32_t num_accepted) override {
    inner_.on_verified(s, num_drafts, num_accepted);
  }
  void on_end(const Sequence& sequence) override { inner_.on_end(sequence); }
  void on_step(const StepPlan& plan, const StepOutput& output, double step_ms, double gap_ms) override {
    num_plans += has_drafted(plan);
    inner_.on_step(plan, output, step_ms, gap_ms);
  }
  int64_t num_plans = 0, num_ahead = 0;

 private:
  Speculator& inner_;
  const bool sees_all_;
  bool is_ahead_ = false;
};

// Options with a speculator, which outlives the run.
struct Drafting {
  Drafting(EngineJobOptions o, const DraftSetup& setup, bool sees_all = false)
      : options(std::move(o)), speculator(make_speculator(setup, &options, cost, clock)), unseen(*speculator, sees_all) {
    options.proposer = &unseen;
    options.step_cost = &cost;
  }
  const SteadyClock clock;
  StepCost cost;
  EngineJobOptions options;
  const std::unique_ptr<Speculator> speculator;
  UnseenPlans unseen;
};

struct Drafted {
  EngineJobOutcome outcome;
  SpeculationMetrics::Kind drafts;
  DraftBlocks blocks;  // of the target's pool
  int64_t num_waits = 0, num_ahead = 0;  // of the host; plans with drafts that were made behind one in flight
};

inline Drafted check_same(const std::string& lines, const std::string& expected, EngineJobOptions o,
                          const DraftSetup& setup, bool sees_all = false) {
  const Drafting drafting(std::move(o), setup, sees_all);
  const EngineJob job(lines);
  const uint64_t before = simt::num_waits();
  Drafted drafted;
  drafted.outcome = job.run(drafting.options);
  REQUIRE_MESSAGE(drafted.outcome.status.ok(), drafted.outcome.status.message());
  drafted.num_waits = static_cast<int64_t>(simt::num_waits() - before);
  CHECK(job.output() == expected);
  CHECK(drafting.unseen.num_plans == 0);
  drafted.num_ahead = drafting.unseen.num_ahead;
  drafted.drafts = drafting.speculator->metrics().drafters.back();
  drafted.blocks = drafting.speculator->metrics().blocks;
  return drafted;
}

// The i-th of many: a small pool of the target's at every second one, which holds little more than one sequence.
inline void draw_schedule(TestRng& rng, int i, EngineJobOptions* o) {
  const bool has_small_pool = i % 2 == 1;
  o->scheduler.max_num_seqs = has_small_pool ? rng.between(3, 8) : rng.between(1, 8);
  o->scheduler.max_num_batched_tokens = rng.between(8, 64);
  o->scheduler.block_size = o->load.block_size = 8 * rng.between(1, 2);
  o->scheduler.num_blocks = has_small_pool ? kMaxLen / o->scheduler.block_size + rng.between(0, 2) : 64;
  o->scheduler.enable_prefix_caching = rng.chance(0.75);
  if (rng.chance(0.5)) o->scheduler.preemption = PreemptionMode::kSwap, o->load.swap_space_gib = 1;
  o->scheduler.max_num_drafts = rng.between(4, 40);
}

// Runs that calls of the runtime fail in: how many gave an answer, which is the expected one.
inline int64_t count_whole_of_failing(const std::string& lines, const std::string& expected,
                                      const EngineJobOptions& options, const DraftSetup& setup) {
  int64_t num_ended = 0, num_whole = 0;
  for (uint64_t num_calls = 40; num_calls < 400; num_calls += 61) {
    CAPTURE(num_calls);
    const Drafting drafting(options, setup);
    const EngineJob job(lines);
    simt::fail_call_after(num_calls, cudaErrorLaunchFailure);
    const EngineJobOutcome outcome = job.run(drafting.options);
    simt::clear_failure();
    outcome.status.ok() ? ++num_whole : ++num_ended;
    if (outcome.status.ok()) CHECK(job.output() == expected);
  }
  MESSAGE(num_ended << " runs ended, " << num_whole << " went on");
  return num_whole;
}

}  // namespace llmb::test
