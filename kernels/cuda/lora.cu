// Bound by bytes where rows have adapters of their own: each matrix is read once. Shrink: a warp makes one rank's sums for
// the rows of an item, over packs of k. Expand: a thread adds to a pack of columns of these rows, rank after rank. Rows of
// an item share what is read.
#include "kernels/cuda/lora.h"

#include "core/types.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/pack.h"
#include "kernels/cuda/ptx.h"
#include "kernels/cuda/warp.h"

namespace llmb::cuda {

namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarp;
constexpr int kRankBlocks = 4;  // blocks of an item: 16 ranks at a time
constexpr int kRows = kLoraItemRows;

__device__ __forceinline__ const LoraPart& part_of_rank(const LoraProduct& product, int32_t rank) {
  int i = 0;
  while (i + 1 < kMaxLoraParts && rank >= product.parts[i].rank_end) ++i;
  return product.parts[i];
}

// t[row_id][rank] = scale * A[rank] x[row].
template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    lora_shrink_kernel(const LoraItem* __restrict__ items, const int32_t* __restrict__ row_ids, int32_t product_index,
                       const T* __restrict__ x, int32_t in_features, float* __restrict__ t) {
  ptx::follow_previous_grid();
  const LoraItem item = items[blockIdx.x];
  const int32_t num_rows = item.row_end - item.row_begin;
  if (num_rows == 0) return;
  const LoraProduct& product = item.products[product_index];
  const int lane = threadIdx.x % kWarp;
  const T* from[kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i)
    from[i] = x + int64_t{row_ids[item.row_begin + (i < num_rows ? i : 0)]} * in_features;
  for (int32_t rank = blockIdx.y * kWarps + threadIdx.x / kWarp; rank < product.num_ranks; rank += kRankBlocks * kWarps) {
    const LoraPart& part = part_of_rank(product, rank);
    const T* const a = static_cast<const T*>(part.a) + int64_t{rank - part.rank_begin} * in_features;
    float sums[kRows] = {};
    for (int32_t k = lane * kWidth; k < in_features; k += kWarp * kWidth) {
      float w[kWidth], v[kWidth];
      load_floats(a + k, w);
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        if (i >= num_rows) break;
        load_floats(from[i] + k, v);
#pragma unroll
        for (int j = 0; j < kWidth; ++j) sums[i] = fmaf(v[j], w[j], sums[i]);
      }
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      if (i >= num_rows) break;
      const float sum = warp_sum(sums[i]);
      if (lane == 0) t[int64_t{item.row_begin + i} * kMaxLoraRanks + rank] = part.scale * sum;
    }
  }
}

// out[row] += B t[row_id].
template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    lora_expand_kernel(const LoraItem* __restrict__ items, const int32_t* __restrict__ row_ids, int32_t product_index,
                       const float* __restrict__ t, T* __restrict__ out, int32_t out_features) {
  ptx::follow_previous_grid();
  const LoraItem item = items[blockIdx.x];
  const int32_t num_rows = item.row_end - item.row_begin;
  if (num_rows == 0) return;
  const LoraProduct& product = item.products[product_index];
  const auto column = static_cast<int32_t>((blockIdx.y * kThreads + threadIdx.x) * kWidth);
  const float* const factors = t + int64_t{item.row_begin} * kMaxLoraRanks;
  for (int p = 0; p < kMaxLoraParts; ++p) {
    const LoraPart& part = product.parts[p];
    const int32_t own = column - part.out_column;
    if (own < 0 || own >= part.num_columns) continue;
    T* to[kRows];
    float sums[kRows][kWidth];
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      if (i >= num_rows) break;
      to[i] = out + int64_t{row_ids[item.row_begin + i]} * out_features + column;
      load_floats(to[i], sums[i]);
    }
    const T* b = static_cast<const T*>(part.b) + own;
    for (int32_t rank = part.rank_begin; rank < part.rank_end; ++rank, b += part.num_columns) {
      float w[kWidth];
      load_floats(b, w);
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        if (i >= num_rows) break;
        const float factor = factors[int64_t{i} * kMaxLoraRanks + rank];
#pragma unroll
        for (int j = 0; j < kWidth; ++j) sums[i][j] = fmaf(w[j], factor, sums[i][j]);
      }
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      if (i >= num_rows) break;
      store_floats(sums[i], to[i]);
    }
  }
}

template <class T, int kWidth>
void launch_items(const LoraRows& rows, int32_t product, const T* x, int64_t in_features, T* out, int64_t out_features,
                  float* t, cudaStream_t stream) {
  const auto num_items = static_cast<unsigned>(rows.num_items);
  launch_ahead({dim3(num_items, kRankBlocks), dim3(kThreads), 0, stream}, lora_shrink_kernel<T, kWidth>, rows.items,
               rows.row_ids, product, x, static_cast<int32_t>(in_features), t);
  const auto chunks = static_cast<unsigned>(ceil_div(out_features, kThreads * kWidth));
  launch_ahead({dim3(num_items, chunks), dim3(kThreads), 0, stream}, lora_expand_kernel<T, kWidth>, rows.items,
               rows.row_ids, product, t, out, static_cast<int32_t>(out_features));
}

}  // namespace

template <class T>
void lora(const LoraRows& rows, int32_t product, bool can_pack, const T* x, int64_t in_features, T* out,
          int64_t out_features, float* t, cudaStream_t stream) {
  if (rows.num_items == 0) return;
  if (can_pack) launch_items<T, kPackWidth>(rows, product, x, in_features, out, out_features, t, stream);
  else launch_items<T, 1>(rows, product, x, in_features, out, out_features, t, stream);
}

template void lora(const LoraRows&, int32_t, bool, const float*, int64_t, float*, int64_t, float*, cudaStream_t);
template void lora(const LoraRows&, int32_t, bool, const __nv_bfloat16*, int64_t, __nv_bfloat16*, int64_t, float*,
                   cudaStream_t);
template void lora(const LoraRows&, int32_t, bool, const __half*, int64_t, __half*, int64_t, float*, cudaStream_t);

}  // namespace llmb::cuda
