// A draft model on the target's GPU: steps of both are in one stream, drafts reach the step that verifies them without
// the host, and no byte depends on it. On the host layer, which counts what the host waits for.
#include <doctest/doctest.h>

#include <memory>
#include <string>

#include "backend/cuda/share_cuda_queue.h"
#include "core/drafted_tokens.h"
#include "kernels/simt/stream_order.h"
#include "tests/backend_cuda/counting_backend.h"
#include "tests/backend_cuda/fed_job.h"
#include "tests/support/all_schedules.h"
#include "tests/support/source_dir.h"

namespace llmb::test {
namespace {

const std::string kModel = "/data/fixtures/models/llama-gqa";

std::unique_ptr<DraftFeed> share(Backend& target, Backend& draft) { return share_cuda_queue(target, draft); }
std::unique_ptr<DraftFeed> share_nothing(Backend&, Backend&) { return nullptr; }
std::unique_ptr<Backend> on_gpu() { return make_cuda_backend(0); }

EngineJobOptions job_options() { return fed_job(source_dir() + kModel); }
std::string answers_without_drafts(const std::string& lines) {
  return test::answers_without_drafts(lines, job_options());
}

DraftSetup setup_of(decltype(DraftSetup::share_queue) share_queue) {
  return {.model = kModel, .make_backend = on_gpu, .share_queue = share_queue, .max_tokens = 4, .max_model_len = kMaxLen,
          .num_blocks = 40, .max_num_batched_tokens = 48};
}

TEST_CASE("the host waits once a step: for what the target gives, not for drafts, which are those that it would see") {
  const std::string expected = answers_without_drafts(fed_lines());
  const Drafted by_host = check_same(fed_lines(), expected, job_options(), setup_of(share_nothing));
  const Drafted fed = check_same(fed_lines(), expected, job_options(), setup_of(share), /*sees_all=*/true);
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

TEST_CASE("a step is drafted for and queued while the one before it is in flight, whatever that gives") {
  const std::string expected = answers_without_drafts(fed_lines());
  const Drafted ahead = check_same(fed_lines(), expected, job_options(), setup_of(share));
  MESSAGE(ahead.num_ahead << " of " << ahead.outcome.num_steps << " steps behind one in flight, " << ahead.num_waits
                          << " waits; " << ahead.drafts.num_accepted << " of " << ahead.drafts.num_drafted << " right");
  CHECK(ahead.num_ahead > ahead.outcome.num_steps / 2);
  CHECK(ahead.num_waits <= ahead.outcome.num_steps);
  CHECK(ahead.drafts.num_accepted > ahead.drafts.num_drafted * 4 / 5);  // as many as by way of the host
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
  const std::string of_all = mixed_lines(/*vocab_size=*/128, /*all_stay=*/true), of_some = mixed_lines(128);
  const std::string answers_of_all = answers_without_drafts(of_all), answers_of_some = answers_without_drafts(of_some);
  TestRng rng(21);
  int64_t num_preemptions = 0, num_drafted = 0, num_accepted = 0, num_ahead = 0;
  for (int i = 0; i < (runs_all_schedules() ? 40 : 10); ++i) {
    CAPTURE(i);
    EngineJobOptions o = job_options();
    draw_schedule(rng, i, &o);
    DraftSetup setup = setup_of(share);
    setup.max_tokens = rng.between(1, 12);  // more than the draft model's backend holds plans, too
    setup.max_model_len = i % 5 == 4 ? 30 : kMaxLen;
    setup.num_blocks = rng.between(6, 40);
    setup.max_num_batched_tokens = rng.between(4, 48);
    setup.looks_up = i % 4 == 3;
    setup.drafts_always = i % 3 != 2;
    const bool all_stay = i % 3 != 0;
    const Drafted drafted =
        check_same(all_stay ? of_all : of_some, all_stay ? answers_of_all : answers_of_some, o, setup);
    num_ahead += drafted.num_ahead;
    num_preemptions += drafted.outcome.num_preemptions;
    num_drafted += drafted.drafts.num_drafted, num_accepted += drafted.drafts.num_accepted;
  }
  MESSAGE(num_accepted << " of " << num_drafted << " drafts are right; " << num_preemptions << " preemptions; "
                       << num_ahead << " steps behind one in flight");
  CHECK(num_preemptions > 0);
  CHECK(num_accepted > num_drafted / 4);
  CHECK(num_ahead > 50);
}

TEST_CASE("a call of the runtime that fails ends the drafts or the run, and changes no byte") {
  const std::string lines = fed_lines(), expected = answers_without_drafts(lines);
  CHECK(count_whole_of_failing(lines, expected, job_options(), setup_of(share)) > 0);
}

}  // namespace
}  // namespace llmb::test
