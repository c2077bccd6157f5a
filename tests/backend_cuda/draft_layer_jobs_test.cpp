// Drafts by layers behind the last one on the CUDA backend: in random schedules, small pools and over swapped blocks the
// same bytes as without; and a layer that must be right is.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "backend/cuda/cuda_backend.h"
#include "model/config_loader.h"
#include "model/eagle_layer.h"
#include "tests/support/all_schedules.h"
#include "tests/support/draft_layer_lines.h"
#include "tests/support/model_drafters.h"
#include "tests/support/source_dir.h"
#include "tests/support/test_rng.h"

namespace llmb::test {
namespace {

const std::string kFixtures = source_dir() + "/data/fixtures/";
constexpr int32_t kMaxLen = 64;

struct DraftingModel {
  std::string dir, eagle;
};

std::string lines() { return draft_layer_lines({34, 10, 34, 12, 34}); }

EngineJobOptions job_of(const DraftingModel& model) {
  EngineJobOptions o;
  o.make_backend = [] { return make_cuda_backend(0); };
  o.load.model_dir = model.dir;
  o.load.num_threads = 1;
  o.load.dtype = DType::kBF16;
  o.load.cuda.deterministic = true;
  o.config = *load_model_config(model.dir);
  o.scheduler.max_model_len = kMaxLen;
  o.scheduler.max_num_seqs = 1;
  o.scheduler.max_num_batched_tokens = 64;
  o.scheduler.block_size = o.load.block_size = 16;
  o.scheduler.num_blocks = 64;
  return o;
}

// Everything about a schedule at random; a small pool holds little more than one sequence.
void draw_schedule(TestRng& rng, bool has_small_pool, EngineJobOptions* o) {
  o->scheduler.max_num_seqs = has_small_pool ? rng.between(3, 8) : rng.between(1, 8);
  o->scheduler.max_num_batched_tokens = rng.between(5, 64);
  o->scheduler.block_size = o->load.block_size = 8 * rng.between(1, 2);
  const int32_t blocks_of_one = kMaxLen / o->scheduler.block_size;
  o->scheduler.num_blocks = has_small_pool ? blocks_of_one + rng.between(0, 2) : 64;
  o->scheduler.enable_prefix_caching = rng.chance(0.75);
  if (rng.chance(0.5)) {
    o->scheduler.preemption = PreemptionMode::kSwap;
    o->load.swap_space_gib = 1;
  }
  o->scheduler.max_num_drafts = rng.between(4, 40);
}

struct Drafted {
  SpeculationMetrics::Kind drafts;
  int64_t num_preemptions = 0;
};

Drafted check_same(const std::string& expected, EngineJobOptions o, const DraftingModel& model, DraftSetup setup) {
  setup.by = DraftBy::kLayers;
  setup.num_layers = 0;
  setup.max_model_len = o.scheduler.max_model_len;
  if (model.eagle.empty()) o.config.mtp.is_used = true;
  else EagleFiles::open(model.eagle, o.config).value().describe(&o.config);
  o.load.eagle_dir = model.eagle;
  const SteadyClock clock;
  StepCost cost;
  const auto speculator = make_speculator(setup, &o, cost, clock);
  o.proposer = speculator.get();
  o.step_cost = &cost;
  o.scheduler.allows_trees = setup.is_tree;
  const EngineJob job(lines());
  const EngineJobOutcome outcome = job.run(o);
  REQUIRE_MESSAGE(outcome.status.ok(), outcome.status.message());
  CHECK(job.output() == expected);
  return {speculator->metrics().drafters.back(), outcome.num_preemptions};
}

}  // namespace

TEST_CASE("deterministic: drafts by a layer behind the last one change no byte in random schedules, and some are right") {
  TestRng rng(25);
  int64_t num_preemptions = 0;
  for (const DraftingModel& model :
       {DraftingModel{kFixtures + "mtp/qwen3_5-text", ""}, {kFixtures + "mtp/qwen3_next", ""},
        {kFixtures + "mtp/deepseek_v3", ""}, {kFixtures + "mtp/glm4_moe", ""},
        {kFixtures + "models/llama-gqa", kFixtures + "eagle/llama-gqa"},
        {kFixtures + "models/qwen3", kFixtures + "eagle/qwen3-3"}}) {
    CAPTURE(model.dir);
    const EngineJobOptions whole = job_of(model);
    const EngineJob plain(lines());
    REQUIRE(plain.run(whole).status.ok());
    int64_t num_drafted = 0, num_accepted = 0;
    for (int i = 0; i < (runs_all_schedules() ? 8 : 2); ++i) {
      CAPTURE(i);
      EngineJobOptions o = whole;
      draw_schedule(rng, i % 2 == 1, &o);
      const bool is_tree = i % 4 == 1 && !o.config.has_states();
      const Drafted drafted = check_same(plain.output(), o, model,
                                         {.max_tokens = rng.between(1, 6), .num_blocks = rng.between(6, 60),
                                          .looks_up = i % 4 == 3, .is_tree = is_tree});
      num_drafted += drafted.drafts.num_drafted, num_accepted += drafted.drafts.num_accepted;
      num_preemptions += drafted.num_preemptions;
    }
    MESSAGE(model.dir << ": " << num_accepted << " of " << num_drafted << " drafts are right");
    CHECK(num_drafted > 0);
    CHECK(num_accepted > 0);
  }
  CHECK(num_preemptions > 0);
}

}  // namespace llmb::test
