// Bound by bytes where rows have adapters of their own: each matrix is read once. Rows of an item share what is read.
//
// Shrink, in 16 bits: lora_shrink.h. Shrink, float or without packs: a warp makes a rank's sums. Expand: a thread adds
// to a pack of columns of an item's rows, rank after rank, with up to 16 ranks on their way. Not timed yet.
#include "kernels/cuda/lora.h"

#include <type_traits>
#include <utility>

#include "core/types.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/lora_shrink.h"
#include "kernels/cuda/pack.h"
#include "kernels/cuda/ptx.h"
#include "kernels/cuda/tuning.h"
#include "kernels/cuda/warp.h"

namespace llmb::cuda {

namespace {

using lora_shrink::kRows;
using lora_shrink::part_of_rank;
using lora_shrink::row_at;
using lora_shrink::row_of;
using lora_shrink::RowRange;

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarp;
constexpr int kRankBlocks = 4;  // blocks of an item, or of items: 16 ranks at a time
constexpr int kExpandThreads = 64;
constexpr int kExpandBlocks = 6;         // of a multiprocessor, at least
constexpr int kWindow = kExpandThreads;  // ranks that a block of expand has in shared memory

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
    const int32_t row = row_at(row_ids, item.row_begin + (i < num_rows ? i : 0));
    from[i] = x + int64_t{range.has(row) ? row - range.first : 0} * in_features;
  }
  for (int32_t rank = blockIdx.y * kWarps + threadIdx.x / kWarp; rank < product.num_ranks;
       rank += kRankBlocks * kWarps) {
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
    const T* const of_token = row_of<T>(part.a, tokens[row_at(row_ids, row)], product.num_ranks);
    t[int64_t{row} * kMaxLoraRanks + rank] = part.scale * to_float(of_token[rank]);
  }
}

// The part of a product that a column belongs to.
struct OwnPart {
  int32_t rank_begin = 0, rank_end = 0;  // none: out keeps what it has
  int32_t column = 0;                    // counted from the part's first
};

// In shared memory: the columns of an expand block have it in common.
template <class T>
struct ExpandShared {
  const T* b[kWindow];  // rows of B
  float factors[kWindow][kRows];
};

// Adds count ranks, or kRanks where there are more, to the sums of an item's rows.
template <class T, int kWidth, int kRanks, int kNumRows>
__device__ __forceinline__ void add_ranks(const Pack<T, kWidth> (&w)[kRanks], int32_t count,
                                          const float (*factors)[kRows], float (&sums)[kNumRows][kWidth]) {
#pragma unroll
  for (int r = 0; r < kRanks; ++r) {
    if (r >= count) break;
    float numbers[kWidth];
#pragma unroll
    for (int j = 0; j < kWidth; ++j) numbers[j] = to_float(w[r].values[j]);
#pragma unroll
    for (int i = 0; i < kNumRows; ++i) {
      const float factor = factors[r][i];
#pragma unroll
      for (int j = 0; j < kWidth; ++j) sums[i][j] = fmaf(numbers[j], factor, sums[i][j]);
    }
  }
}

template <class T, class Out, int kWidth, int kNumRows>
__device__ __forceinline__ void expand_rows(const LoraItem& item, const LoraProduct& product, const OwnPart& own,
                                            int32_t rank_begin, int32_t rank_end, const int32_t* row_ids,
                                            RowRange range, int32_t column, const float* t, Out* out,
                                            int32_t out_features, ExpandShared<T>* shared) {
  constexpr int kRanks = sizeof(T) == 4 && kWidth > 1 ? 4 : kNumRows == 1 ? 16 : 8;  // on their way at a time
  const int32_t num_rows = item.row_end - item.row_begin;
  const bool has_part = own.rank_begin < own.rank_end;
  Out* to[kNumRows];
  bool is_kept[kNumRows];
  float sums[kNumRows][kWidth];
#pragma unroll
  for (int i = 0; i < kNumRows; ++i) {
    const int32_t row = row_at(row_ids, item.row_begin + (i < num_rows ? i : 0));
    is_kept[i] = has_part && i < num_rows && range.has(row);
    to[i] = out + int64_t{range.has(row) ? row - range.first : 0} * out_features + (has_part ? column : 0);
  }
  for (int32_t window = rank_begin; window < rank_end; window += kWindow) {
    const int32_t rank = window + static_cast<int32_t>(threadIdx.x);
    if (rank < rank_end) {
      const LoraPart& part = part_of_rank(product, rank);
      shared->b[threadIdx.x] = row_of<T>(part.b, rank - part.rank_begin, part.num_columns);
    }
    __syncthreads();
    const int32_t begin = max(own.rank_begin, window), end = min(own.rank_end, window + kWindow);
    Pack<T, kWidth> w[kRanks];
    const auto load = [&](int32_t first) {
#pragma unroll
      for (int r = 0; r < kRanks; ++r)
        w[r] = *reinterpret_cast<const Pack<T, kWidth>*>(shared->b[min(first + r, end - 1) - window] + own.column);
    };
    if (begin < end) load(begin);
    if (window == rank_begin) {
      ptx::wait_for_previous_grid();  // what is read above no kernel writes
#pragma unroll
      for (int i = 0; i < kNumRows; ++i) load_floats(to[i], sums[i]);
    }
#pragma unroll
    for (int i = 0; i < kNumRows; ++i)
      if (rank < rank_end)
        shared->factors[threadIdx.x][i] = t[int64_t{item.row_begin + (i < num_rows ? i : 0)} * kMaxLoraRanks + rank];
    __syncthreads();
    for (int32_t first = begin; first < end; first += kRanks) {
      if (first > begin) load(first);
      add_ranks(w, end - first, &shared->factors[first - window], sums);
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < kNumRows; ++i)
    if (is_kept[i]) store_floats(sums[i], to[i]);
}

// out[row] += B t[row_id].
template <class T, class Out, int kWidth>
__global__ void __launch_bounds__(kExpandThreads, kExpandBlocks)
    lora_expand_kernel(const LoraItem* __restrict__ items, const int32_t* __restrict__ row_ids, RowRange range,
                       int32_t product_index, const float* t, Out* __restrict__ out, int32_t out_features) {
  ptx::launch_next_grid();
  __shared__ ExpandShared<T> shared;
  const LoraItem item = items[blockIdx.x];
  const LoraProduct* const product = item.row_begin < item.row_end ? item.products + product_index : nullptr;
  const auto first_column = static_cast<int32_t>(blockIdx.y * kExpandThreads * kWidth);
  const auto column = first_column + static_cast<int32_t>(threadIdx.x) * kWidth;
  int32_t rank_begin = kMaxLoraRanks, rank_end = 0;  // of the block's columns together
  OwnPart own;
  for (int p = 0; product != nullptr && p < kMaxLoraParts; ++p) {
    const LoraPart& part = product->parts[p];
    const int32_t begin = part.out_column, end = begin + part.num_columns;
    if (part.rank_begin == part.rank_end || begin >= first_column + kExpandThreads * kWidth || end <= first_column)
      continue;
    rank_begin = min(rank_begin, part.rank_begin), rank_end = max(rank_end, part.rank_end);
    if (column >= begin && column < end) own = {part.rank_begin, part.rank_end, column - begin};
  }
  if (rank_begin >= rank_end) return ptx::wait_for_previous_grid();
  const auto expand = [&](auto num_rows) {
    expand_rows<T, Out, kWidth, decltype(num_rows)::value>(item, *product, own, rank_begin, rank_end, row_ids, range,
                                                           column, t, out, out_features, &shared);
  };
  if (item.row_end - item.row_begin == 1) expand(std::integral_constant<int, 1>());
  else expand(std::integral_constant<int, kRows>());
}

template <class T, class Out, int kWidth>
void launch_expand(const LoraRows& rows, int32_t product, Out* out, int64_t out_features, float* t,
                   cudaStream_t stream) {
  const auto chunks = static_cast<unsigned>(ceil_div(out_features, kExpandThreads * kWidth));
  launch_ahead({dim3(static_cast<unsigned>(rows.num_items), chunks), dim3(kExpandThreads), 0, stream},
               lora_expand_kernel<T, Out, kWidth>, rows.items, rows.row_ids, RowRange{rows.first_row, rows.end_row},
               product, t, out, static_cast<int32_t>(out_features));
}

// Expand reads items before shrink has ended.
template <class... P, class... A>
void launch_first(const LoraRows& rows, const LaunchShape& shape, void (*kernel)(P...), A&&... arguments) {
  if (rows.has_new_items) launch(shape, kernel, std::forward<A>(arguments)...);
  else launch_ahead(shape, kernel, std::forward<A>(arguments)...);
}

const int32_t* x_row_ids(const LoraRows& rows) { return rows.x_row_ids != nullptr ? rows.x_row_ids : rows.row_ids; }

template <class T, int kItems>
void launch_shrink_mma(const LoraRows& rows, int32_t product, const T* x, int64_t in_features, float* t,
                       cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(ceil_div(rows.num_items, kItems));
  launch_first(rows, {dim3(blocks, kRankBlocks), dim3(lora_shrink::kThreads), 0, stream},
               lora_shrink::kernel<T, kItems>, rows.items, rows.num_items, x_row_ids(rows),
               RowRange{rows.first_row, rows.end_row}, product, x, static_cast<int32_t>(in_features), t);
}

// Items of one adapter are neighbours: where there are many, several share what a block reads of A.
template <class T, int kWidth>
void launch_shrink(const LoraRows& rows, int32_t product, const T* x, int64_t in_features, float* t,
                   cudaStream_t stream) {
  if constexpr (sizeof(T) == 2 && kWidth == kPackWidth) {
    if (rows.num_items >= tuning::kFourLoraItems)
      return launch_shrink_mma<T, 4>(rows, product, x, in_features, t, stream);
    if (rows.num_items >= tuning::kTwoLoraItems)
      return launch_shrink_mma<T, 2>(rows, product, x, in_features, t, stream);
    return launch_shrink_mma<T, 1>(rows, product, x, in_features, t, stream);
  } else {
    launch_first(rows, {dim3(static_cast<unsigned>(rows.num_items), kRankBlocks), dim3(kThreads), 0, stream},
                 lora_shrink_kernel<T, kWidth>, rows.items, x_row_ids(rows), RowRange{rows.first_row, rows.end_row},
                 product, x, static_cast<int32_t>(in_features), t);
  }
}

template <class T, class Out, int kWidth>
void launch_items(const LoraRows& rows, int32_t product, const T* x, int64_t in_features, Out* out,
                  int64_t out_features, float* t, cudaStream_t stream) {
  launch_shrink<T, kWidth>(rows, product, x, in_features, t, stream);
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
