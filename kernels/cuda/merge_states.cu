// join_pieces, merge_states: a block is a row and head, its threads are columns. Bound by the bytes of the states.
#include "kernels/cuda/merge_states.h"

#include "kernels/cuda/device.h"

namespace llmb::cuda {

namespace {

constexpr int kThreads = 128;
constexpr float kLog2e = 1.44269504088896340736f;

// The factor of a part in what parts with this maximum make.
__device__ float part_weight(float max, float sum, float largest) { return sum == 0 ? 0.0f : exp2f(max - largest); }

__global__ void __launch_bounds__(kThreads)
    join_pieces_kernel(const RowPieces* rows, const float* partials, const float* stats, int32_t value_dim,
                       float* states) {
  const int64_t row = blockIdx.x;
  const RowPieces pieces = rows[row];
  float largest = -INFINITY, sum = 0;
  for (int32_t p = 0; p < pieces.num_pieces; ++p) {
    const int64_t at = pieces.first + int64_t{p} * pieces.stride;
    if (stats[2 * at + 1] != 0) largest = fmaxf(largest, stats[2 * at]);
  }
  float* const state = states + row * (value_dim + 2);
  for (int32_t column = threadIdx.x; column < value_dim; column += kThreads) {
    float value = 0;
    for (int32_t p = 0; p < pieces.num_pieces; ++p) {
      const int64_t at = pieces.first + int64_t{p} * pieces.stride;
      const float weight = part_weight(stats[2 * at], stats[2 * at + 1], largest);
      if (weight != 0) value = fmaf(partials[at * value_dim + column], weight, value);
    }
    state[column] = value;
  }
  if (threadIdx.x != 0) return;
  for (int32_t p = 0; p < pieces.num_pieces; ++p) {
    const int64_t at = pieces.first + int64_t{p} * pieces.stride;
    sum = fmaf(stats[2 * at + 1], part_weight(stats[2 * at], stats[2 * at + 1], largest), sum);
  }
  state[value_dim] = sum == 0 ? 0 : largest;
  state[value_dim + 1] = sum;
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    merge_states_kernel(const float* states, int32_t num_parts, int32_t num_heads, int32_t value_dim,
                        const float* sinks, T* out) {
  const int64_t row = blockIdx.x, width = value_dim + 2, part_size = gridDim.x * width;
  const float* const state = states + row * width;
  const float sink = sinks != nullptr ? sinks[row % num_heads] * kLog2e : -INFINITY;
  float largest = sink, sum = 0;
  for (int32_t p = 0; p < num_parts; ++p) {
    const float* const part = state + p * part_size + value_dim;
    if (part[1] != 0) largest = fmaxf(largest, part[0]);
  }
  if (sinks != nullptr) sum = exp2f(sink - largest);
  for (int32_t p = 0; p < num_parts; ++p) {
    const float* const part = state + p * part_size + value_dim;
    sum = fmaf(part[1], part_weight(part[0], part[1], largest), sum);
  }
  const float factor = 1.0f / sum;
  for (int32_t column = threadIdx.x; column < value_dim; column += kThreads) {
    float value = 0;
    for (int32_t p = 0; p < num_parts; ++p) {
      const float* const part = state + p * part_size;
      const float weight = part_weight(part[value_dim], part[value_dim + 1], largest);
      value = fmaf(part[column], weight, value);
    }
    out[row * value_dim + column] = from_float<T>(value * factor);
  }
}

LaunchShape block_for_each(int64_t num_rows, cudaStream_t stream) {
  return {dim3(static_cast<unsigned>(num_rows)), dim3(kThreads), 0, stream};
}

}  // namespace

void join_pieces(const RowPieces* rows, const float* partials, const float* partial_stats, int64_t num_rows,
                 int32_t value_dim, float* states, cudaStream_t stream) {
  if (num_rows == 0) return;
  launch(block_for_each(num_rows, stream), join_pieces_kernel, rows, partials, partial_stats, value_dim, states);
}

template <class T>
void merge_states(const float* states, int32_t num_parts, int64_t num_rows, int32_t num_heads, int32_t value_dim,
                  const float* sinks, T* out, cudaStream_t stream) {
  if (num_rows == 0) return;
  launch(block_for_each(num_rows, stream), merge_states_kernel<T>, states, num_parts, num_heads, value_dim, sinks, out);
}

template void merge_states(const float*, int32_t, int64_t, int32_t, int32_t, const float*, float*, cudaStream_t);
template void merge_states(const float*, int32_t, int64_t, int32_t, int32_t, const float*, __nv_bfloat16*,
                           cudaStream_t);
template void merge_states(const float*, int32_t, int64_t, int32_t, int32_t, const float*, __half*, cudaStream_t);

}  // namespace llmb::cuda
