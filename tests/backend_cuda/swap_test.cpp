// Preempted sequences that are swapped on the CUDA backend: no bit of an answer changes.
#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <vector>

#include "backend/cuda/cuda_backend.h"
#include "core/layer_groups.h"
#include "model/config_loader.h"
#include "tests/support/check_ok.h"
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
  o.receives_prompts = swap_space_gib > 0;
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

// A prompt of two blocks and a bit: one backend computes it, another one is given the blocks and goes on.
TEST_CASE("blocks that another backend gave hold what they held there; plans in flight see what was there before") {
  const std::pair<const char*, DType> cases[] = {
      {"qwen2", DType::kBF16}, {"qwen2", DType::kI8},        {"qwen2", DType::kF8}, {"deepseek_v3", DType::kBF16},
      {"lfm2", DType::kBF16},  {"nemotron_h", DType::kBF16}, {"qwen3_next", DType::kI8}};
  for (const auto& [model, kv_dtype] : cases) {
    CAPTURE(model);
    CAPTURE(dtype_name(kv_dtype));
    std::vector<TokenId> prompt;
    for (int i = 0; i < 21; ++i) prompt.push_back((7 * i + 3) % 60);
    SampleRow greedy;
    greedy.num_logprobs = 5;
    const auto run = [](Backend& backend, const StepPlan& plan, bool waits = true) {
      StepOutput output;
      check_ok(backend.submit(plan));
      if (waits) check_ok(backend.wait(&output));
      return output.top_logprobs;
    };
    const auto first = load(model, kv_dtype, 20, 1), second = load(model, kv_dtype, 30, 1);
    const auto size = static_cast<size_t>(first->info().block_bytes);
    const auto state_size = static_cast<size_t>(first->info().state_bytes);
    REQUIRE(size > 0);
    REQUIRE(second->info().block_bytes == first->info().block_bytes);
    REQUIRE(second->info().state_bytes == first->info().state_bytes);
    const bool has_state = state_size > 0;
    const int32_t from = has_state ? 6 : -1, to = has_state ? 3 : -1;  // state slots
    const auto plan_of = [&](int32_t begin, int32_t count, const std::vector<BlockId>& blocks,
                             const std::optional<SampleRow>& sample, int32_t state) {
      return PlanBuilder(8).add(prompt, begin, count, blocks, sample).with_state(state).plan();
    };
    run(*first, plan_of(0, 16, {11, 5}, {}, from));
    std::vector<uint8_t> bytes(2 * size + state_size), zeros(2 * size + state_size);
    first->read_blocks(std::vector<BlockId>{11, 5}, from, bytes);
    const auto expected = run(*first, plan_of(16, 5, {11, 5, 3}, greedy, from));
    REQUIRE_FALSE(expected.empty());
    second->write_host_blocks(std::vector<BlockId>{1, 4}, to, bytes);
    StepPlan plan = plan_of(16, 5, {20, 2, 9}, greedy, has_state ? 5 : -1);
    plan.swaps_in = {{0, 1, 20}, {0, 4, 2}};
    if (has_state) plan.state_copies = {{to, 5}};
    run(*second, plan, /*waits=*/false);
    second->write_host_blocks(std::vector<BlockId>{4, 1}, to, zeros);
    StepOutput output;
    check_ok(second->wait(&output));
    CHECK(output.top_logprobs == expected);
    CHECK(run(*second, plan) != expected);  // of zeros
    std::vector<uint8_t> swapped(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(size));
    swapped.insert(swapped.end(), bytes.end() - static_cast<ptrdiff_t>(state_size), bytes.end());
    second->write_host_blocks(std::vector<BlockId>{1}, to, swapped);
    run(*second, plan);
    std::vector<uint8_t> read(size + state_size);
    second->read_blocks(std::vector<BlockId>{20}, to, read);
    CHECK(read == swapped);
  }
}

}  // namespace
}  // namespace llmb::test
