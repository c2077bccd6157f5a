// Sequences that are preempted and go on while steps run in two parts have the bytes that they have in a pool that holds all,
// in steps of one part: computed again and swapped, in any order of the two streams. On the host layer, which draws that.
#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <vector>

#include "backend/cuda/cuda_backend.h"
#include "core/layer_groups.h"
#include "kernels/simt/settings.h"
#include "model/config_loader.h"
#include "tests/backend_cuda/stream_order.h"
#include "tests/support/plan_builder.h"
#include "tests/support/scheduled_run.h"
#include "tests/support/scripted_proposer.h"
#include "tests/support/source_dir.h"
#include "tests/support/window_requests.h"

namespace llmb::test {
namespace {

constexpr int32_t kBlockSize = 8, kMaxModelLen = 64;

// Counts the steps of several sequences, which have a border, that swap.
class Counted final : public Backend {
 public:
  explicit Counted(std::unique_ptr<Backend> inner) : inner_(std::move(inner)) {}
  Status load(const ModelConfig& config, const LoadOptions& options) override { return inner_->load(config, options); }
  const BackendInfo& info() const override { return inner_->info(); }
  Status submit(const StepPlan& plan) override {
    num_with_swaps_in += plan.num_entries() > 1 && !plan.swaps_in.empty();
    num_with_swaps_out += plan.num_entries() > 1 && !plan.swaps_out.empty();
    return inner_->submit(plan);
  }
  Status wait(StepOutput* output) override { return inner_->wait(output); }

  int64_t num_with_swaps_in = 0, num_with_swaps_out = 0;

 private:
  const std::unique_ptr<Backend> inner_;
};

struct Case {
  std::string model;
  DType kv_dtype;
  bool swaps;  // else its layers have states: preempted sequences are computed again
};

ModelConfig config_of(const Case& c) {
  return load_model_config(source_dir() + "/data/fixtures/models/" + c.model).value();
}

Counted load(const Case& c, SplitMode splits, int32_t num_blocks, double swap_space_gib, int32_t max_num_drafts = 0) {
  LoadOptions o;
  o.model_dir = source_dir() + "/data/fixtures/models/" + c.model;
  o.groups_layers = true;
  o.block_size = kBlockSize;
  o.num_blocks_override = num_blocks;
  o.swap_space_gib = swap_space_gib;
  o.max_num_seqs = 4;
  o.max_num_batched_tokens = 40;
  o.max_num_drafts = max_num_drafts;
  o.max_drafts_per_group = 4;
  o.max_model_len = kMaxModelLen;
  o.num_threads = 1;
  o.dtype = DType::kBF16;
  o.kv_cache_dtype = c.kv_dtype;
  o.cuda.deterministic = true;
  return Counted(loaded(make_cuda_backend(0, nullptr, splits), config_of(c), o));
}

SchedulerConfig scheduling() {
  SchedulerConfig config;
  config.max_num_seqs = 4;
  config.max_num_batched_tokens = 9;
  config.max_model_len = kMaxModelLen;
  config.enable_prefix_caching = true;
  return config;
}

// For two sequences, so that there are two beside one that moves.
int32_t few_blocks(Backend& ample) {
  const std::vector<int32_t>& windows = ample.info().kv.groups.windows;
  return static_cast<int32_t>(max_live_blocks(windows, kMaxModelLen / kBlockSize, 9, kBlockSize)) * 2 - 1;
}

// How often some attention or a state ran: twice a layer in a step of two parts.
uint64_t num_mixers_run() { return simt::num_runs("attention") + simt::num_runs("causal_conv"); }

const Case kCases[] = {{"qwen2", DType::kBF16, true},        {"qwen2-window", DType::kI8, true},
                       {"gemma4", DType::kBF16, true},       {"deepseek_v3", DType::kBF16, true},
                       {"qwen3_5", DType::kBF16, false},     {"lfm2", DType::kBF16, false}};

TEST_CASE("preempted and computed again or swapped in the middle of steps in two parts: the bytes of steps in one, undisturbed") {
  int64_t num_preemptions[2] = {}, num_with_swaps_in = 0, num_with_swaps_out = 0;
  for (const Case& c : kCases) {
    CAPTURE(c.model);
    const auto requests = window_requests({25, 30, 17, 21}, 26);
    SchedulerConfig config = scheduling();
    Counted ample = load(c, SplitMode::kNever, 100, 0);
    const ScheduledRun expected = run_scheduled(ample, config, nullptr, requests);
    CHECK(expected.num_preemptions == 0);
    for (const bool swaps : {false, true}) {
      if (swaps && !c.swaps) continue;
      CAPTURE(swaps);
      config.preemption = swaps ? PreemptionMode::kSwap : PreemptionMode::kRecompute;
      uint64_t num_mixers[2] = {};  // of whole steps, and of steps in two parts
      for (const bool splits : {false, true}) {
        CAPTURE(splits);
        const StreamOrder order(splits ? 1 + swaps : 0);
        Counted small = load(c, splits ? SplitMode::kAlways : SplitMode::kNever, few_blocks(ample), swaps ? 1 : 0);
        const uint64_t before = num_mixers_run();
        const ScheduledRun run = run_scheduled(small, config, nullptr, requests);
        num_mixers[splits] = num_mixers_run() - before;
        const bool is_same = run.answers == expected.answers;
        CHECK(is_same);
        if (!splits) continue;
        num_preemptions[swaps] += run.num_preemptions;
        num_with_swaps_in += small.num_with_swaps_in;
        num_with_swaps_out += small.num_with_swaps_out;
      }
      CHECK(num_mixers[1] > num_mixers[0]);  // the same steps
    }
  }
  MESSAGE(num_preemptions[0] << " preempted and computed again, " << num_preemptions[1] << " swapped; steps of two parts: "
                             << num_with_swaps_out << " with swaps out, " << num_with_swaps_in << " with swaps in");
  CHECK(num_preemptions[0] > 3);
  CHECK(num_preemptions[1] > 1);
  CHECK(num_with_swaps_in > 1);
  CHECK(num_with_swaps_out > 1);
}

TEST_CASE("preempted with drafts in chains and trees that steps in two parts verify: the bytes of steps in one, undisturbed") {
  int64_t num_preemptions = 0, num_swaps_in = 0, num_drafts = 0, num_trees = 0;
  for (const bool swaps : {false, true})
    for (const Case& c : {kCases[0], kCases[1], kCases[4]}) {
      if (swaps && !c.swaps) continue;
      CAPTURE(c.model);
      CAPTURE(swaps);
      const auto requests = window_requests({25, 30, 17, 21}, 26);
      SchedulerConfig config = scheduling();
      Counted ample = load(c, SplitMode::kNever, 100, 0);
      const ScheduledRun expected = run_scheduled(ample, config, nullptr, requests);
      config.preemption = swaps ? PreemptionMode::kSwap : PreemptionMode::kRecompute;
      config.max_num_batched_tokens = 16;
      config.max_num_drafts = 8;
      config.max_drafts_per_group = 4;
      const bool has_trees = c.model == "qwen2";
      config.allows_trees = has_trees;
      const StreamOrder order(swaps ? 2 : 1);
      Counted small = load(c, SplitMode::kAlways, few_blocks(ample), swaps ? 1 : 0, 8);
      ScriptedProposer proposer(tokens_of(requests, expected.answers), config_of(c).vocab_size,
                                {.propose_rate = 0.8, .right_rate = 0.7, .tree_rate = has_trees ? 0.4 : 0.0}, 3);
      const ScheduledRun run = run_scheduled(small, config, &proposer, requests);
      const bool is_same = run.answers == expected.answers;
      CHECK(is_same);
      num_preemptions += run.num_preemptions;
      num_swaps_in += run.num_swaps_in;
      num_drafts += run.num_drafts;
      num_trees += run.num_trees;
    }
  CHECK(num_preemptions > 2);
  CHECK(num_swaps_in > 2);
  CHECK(num_drafts > 20);
  CHECK(num_trees > 3);
}

}  // namespace
}  // namespace llmb::test
