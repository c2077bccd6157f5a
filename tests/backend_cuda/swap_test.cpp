// Preempted sequences that are swapped on the CUDA backend: no bit of an answer changes.
#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <vector>

#include "backend/cuda/cuda_backend.h"
#include "core/layer_groups.h"
#include "model/config_loader.h"
#include "tests/support/cut_rows.h"
#include "tests/support/plan_builder.h"
#include "tests/support/scheduled_run.h"
#include "tests/support/source_dir.h"
#include "tests/support/window_requests.h"

namespace llmb::test {
namespace {

std::unique_ptr<Backend> load(const std::string& model, DType kv_dtype, int32_t num_blocks, double swap_space_gib) {
  const std::string dir = source_dir() + "/data/fixtures/models/" + model;
  LoadOptions o;
  o.model_dir = dir;
  o.groups_layers = true;
  o.block_size = 8;
  o.num_blocks_override = num_blocks;
  o.swap_space_gib = swap_space_gib;
  o.max_num_seqs = 4;
  o.max_num_batched_tokens = 40;
  o.max_model_len = 64;
  o.num_threads = 1;
  o.dtype = DType::kBF16;
  o.kv_cache_dtype = kv_dtype;
  o.cuda.deterministic = true;
  return loaded(make_cuda_backend(0), load_model_config(dir).value(), o);
}

TEST_CASE("swapped and not, answers are equal bit by bit; so many blocks fit the host's pool as were asked for") {
  int64_t num_preemptions = 0, num_swaps_out = 0, num_swaps_in = 0;
  const std::pair<const char*, DType> cases[] = {
      {"qwen2", DType::kBF16}, {"qwen2-window", DType::kBF16}, {"qwen2-window", DType::kI8},
      {"qwen2-window", DType::kF8}, {"gemma4", DType::kBF16}, {"deepseek_v3", DType::kBF16}};
  for (const auto& [model, kv_dtype] : cases) {
    CAPTURE(model);
    CAPTURE(dtype_name(kv_dtype));
    const auto requests = window_requests({25, 30, 17}, 26);
    SchedulerConfig config;
    config.max_num_seqs = 4;
    config.max_num_batched_tokens = 9;
    config.max_model_len = 64;
    config.enable_prefix_caching = true;
    const auto ample = load(model, kv_dtype, 100, 0);
    CHECK(ample->info().num_host_blocks == 0);
    const ScheduledRun expected = run_scheduled(*ample, config, nullptr, requests);
    const std::vector<int32_t>& windows = ample->info().kv.groups.windows;
    config.preemption = PreemptionMode::kSwap;
    const auto small = load(model, kv_dtype, static_cast<int32_t>(max_live_blocks(windows, 8, 9, 8)) + 2, 1);
    CHECK(small->info().num_host_blocks == 4 * max_live_blocks(windows, 8, 40, 8));  // what all sequences can fill
    const ScheduledRun run = run_scheduled(*small, config, nullptr, requests);
    const bool is_same = run.answers == expected.answers;
    CHECK(is_same);
    num_preemptions += run.num_preemptions;
    num_swaps_out += run.num_swaps_out;
    num_swaps_in += run.num_swaps_in;
    const double bytes = 3.5 * static_cast<double>(small->info().kv.bytes_per_block());
    CHECK(load(model, kv_dtype, 50, bytes / (1 << 30))->info().num_host_blocks == 3);
  }
  CHECK(num_preemptions > 0);
  CHECK(num_swaps_out > 0);
  CHECK(num_swaps_in > 0);
}

TEST_CASE("wherever in a block a row is cut, it goes on behind what it had, and computes nothing again") {
  const std::pair<const char*, DType> cases[] = {
      {"qwen2", DType::kBF16}, {"qwen2-window", DType::kI8}, {"gemma4", DType::kBF16}, {"deepseek_v3", DType::kBF16}};
  for (const auto& [model, kv_dtype] : cases) {
    CAPTURE(model);
    CAPTURE(dtype_name(kv_dtype));
    SchedulerConfig config;
    config.max_num_seqs = 4;
    config.max_num_batched_tokens = 9;
    config.max_model_len = 64;
    const auto ample = load(model, kv_dtype, 100, 0);
    const std::vector<int32_t>& windows = ample->info().kv.groups.windows;
    const auto small = load(model, kv_dtype, static_cast<int32_t>(max_live_blocks(windows, 5, 9, 8)) + 2, 1);
    const CutRows cut = check_cut_rows(*ample, *small, config, 14, {10, 11, 12}, 26);
    CHECK(cut.num_preemptions > 0);
    CHECK(cut.num_swaps_in > 0);
  }
}

}  // namespace
}  // namespace llmb::test
