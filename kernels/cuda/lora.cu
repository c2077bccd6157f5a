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

template <class T>
__device__ __forceinline__ const T* row_of(const LoraMatrix& m, int32_t row, int32_t width) {
  if (row < m.rows_in_first) return static_cast<const T*>(m.first) + int64_t{row} * width;
  row -= m.rows_in_first;
  return static_cast<const T*>(m.pages[row / m.rows_per_page]) + int64_t{row % m.rows_per_page} * width;
}

// Rows of an item outside of [first, end) read and write the first one's place in x, and nothing in out.
struct RowRange {
  int32_t first, end;
  __device__ __forceinline__ bool has(int32_t row) const { return row >= first && row < end; }
};

// t[row_id][rank] = scale * A[rank] x[row].
template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    lora_shrink_kernel(const LoraItem* __restrict__ items, const int32_t* __restrict__ row_ids, RowRange range,
                       int32_t product_index, const T* __restrict__ x, int32_t in_features, float* __restrict__ t) {
  ptx::follow_previous_grid();
  const LoraItem item = items[blockIdx.x];
  const int32_t num_rows = item.row_end - item.row_begin;
  if (num_rows == 0) return;
  const LoraProduct& product = item.products[product_index];
  const int lane = threadIdx.x % kWarp;
  const T* from[kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int32_t row = row_ids[item.row_begin + (i < num_rows ? i : 0)];
    from[i] = x + int64_t{range.has(row) ? row - range.first : 0} * in_features;
  }
  for (int32_t rank = blockIdx.y * kWarps + threadIdx.x / kWarp; rank < product.num_ranks; rank += kRankBlocks * kWarps) {
    const LoraPart& part = part_of_rank(product, rank);
    const T* const a = row_of<T>(part.a, rank - part.rank_begin, in_features);
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

// t[row_id][rank] = scale * A[token][rank].
template <class T>
__global__ void __launch_bounds__(kThreads)
    lora_look_up_kernel(const LoraItem* __restrict__ items, const int32_t* __restrict__ row_ids, int32_t product_index,
                        const TokenId* __restrict__ tokens, float* __restrict__ t) {
  ptx::follow_previous_grid();
  const LoraItem item = items[blockIdx.x];
  const int32_t num_rows = item.row_end - item.row_begin;
  if (num_rows == 0) return;
  const LoraProduct& product = item.products[product_index];
  const LoraPart& part = product.parts[0];
  for (int32_t i = threadIdx.x; i < num_rows * product.num_ranks; i += kThreads) {
    const int32_t row = item.row_begin + i / product.num_ranks, rank = i % product.num_ranks;
    const T* const of_token = row_of<T>(part.a, tokens[row_ids[row]], product.num_ranks);
    t[int64_t{row} * kMaxLoraRanks + rank] = part.scale * to_float(of_token[rank]);
  }
}

// out[row] += B t[row_id].
template <class T, class Out, int kWidth>
__global__ void __launch_bounds__(kThreads)
    lora_expand_kernel(const LoraItem* __restrict__ items, const int32_t* __restrict__ row_ids, RowRange range,
                       int32_t product_index, const float* __restrict__ t, Out* __restrict__ out,
                       int32_t out_features) {
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
    Out* to[kRows];
    bool is_kept[kRows];
    float sums[kRows][kWidth];
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      if (i >= num_rows) break;
      const int32_t row = row_ids[item.row_begin + i];
      is_kept[i] = range.has(row);
      to[i] = out + int64_t{is_kept[i] ? row - range.first : 0} * out_features + column;
      load_floats(to[i], sums[i]);
    }
    for (int32_t rank = part.rank_begin; rank < part.rank_end; ++rank) {
      float w[kWidth];
      load_floats(row_of<T>(part.b, rank - part.rank_begin, part.num_columns) + own, w);
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
      if (is_kept[i]) store_floats(sums[i], to[i]);
    }
  }
}

template <class T, class Out, int kWidth>
void launch_expand(const LoraRows& rows, int32_t product, Out* out, int64_t out_features, float* t,
                   cudaStream_t stream) {
  const auto chunks = static_cast<unsigned>(ceil_div(out_features, kThreads * kWidth));
  launch_ahead({dim3(static_cast<unsigned>(rows.num_items), chunks), dim3(kThreads), 0, stream},
               lora_expand_kernel<T, Out, kWidth>, rows.items, rows.row_ids, RowRange{rows.first_row, rows.end_row},
               product, t, out, static_cast<int32_t>(out_features));
}

template <class T, class Out, int kWidth>
void launch_items(const LoraRows& rows, int32_t product, const T* x, int64_t in_features, Out* out,
                  int64_t out_features, float* t, cudaStream_t stream) {
  launch_ahead({dim3(static_cast<unsigned>(rows.num_items), kRankBlocks), dim3(kThreads), 0, stream},
               lora_shrink_kernel<T, kWidth>, rows.items, rows.row_ids, RowRange{rows.first_row, rows.end_row}, product,
               x, static_cast<int32_t>(in_features), t);
  launch_expand<T, Out, kWidth>(rows, product, out, out_features, t, stream);
}

}  // namespace

template <class T, class Out>
void lora(const LoraRows& rows, int32_t product, bool can_pack, const T* x, int64_t in_features, Out* out,
          int64_t out_features, float* t, cudaStream_t stream) {
  if (rows.num_items == 0) return;
  if (can_pack) launch_items<T, Out, kPackWidth>(rows, product, x, in_features, out, out_features, t, stream);
  else launch_items<T, Out, 1>(rows, product, x, in_features, out, out_features, t, stream);
}

template <class T>
void lora_embedding(const LoraRows& rows, int32_t product, bool can_pack, const TokenId* tokens, float* out,
                    int64_t out_features, float* t, cudaStream_t stream) {
  if (rows.num_items == 0) return;
  launch_ahead({dim3(static_cast<unsigned>(rows.num_items)), dim3(kThreads), 0, stream}, lora_look_up_kernel<T>,
               rows.items, rows.row_ids, product, tokens, t);
  if (can_pack) launch_expand<T, float, kPackWidth>(rows, product, out, out_features, t, stream);
  else launch_expand<T, float, 1>(rows, product, out, out_features, t, stream);
}

template void lora(const LoraRows&, int32_t, bool, const float*, int64_t, float*, int64_t, float*, cudaStream_t);
template void lora(const LoraRows&, int32_t, bool, const __nv_bfloat16*, int64_t, __nv_bfloat16*, int64_t, float*,
                   cudaStream_t);
template void lora(const LoraRows&, int32_t, bool, const __half*, int64_t, __half*, int64_t, float*, cudaStream_t);
template void lora(const LoraRows&, int32_t, bool, const __nv_bfloat16*, int64_t, float*, int64_t, float*,
                   cudaStream_t);
template void lora(const LoraRows&, int32_t, bool, const __half*, int64_t, float*, int64_t, float*, cudaStream_t);
template void lora_embedding<float>(const LoraRows&, int32_t, bool, const TokenId*, float*, int64_t, float*,
                                    cudaStream_t);
template void lora_embedding<__nv_bfloat16>(const LoraRows&, int32_t, bool, const TokenId*, float*, int64_t, float*,
                                            cudaStream_t);
template void lora_embedding<__half>(const LoraRows&, int32_t, bool, const TokenId*, float*, int64_t, float*,
                                     cudaStream_t);

}  // namespace llmb::cuda
