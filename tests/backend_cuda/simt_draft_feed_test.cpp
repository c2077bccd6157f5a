// A draft model on the target's GPU: steps of both are in one stream, drafts reach the step that verifies them without
// the host, and no byte depends on it. On the host layer, which counts what the host waits for.
#include <doctest/doctest.h>

#include <memory>
#include <string>

#include "backend/cuda/kv_planes.h"
#include "backend/cuda/lent_cuda_blocks.h"
#include "backend/cuda/share_cuda_queue.h"
#include "core/drafted_tokens.h"
#include "kernels/simt/stream_order.h"
#include "tests/backend_cuda/counting_backend.h"
#include "tests/backend_cuda/fed_job.h"
#include "tests/support/all_schedules.h"
#include "tests/support/source_dir.h"
#include "tests/support/tiny_model.h"

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

// Its blocks lie in the target's, which are as large only where it is computed alike.
void lend_to(DraftSetup* setup) {
  setup->find_lent_blocks = lent_cuda_blocks, setup->lend_blocks = lend_cuda_blocks;
  setup->dtype = job_options().load.dtype;
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
    DraftSetup setup = setup_of(share);
    const Drafted drafted = check_same(fed_lines(), expected, job_options(), setup);
    lend_to(&setup);
    EngineJobOptions small = job_options();
    small.scheduler.num_blocks = 9;  // that the two models take from each other
    const Drafted lent = check_same(fed_lines(), expected, small, setup);
    simt::set_interleaving(0);
    CHECK(drafted.drafts.num_accepted == in_turn.drafts.num_accepted);
    CHECK(lent.blocks.num_taken_back > 0);
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
  int64_t num_preemptions = 0, num_drafted = 0, num_accepted = 0, num_ahead = 0, num_lent = 0, num_taken_back = 0;
  const int num_own = runs_all_schedules() ? 40 : 10;  // with pools of their own
  for (int i = 0; i < num_own * 3 / 2; ++i) {
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
    if (i >= num_own) lend_to(&setup);
    const bool all_stay = i % 3 != 0;
    const Drafted drafted =
        check_same(all_stay ? of_all : of_some, all_stay ? answers_of_all : answers_of_some, o, setup);
    num_ahead += drafted.num_ahead;
    num_lent += drafted.blocks.most, num_taken_back += drafted.blocks.num_taken_back;
    num_preemptions += drafted.outcome.num_preemptions;
    num_drafted += drafted.drafts.num_drafted, num_accepted += drafted.drafts.num_accepted;
  }
  MESSAGE(num_accepted << " of " << num_drafted << " drafts are right; " << num_preemptions << " preemptions; "
                       << num_ahead << " steps behind one in flight; " << num_lent << " blocks lent, " << num_taken_back
                       << " taken back");
  CHECK(num_preemptions > 0);
  CHECK(num_lent > 10);
  CHECK(num_taken_back > 0);
  CHECK(num_accepted > num_drafted / 4);
  CHECK(num_ahead > 50);
}

TEST_CASE("drafts whose blocks lie in the target's are the same ones") {
  const std::string expected = answers_without_drafts(fed_lines());
  DraftSetup setup = setup_of(share);
  setup.dtype = job_options().load.dtype;
  const Drafted own = check_same(fed_lines(), expected, job_options(), setup);
  lend_to(&setup);
  const Drafted lent = check_same(fed_lines(), expected, job_options(), setup);
  CHECK(lent.drafts.num_drafted == own.drafts.num_drafted);
  CHECK(lent.drafts.num_accepted == own.drafts.num_accepted);
  CHECK(lent.outcome.num_steps == own.outcome.num_steps);
  CHECK(lent.num_waits == own.num_waits);
  CHECK(lent.blocks.most > 4);
}

TEST_CASE("on a GPU a draft model's blocks fill those of the target, in whole arrays") {
  struct Case {
    int32_t layers, heads, head_dim;  // of the draft model; the other one's: 32, 8, 128
    int32_t num_tokens;               // of it in a block of 16; 0: they do not fit
  };
  for (const Case& c : {Case{16, 8, 64, 64}, {32, 8, 128, 16}, {24, 2, 64, 128}, {28, 4, 64, 64}, {30, 3, 64, 0},
                        {40, 2, 64, 0}, {2, 1, 128, 16 * 16 * 8}}) {
    CAPTURE(c.layers);
    ModelConfig large = tiny_config(), small = tiny_config();
    large.num_hidden_layers = 32, large.num_key_value_heads = 8, large.head_dim = 128;
    small.num_hidden_layers = c.layers, small.num_key_value_heads = c.heads, small.head_dim = c.head_dim;
    const LoadOptions o;
    LentBlocks lent = lent_cuda_blocks(large, o, small, o);
    CHECK(lent.num_tokens() == c.num_tokens);
    if (!lent) continue;
    lent.num_blocks = 5;
    KvLayout kv = make_kv_layout(small, lent.block_size, DType::kF32, group_layers(small, 0));
    const KvPlanes planes(kv), around(make_kv_layout(large, 16, DType::kF32, group_layers(large, 0)));
    CHECK(planes.bytes(lent.num_own()) <= around.bytes(5));
    for (BlockId block = 0; block < 5; ++block) {
      std::vector<BlockId> own;
      lent.append(block, &own);
      for (const BlockId at : own)
        for (int32_t layer = 0; layer < c.layers; ++layer) {
          const KvPlanes::Place place = planes.place(layer, lent.num_own());
          for (const int64_t half : {place.keys, place.values}) {
            const int64_t begin = half + at * planes.block_bytes(), end = begin + planes.block_bytes() - 1;
            CHECK(begin / around.block_bytes() % 5 == block);
            CHECK(begin / around.block_bytes() == end / around.block_bytes());
          }
        }
    }
  }
}

TEST_CASE("a call of the runtime that fails ends the drafts or the run, and changes no byte") {
  const std::string lines = fed_lines(), expected = answers_without_drafts(lines);
  DraftSetup setup = setup_of(share);
  CHECK(count_whole_of_failing(lines, expected, job_options(), setup) > 0);
  lend_to(&setup);
  CHECK(count_whole_of_failing(lines, expected, job_options(), setup) > 0);
}

}  // namespace
}  // namespace llmb::test
