// Bound by the latency of a launch. A thread is a sample row, or a token.
#include "kernels/cuda/text_rows.h"

#include "core/types.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/ptx.h"

namespace llmb::cuda {

namespace {

constexpr int kThreads = 128;

__global__ void __launch_bounds__(kThreads)
    find_text_rows_kernel(TextStep step, bool only_first, int32_t* begins, int32_t* ends) {
  ptx::follow_previous_grid();
  const auto i = static_cast<int32_t>(blockIdx.x * kThreads + threadIdx.x);
  if (i >= step.num_samples) return;
  const int32_t last = step.samples[i].token_row;
  const int32_t begin = last < 0 ? 0 : last - step.rows[last].index;
  begins[i] = begin;
  ends[i] = last < 0 ? 0 : only_first ? begin + 1 : last + 1;
}

__global__ void __launch_bounds__(kThreads) find_token_types_kernel(TextStep step, int32_t* types) {
  ptx::follow_previous_grid();
  const auto i = static_cast<int32_t>(blockIdx.x * kThreads + threadIdx.x);
  if (i >= step.num_tokens) return;
  const int32_t entry = step.rows[i].entry;
  types[i] = entry >= 0 && step.positions[i] >= step.entries[entry].second_text ? 1 : 0;
}

LaunchShape threads(int32_t count, cudaStream_t stream) {
  return {dim3(static_cast<unsigned>(ceil_div(count, kThreads))), dim3(kThreads), 0, stream};
}

}  // namespace

void find_text_rows(const TextStep& step, bool only_first, int32_t* begins, int32_t* ends, cudaStream_t stream) {
  if (step.num_samples == 0) return;
  launch_ahead(threads(step.num_samples, stream), find_text_rows_kernel, step, only_first, begins, ends);
}

void find_token_types(const TextStep& step, int32_t* types, cudaStream_t stream) {
  if (step.num_tokens == 0) return;
  launch_ahead(threads(step.num_tokens, stream), find_token_types_kernel, step, types);
}

}  // namespace llmb::cuda
