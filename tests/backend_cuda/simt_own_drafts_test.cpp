// Layers that draft for their own model on a GPU: the first ones, and one behind the last; and heads, whose drafts are
// trees. Drafts reach the step that verifies them without the host, and no byte depends on it. On the host layer, which
// counts what the host waits for.
#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <vector>

#include "backend/cuda/share_cuda_queue.h"
#include "core/drafted_tokens.h"
#include "kernels/simt/stream_order.h"
#include "model/eagle_layer.h"
#include "tests/backend_cuda/counting_backend.h"
#include "tests/backend_cuda/fed_job.h"
#include "tests/support/all_schedules.h"
#include "tests/support/medusa_heads.h"
#include "tests/support/plan_builder.h"
#include "tests/support/source_dir.h"
#include "tests/support/temp_dir.h"

namespace llmb::test {
namespace {

const std::string kFixtures = source_dir() + "/data/fixtures/";

// They expect what the model does for the place before: right where texts repeat a token.
std::string heads_of(const std::string& model) {
  static const TempDir dir;
  write_heads_of_model(dir.path(), kFixtures + model);
  return dir.path();
}

// num_layers 0: a layer of EAGLE's, or the model's own behind its last one, or heads.
struct Case {
  std::string model, eagle;
  int32_t num_layers;
  bool has_heads = false;

  EngineJobOptions job() const {
    EngineJobOptions o = fed_job(kFixtures + model);
    o.scheduler.allows_trees = has_heads;
    return o;
  }
  std::string answers_without_drafts(const std::string& lines) const {
    return test::answers_without_drafts(lines, job());
  }
  EngineJobOptions drafting(EngineJobOptions o) const {
    if (num_layers > 0 || has_heads) return o;
    if (eagle.empty()) o.config.mtp.is_used = true;
    else EagleFiles::open(kFixtures + eagle, o.config).value().describe(&o.config);
    o.load.eagle_dir = eagle.empty() ? "" : kFixtures + eagle;
    return o;
  }
  DraftSetup setup(decltype(DraftSetup::own_drafts_of) own_drafts_of) const {
    if (has_heads)
      return {.by = DraftBy::kMedusa, .own_drafts_of = own_drafts_of, .heads = heads_of(model), .max_tokens = 8};
    return {.by = DraftBy::kLayers, .num_layers = num_layers, .own_drafts_of = own_drafts_of, .max_tokens = 4,
            .max_model_len = kMaxLen, .num_blocks = 40};
  }
};

// All of a model's layers are always right; one of two layers that were drawn at random is mostly wrong.
const std::vector<Case> kCases = {{"models/llama-gqa", "", 2},
                                  {"models/llama-gqa", "", 1},
                                  {"models/llama-gqa", "eagle/llama-gqa", 0},
                                  {"models/qwen3", "eagle/qwen3-3", 0},
                                  {"mtp/deepseek_v3", "", 0},
                                  {"mtp/qwen3_5-text", "", 0},
                                  {"models/llama-gqa", "", 0, /*has_heads=*/true}};

TEST_CASE("the host waits once a step: for what the model gives, not for drafts, which are those that it would see") {
  const std::string lines = fed_lines(20);
  for (const Case& c : kCases) {
    CAPTURE(c.model);
    CAPTURE(c.num_layers);
    const std::string expected = c.answers_without_drafts(lines);
    const EngineJobOptions o = c.drafting(c.job());
    const Drafted by_host = check_same(lines, expected, o, c.setup(nullptr));
    const Drafted fed = check_same(lines, expected, o, c.setup(own_cuda_drafts_of), /*sees_all=*/true);
    MESSAGE(c.model << ", " << c.num_layers << " layers: " << by_host.num_waits << " waits in "
                    << by_host.outcome.num_steps << " steps by way of the host, " << fed.num_waits << " in "
                    << fed.outcome.num_steps << " on the device; " << fed.drafts.num_accepted << " of "
                    << fed.drafts.num_drafted << " drafts are right");
    CHECK(fed.num_waits <= fed.outcome.num_steps);
    CHECK(fed.drafts.num_accepted > (c.num_layers == 2 ? fed.drafts.num_drafted * 9 / 10 : 0));
    if (c.has_heads) {  // other trees, as nobody has seen how sure the heads are
      CHECK(by_host.num_waits > by_host.outcome.num_steps * 3 / 2);
      continue;
    }
    CHECK(fed.drafts.num_drafted == by_host.drafts.num_drafted);
    CHECK(fed.drafts.num_accepted == by_host.drafts.num_accepted);
    CHECK(fed.outcome.num_steps == by_host.outcome.num_steps);
    CHECK(by_host.num_waits > 3 * fed.num_waits);
  }
}

TEST_CASE("a step is drafted for and queued while the one before it is in flight, whatever that gives") {
  const std::string lines = fed_lines(30);
  for (const Case& c : {kCases[0], kCases[2], kCases[4]}) {
    CAPTURE(c.model);
    CAPTURE(c.num_layers);
    const EngineJobOptions o = c.drafting(c.job());
    const Drafted ahead = check_same(lines, c.answers_without_drafts(lines), o, c.setup(own_cuda_drafts_of));
    MESSAGE(c.model << ": " << ahead.num_ahead << " of " << ahead.outcome.num_steps << " steps behind one in flight, "
                    << ahead.num_waits << " waits; " << ahead.drafts.num_accepted << " of " << ahead.drafts.num_drafted
                    << " drafts are right");
    CHECK(ahead.num_ahead > ahead.outcome.num_steps / 2);
    CHECK(ahead.num_waits <= ahead.outcome.num_steps);
    if (c.num_layers == 2) CHECK(ahead.drafts.num_accepted == ahead.drafts.num_drafted);
  }
}

TEST_CASE("drafts are there before they are verified, in whatever order streams run that nothing orders") {
  const std::string lines = fed_lines(20);
  for (const Case& c : {kCases[0], kCases[4], kCases[6]}) {
    CAPTURE(c.model);
    const std::string expected = c.answers_without_drafts(lines);
    const EngineJobOptions o = c.drafting(c.job());
    const Drafted in_turn = check_same(lines, expected, o, c.setup(own_cuda_drafts_of));
    simt::set_interleaving(100);
    const Drafted drafted = check_same(lines, expected, o, c.setup(own_cuda_drafts_of));
    simt::set_interleaving(0);
    CHECK(drafted.drafts.num_accepted == in_turn.drafts.num_accepted);
  }
}

Counts of_target;  // by functions without a state

OwnDrafts of_counted(Backend& target) { return own_cuda_drafts_of(static_cast<Counting&>(target).inner()); }

TEST_CASE("steps that verify drafts which only the device knows are replayed") {
  for (const Case& c : {kCases[0], kCases[4]}) {
    CAPTURE(c.model);
    const std::string lines = fed_lines(c.num_layers > 0 ? 40 : 20), expected = c.answers_without_drafts(lines);
    EngineJobOptions o = c.drafting(c.job());
    of_target = {};
    o.make_backend = [] { return std::make_unique<Counting>(make_cuda_backend(0), has_drafted, &of_target); };
    check_same(lines, expected, o, c.setup(of_counted));
    check_replayed(of_target, 6);
  }
}

TEST_CASE("deterministic: in random schedules and small pools no byte differs, whatever the rows ask for") {
  TestRng rng(27);
  int64_t num_preemptions = 0, num_drafted = 0, num_accepted = 0, num_ahead = 0;
  for (int at = 0; at < static_cast<int>(kCases.size()); ++at) {
    const Case& c = kCases[static_cast<size_t>(at)];
    CAPTURE(c.model);
    CAPTURE(c.num_layers);
    const std::string lines = mixed_lines(c.job().config.vocab_size, /*all_stay=*/at % 3 != 0);
    const std::string expected = c.answers_without_drafts(lines);
    for (int i = at; i < at + (runs_all_schedules() ? 12 : 1); ++i) {
      CAPTURE(i);
      EngineJobOptions o = c.drafting(c.job());
      draw_schedule(rng, i, &o);
      if (o.config.has_states()) o.scheduler.preemption = PreemptionMode::kRecompute, o.load.swap_space_gib = 0;
      DraftSetup setup = c.setup(own_cuda_drafts_of);
      setup.max_tokens = rng.between(1, 12);  // more than the queue holds plans, too
      setup.max_model_len = i % 5 == 4 ? 30 : kMaxLen;
      setup.num_blocks = rng.between(6, 60);
      setup.looks_up = i % 4 == 3;
      setup.drafts_always = i % 3 != 2;
      const Drafted drafted = check_same(lines, expected, o, setup);
      num_preemptions += drafted.outcome.num_preemptions;
      num_ahead += drafted.num_ahead;
      num_drafted += drafted.drafts.num_drafted, num_accepted += drafted.drafts.num_accepted;
    }
  }
  MESSAGE(num_accepted << " of " << num_drafted << " drafts are right; " << num_preemptions << " preemptions; "
                       << num_ahead << " steps behind one in flight");
  CHECK(num_preemptions > 0);
  CHECK(num_ahead > 20);
  CHECK(num_accepted > 0);
  CHECK(num_drafted > 500);
}

TEST_CASE("a call of the runtime that fails ends the drafts or the run, and changes no byte") {
  for (const Case& c : {kCases[0], kCases[6]}) {
    const std::string lines = fed_lines(c.has_heads ? 20 : 40), expected = c.answers_without_drafts(lines);
    CHECK(count_whole_of_failing(lines, expected, c.job(), c.setup(own_cuda_drafts_of)) > 0);
  }
}

TEST_CASE("a plan that drafts follows the newest of both queues, others those of their own; no layers, no queue") {
  ModelConfig config = load_model_config(kFixtures + "models/llama-gqa").value();
  LoadOptions load;
  load.model_dir = kFixtures + "models/llama-gqa";
  load.block_size = 16;
  load.num_blocks_override = 8;
  load.max_num_seqs = load.max_num_drafts = 4;
  load.max_num_batched_tokens = load.max_model_len = 32;
  load.num_threads = 1;
  load.dtype = DType::kBF16;
  const auto plain = loaded(make_cuda_backend(0), config, load);
  CHECK(own_cuda_drafts_of(*plain).queue == nullptr);
  load.drafting_layers = 1;
  const auto model = loaded(make_cuda_backend(0), config, load);
  OwnDrafts own = own_cuda_drafts_of(*model);
  REQUIRE(own.queue != nullptr);
  CHECK(own.feed->num_slots() == 8);  // of two plans
  PlanBuilder builder(16);
  builder.add({1, 2, 3}, 0, 3, {0}, SampleRow());
  const StepPlan first = builder.plan();
  PlanBuilder next_builder(16);
  next_builder.follow(0, 3, {0}, SampleRow());
  const StepPlan next = next_builder.plan();
  StepOutput output;
  StepPlan drafting = next;
  drafting.num_layers = 1;
  CHECK(!own.queue->submit(drafting).ok());  // there is none
  CHECK(model->submit(first).ok());
  CHECK(own.queue->submit(drafting).ok());
  CHECK(own.queue->submit(drafting).ok());  // behind the one before, which lies as far ahead
  CHECK(model->submit(next).ok());          // behind its own one, whatever drafts came between
  CHECK(model->wait(&output).ok());  // before those that were submitted before it
  const TokenId drawn = output.tokens.at(0);
  CHECK(model->wait(&output).ok());
  const TokenId behind = output.tokens.at(0);
  CHECK(!own.queue->submit(drafting).ok());  // the newest has run
  CHECK(own.queue->wait(&output).ok());
  CHECK(own.queue->wait(&output).ok());
  CHECK(output.tokens.size() == 1);
  // With nothing between them the same is drawn.
  CHECK(model->submit(first).ok());
  CHECK(model->submit(next).ok());
  CHECK(model->wait(&output).ok());
  CHECK(output.tokens.at(0) == drawn);
  CHECK(model->wait(&output).ok());
  CHECK(output.tokens.at(0) == behind);
}

}  // namespace
}  // namespace llmb::test
