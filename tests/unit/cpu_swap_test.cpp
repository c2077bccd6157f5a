// Preempted sequences that are swapped on the CPU: no bit of an answer changes, with any KV type and any windows.
#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <vector>

#include "backend/cpu/cpu_backend.h"
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
  o.block_size = 4;
  o.num_blocks_override = num_blocks;
  o.swap_space_gib = swap_space_gib;
  o.kv_cache_dtype = kv_dtype;
  o.max_num_seqs = 8;
  o.max_num_batched_tokens = 64;
  o.max_model_len = 100;
  o.num_threads = 2;
  return loaded(make_cpu_backend(), load_model_config(dir).value(), o);
}

TEST_CASE("swapped and not, answers are equal bit by bit") {
  int64_t num_preemptions = 0, num_swaps_in = 0;
  for (const char* model : {"llama-gqa", "qwen2-window", "mistral-window", "gemma4"}) {
    for (const DType kv_dtype : {DType::kF32, DType::kBF16, DType::kI8, DType::kF8}) {
      CAPTURE(model);
      CAPTURE(dtype_name(kv_dtype));
      const auto requests = window_requests({33, 11, 42, 30, 47, 60}, 24);
      SchedulerConfig config;
      config.max_num_seqs = 8;
      config.max_num_batched_tokens = 9;
      config.max_model_len = 100;
      config.enable_prefix_caching = true;
      const auto ample = load(model, kv_dtype, 800, 0);
      CHECK(ample->info().num_host_blocks == 0);
      const ScheduledRun expected = run_scheduled(*ample, config, nullptr, requests);
      CHECK(expected.num_swaps_out == 0);
      const std::vector<int32_t>& windows = ample->info().kv.groups.windows;
      config.preemption = PreemptionMode::kSwap;
      const auto small = load(model, kv_dtype, static_cast<int32_t>(max_live_blocks(windows, 21, 9, 4)), 1);
      CHECK(small->info().num_host_blocks == 8 * max_live_blocks(windows, 25, 64, 4));  // what all sequences can fill
      CHECK(small->info().swap_bytes_per_s > 1e6);
      const ScheduledRun run = run_scheduled(*small, config, nullptr, requests);
      const bool is_same = run.answers == expected.answers;
      CHECK(is_same);
      num_preemptions += run.num_preemptions;
      num_swaps_in += run.num_swaps_in;
    }
  }
  CHECK(num_preemptions > 0);
  CHECK(num_swaps_in > 0);
}

TEST_CASE("wherever in a block a row is cut, it goes on behind what it had, and computes nothing again") {
  for (const char* model : {"llama-gqa", "gemma4", "deepseek_v3"}) {
    for (const DType kv_dtype : {DType::kF32, DType::kBF16, DType::kI8}) {
      if (std::string(model) == "deepseek_v3" && kv_dtype == DType::kI8) continue;  // latents are not stored in eight bits
      CAPTURE(model);
      CAPTURE(dtype_name(kv_dtype));
      SchedulerConfig config;
      config.max_num_seqs = 8;
      config.max_num_batched_tokens = 9;
      config.max_model_len = 100;
      const auto ample = load(model, kv_dtype, 800, 0);
      const std::vector<int32_t>& windows = ample->info().kv.groups.windows;
      const auto small = load(model, kv_dtype, static_cast<int32_t>(max_live_blocks(windows, 16, 9, 4)) + 8, 1);
      // The row is as long when the other one takes its blocks.
      const CutRows cut = check_cut_rows(*ample, *small, config, 23, {17, 18, 19, 20, 21}, 40);
      CHECK(cut.num_preemptions >= 4);
      CHECK(cut.num_swaps_in >= 4);
    }
  }
}

}  // namespace
}  // namespace llmb::test
