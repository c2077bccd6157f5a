// A draft model on the target's GPU: steps of both are in one stream, drafts reach the step that verifies them without
// the host, and no byte depends on it. On the host layer, which counts what the host waits for.
#include <doctest/doctest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "backend/cuda/share_cuda_queue.h"
#include "core/drafted_tokens.h"
#include "kernels/simt/stream_order.h"
#include "tests/backend_cuda/counting_backend.h"
#include "tests/backend_cuda/drafted_job.h"
#include "tests/support/all_schedules.h"
#include "tests/support/source_dir.h"
#include "tests/support/test_rng.h"

namespace llmb::test {
namespace {

const std::string kModel = "/data/fixtures/models/llama-gqa";
constexpr int32_t kMaxLen = 64;

std::unique_ptr<DraftFeed> share(Backend& target, Backend& draft) { return share_cuda_queue(target, draft); }
std::unique_ptr<DraftFeed> share_nothing(Backend&, Backend&) { return nullptr; }
std::unique_ptr<Backend> on_gpu() { return make_cuda_backend(0); }

EngineJobOptions job_options() {
  EngineJobOptions o = deterministic_cuda_job(source_dir() + kModel);
  o.scheduler.max_model_len = kMaxLen;
  o.scheduler.max_num_seqs = 4;
  o.scheduler.max_num_batched_tokens = 48;
  o.scheduler.num_blocks = 40;
  o.scheduler.max_num_drafts = 24;
  o.scheduler.allows_trees = false;
  return o;
}

DraftSetup setup_of(decltype(DraftSetup::share_queue) share_queue) {
  return {.model = kModel, .make_backend = on_gpu, .share_queue = share_queue, .max_tokens = 4, .max_model_len = kMaxLen,
          .num_blocks = 40, .max_num_batched_tokens = 48};
}

nlohmann::json line_of(int i, int max_tokens) {
  std::vector<int> tokens;
  for (int at = 0; at < 5 + i % 4 * 4; ++at) tokens.push_back((at * at * (i % 2 + 2) + at) % 61 + 1);
  return {{"prompt_token_ids", tokens}, {"seed", i}, {"max_tokens", max_tokens}, {"return_token_ids", true},
          {"temperature", i % 2 == 0 ? 0.0 : 0.8}};
}

// Greedy and sampled, with log-probabilities: what the feed takes.
std::string fed_lines() {
  std::string text;
  for (int i = 0; i < 6; ++i) {
    nlohmann::json line = line_of(i, 40);
    if (i % 3 == 0) line["logprobs"] = 2;
    text += line.dump() + "\n";
  }
  return text;
}

// With what it does not take, several answers, and ends that only a token tells.
std::string mixed_lines() {
  const std::vector<int> stops = {3, 9, 14, 22, 31, 40, 47, 58, 66, 75, 83, 90, 101, 112, 120};
  std::string text;
  for (int i = 0; i < 8; ++i) {
    nlohmann::json line = line_of(i, i % 2 == 0 ? 34 : 17);
    if (i == 1 || i == 6) line["stop_token_ids"] = stops;
    if (i == 2) line["repetition_penalty"] = 1.2;
    if (i == 3) line["frequency_penalty"] = 0.4, line["logprobs"] = 1;
    if (i == 4) line["n"] = 2, line["temperature"] = 1.0;
    if (i == 5) line["stop_token_ids"] = stops, line["min_tokens"] = 9;
    if (i == 7) line["n"] = 3, line["presence_penalty"] = 0.5, line["stop_token_ids"] = stops;
    text += line.dump() + "\n";
  }
  return text;
}

struct Drafted {
  EngineJobOutcome outcome;
  SpeculationMetrics::Kind drafts;
  int64_t num_waits = 0;
};

Drafted check_same(const std::string& lines, const std::string& expected, EngineJobOptions o, const DraftSetup& setup) {
  const SteadyClock clock;
  StepCost cost;
  const auto speculator = make_speculator(setup, &o, cost, clock);
  o.proposer = speculator.get();
  o.step_cost = &cost;
  const EngineJob job(lines);
  const uint64_t before = simt::num_waits();
  Drafted drafted;
  drafted.outcome = job.run(o);
  REQUIRE_MESSAGE(drafted.outcome.status.ok(), drafted.outcome.status.message());
  drafted.num_waits = static_cast<int64_t>(simt::num_waits() - before);
  CHECK(job.output() == expected);
  drafted.drafts = speculator->metrics().drafters.back();
  return drafted;
}

std::string answers_without_drafts(const std::string& lines) {
  EngineJobOptions o = job_options();
  o.scheduler.max_num_drafts = 0;
  const EngineJob plain(lines);
  REQUIRE(plain.run(o).status.ok());
  return plain.output();
}

TEST_CASE("the host waits once a step: for what the target gives, not for drafts, which are those that it would see") {
  const std::string expected = answers_without_drafts(fed_lines());
  const Drafted by_host = check_same(fed_lines(), expected, job_options(), setup_of(share_nothing));
  const Drafted fed = check_same(fed_lines(), expected, job_options(), setup_of(share));
  MESSAGE("waits of the host: " << by_host.num_waits << " in " << by_host.outcome.num_steps << " steps by way of it, "
                                << fed.num_waits << " in " << fed.outcome.num_steps << " on the device; "
                                << fed.drafts.num_accepted << " of " << fed.drafts.num_drafted << " drafts are right");
  CHECK(fed.drafts.num_accepted > fed.drafts.num_drafted / 2);  // the same model, in another arithmetic
  CHECK(fed.drafts.num_drafted == by_host.drafts.num_drafted);
  CHECK(fed.drafts.num_accepted == by_host.drafts.num_accepted);
  CHECK(fed.outcome.num_steps == by_host.outcome.num_steps);
  CHECK(fed.num_waits <= fed.outcome.num_steps);
  CHECK(by_host.num_waits > 3 * fed.num_waits);
}

TEST_CASE("drafts are there before they are verified, in whatever order streams run that nothing orders") {
  const std::string expected = answers_without_drafts(fed_lines());
  const Drafted in_turn = check_same(fed_lines(), expected, job_options(), setup_of(share));
  for (const uint32_t percent : {40u, 100u}) {
    CAPTURE(percent);
    simt::set_interleaving(percent);
    const Drafted drafted = check_same(fed_lines(), expected, job_options(), setup_of(share));
    simt::set_interleaving(0);
    CHECK(drafted.drafts.num_accepted == in_turn.drafts.num_accepted);
  }
}

Counts of_target, of_draft;  // by functions without a state

bool samples_all(const StepPlan& plan) { return plan.num_samples() == plan.num_tokens(); }

std::unique_ptr<Backend> counted_draft() { return std::make_unique<Counting>(on_gpu(), samples_all, &of_draft); }

std::unique_ptr<DraftFeed> share_counted(Backend& target, Backend& draft) {
  return share(static_cast<Counting&>(target).inner(), static_cast<Counting&>(draft).inner());
}

TEST_CASE("steps that draft for the device and those that verify such drafts are replayed") {
  const std::string expected = answers_without_drafts(fed_lines());
  EngineJobOptions o = job_options();
  of_target = of_draft = {};
  o.make_backend = [] { return std::make_unique<Counting>(on_gpu(), has_drafted, &of_target); };
  DraftSetup setup = setup_of(share_counted);
  setup.make_backend = counted_draft;
  check_same(fed_lines(), expected, o, setup);
  check_replayed(of_target, 6);
  check_replayed(of_draft, 6);
  CHECK(of_draft.num_steps > 2 * of_target.num_steps);
}

TEST_CASE("deterministic: in random schedules and small pools of both models no byte differs, whatever the rows ask for") {
  const std::string expected = answers_without_drafts(mixed_lines());
  TestRng rng(21);
  int64_t num_preemptions = 0, num_drafted = 0, num_accepted = 0;
  for (int i = 0; i < (runs_all_schedules() ? 40 : 10); ++i) {
    CAPTURE(i);
    EngineJobOptions o = job_options();
    const bool has_small_pool = i % 2 == 1;
    o.scheduler.max_num_seqs = has_small_pool ? rng.between(3, 8) : rng.between(1, 8);
    o.scheduler.max_num_batched_tokens = rng.between(8, 64);
    o.scheduler.block_size = o.load.block_size = 8 * rng.between(1, 2);
    o.scheduler.num_blocks = has_small_pool ? kMaxLen / o.scheduler.block_size + rng.between(0, 2) : 64;
    o.scheduler.enable_prefix_caching = rng.chance(0.75);
    if (rng.chance(0.5)) o.scheduler.preemption = PreemptionMode::kSwap, o.load.swap_space_gib = 1;
    o.scheduler.max_num_drafts = rng.between(4, 40);
    DraftSetup setup = setup_of(share);
    setup.max_tokens = rng.between(1, 12);  // more than the draft model's backend holds plans, too
    setup.max_model_len = i % 5 == 4 ? 30 : kMaxLen;
    setup.num_blocks = rng.between(6, 40);
    setup.max_num_batched_tokens = rng.between(4, 48);
    setup.looks_up = i % 4 == 3;
    setup.drafts_always = i % 3 != 2;
    const Drafted drafted = check_same(mixed_lines(), expected, o, setup);
    num_preemptions += drafted.outcome.num_preemptions;
    num_drafted += drafted.drafts.num_drafted, num_accepted += drafted.drafts.num_accepted;
  }
  MESSAGE(num_accepted << " of " << num_drafted << " drafts are right; " << num_preemptions << " preemptions");
  CHECK(num_preemptions > 0);
  CHECK(num_accepted > num_drafted / 4);
}

TEST_CASE("a call of the runtime that fails ends the drafts or the run, and changes no byte") {
  const std::string lines = fed_lines(), expected = answers_without_drafts(lines);
  int64_t num_ended = 0, num_whole = 0;
  for (uint64_t num_calls = 40; num_calls < 400; num_calls += 61) {
    CAPTURE(num_calls);
    EngineJobOptions o = job_options();
    const SteadyClock clock;
    StepCost cost;
    const auto speculator = make_speculator(setup_of(share), &o, cost, clock);
    o.proposer = speculator.get();
    o.step_cost = &cost;
    const EngineJob job(lines);
    simt::fail_call_after(num_calls, cudaErrorLaunchFailure);
    const EngineJobOutcome outcome = job.run(o);
    simt::clear_failure();
    outcome.status.ok() ? ++num_whole : ++num_ended;
    if (outcome.status.ok()) CHECK(job.output() == expected);
  }
  MESSAGE(num_ended << " runs ended, " << num_whole << " went on");
  CHECK(num_whole > 0);
}

}  // namespace
}  // namespace llmb::test
