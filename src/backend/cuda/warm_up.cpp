#include "backend/cuda/warm_up.h"

#include <algorithm>
#include <exception>

#include "backend/cuda/memory_plan.h"
#include "kernels/cuda/linear.h"
#include "kernels/cuda/memory.h"

namespace llmb {

using cuda::check;

namespace {

StepPlan first_tokens(const ModelConfig& config, const LoadOptions& options, int32_t num_layer_groups, int32_t num_seqs,
                      int32_t tokens_per_seq, const SampleRow& sampling) {
  StepPlan plan;
  plan.clear();
  plan.block_size = options.block_size;
  plan.num_layer_groups = num_layer_groups;
  const auto blocks_per_seq = static_cast<int32_t>(ceil_div(tokens_per_seq, options.block_size));
  for (int32_t s = 0; s < num_seqs; ++s) {
    plan.tokens.insert(plan.tokens.end(), tokens_per_seq, 0);
    for (int32_t g = 0; g < num_layer_groups; ++g) {
      for (int32_t b = 0; b < blocks_per_seq; ++b) plan.block_ids.push_back(num_blocks_of(plan));
      plan.block_start.push_back(num_blocks_of(plan));
    }
    StepEntry& entry = plan.entries.emplace_back();
    entry.seq = s;
    entry.state_slot = config.has_states() ? s : -1;
    plan.query_start.push_back(plan.num_tokens());
    plan.groups.push_back({s, s, s, s + 1, SampleMode::kSample});
    SampleRow& row = plan.sample_rows.emplace_back(sampling);
    row.group = s;
    row.token_row = plan.num_tokens() - 1;
  }
  return plan;
}

float elapsed_ms(const cuda::Event& begin, const cuda::Event& end) {
  end.synchronize();
  float ms = 0;
  check(cudaEventElapsedTime(&ms, begin.get(), end.get()), "cudaEventElapsedTime");
  return ms;
}

}  // namespace

StepPlan worst_case_plan(const ModelConfig& config, const LoadOptions& options, int32_t num_layer_groups) {
  const int32_t num_seqs = std::min(options.max_num_seqs, options.max_num_batched_tokens);
  const int32_t tokens_per_seq = std::min(options.max_num_batched_tokens / num_seqs, options.max_model_len);
  SampleRow sampling;
  sampling.temperature = 1;
  sampling.top_k = std::min(50, config.vocab_size);
  sampling.top_p = 0.9f;
  sampling.min_p = 0.01f;
  sampling.num_logprobs = std::min(5, config.vocab_size);
  sampling.bias_end = 1;
  sampling.penalty_end = 1;
  sampling.presence_penalty = 0.5f;
  StepPlan plan = first_tokens(config, options, num_layer_groups, num_seqs, tokens_per_seq, sampling);
  plan.bias.push_back({0, 1.0f});
  plan.penalty.push_back({0, 1});
  return plan;
}

StepPlan decode_plan(const ModelConfig& config, const LoadOptions& options, int32_t num_seqs,
                     int32_t num_layer_groups) {
  return first_tokens(config, options, num_layer_groups, num_seqs, 1, SampleRow());
}

void tune_products(const StepPlan& plan, int32_t rows, bool has_mtp, CudaOps& ops, Transformer& transformer,
                   cudaStream_t stream) {
  ops.set_step(ops.stage().upload(ops.in_slices(plan), {rows, rows, rows}, stream), {});
  ops.resolve_step();
  ops.set_tuning(true);
  transformer.forward(rows, rows);
  if (has_mtp) transformer.forward_mtp(rows, rows);
  ops.set_tuning(false);
  check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
}

int32_t num_blocks_of(const StepPlan& plan) { return static_cast<int32_t>(plan.block_ids.size()); }

MachineLimits measure_device(DType dtype, cudaStream_t stream) try {
  constexpr int kRuns = 10;
  const int64_t bytes = std::min<int64_t>(int64_t{256} << 20, free_device_bytes() / 4);
  const cuda::DeviceMemory from(bytes), to(bytes);
  check(cudaMemsetAsync(from.data(), 0x3c, bytes, stream), "cudaMemsetAsync");
  const cuda::Event begin(cudaEventDefault), end(cudaEventDefault);
  const auto time = [&](const auto& body) {
    body();
    begin.record(stream);
    for (int i = 0; i < kRuns; ++i) body();
    end.record(stream);
    return elapsed_ms(begin, end) / kRuns / 1e3;
  };
  MachineLimits limits;
  limits.bytes_per_s =
      2.0 * static_cast<double>(bytes) / time([&] {
        check(cudaMemcpyAsync(to.data(), from.data(), bytes, cudaMemcpyDeviceToDevice, stream), "cudaMemcpyAsync");
      });
  int64_t n = 4096;
  while (3 * n * n * dtype_bytes(dtype) > 2 * bytes) n /= 2;
  // Three n x n matrices in the two buffers: any values do, as long as they are not all the same.
  cuda::Linear linear({dtype}, stream);
  const cuda::DeviceMemory out(n * n * dtype_bytes(dtype));
  const cuda::LinearView weight{from.data(), nullptr, n, n};
  limits.flops_per_s = 2.0 * static_cast<double>(n) * static_cast<double>(n) * static_cast<double>(n) /
                       time([&] { linear.run(weight, to.data(), n, out.data(), dtype, stream); });
  return limits;
} catch (const std::exception&) {
  return {};
}

}  // namespace llmb
