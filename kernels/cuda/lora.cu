// Bound by bytes where rows have adapters of their own: each matrix is read once. Rows of an item share what is read.
//
// Shrink, in 16 bits: a block makes the sums of 16 ranks for the rows of one item, or of up to 4 with one adapter, as
// products of tensor cores: ranks are rows, the item's rows columns. Its warps share out k, and their sums are added in
// order. Shrink, float or without packs: a warp makes a rank's sums. Expand: a thread adds to a pack of columns of an
// item's rows, rank after rank, with up to 16 ranks on their way. Not timed yet.
#include "kernels/cuda/lora.h"

#include <type_traits>

#include "core/types.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/pack.h"
#include "kernels/cuda/ptx.h"
#include "kernels/cuda/tuning.h"
#include "kernels/cuda/warp.h"

namespace llmb::cuda {

namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarp;
constexpr int kRankBlocks = 4;  // blocks of an item, or of items: 16 ranks at a time
constexpr int kRows = kLoraItemRows;

constexpr int kTileRanks = 16, kTileSums = kTileRanks * kRows;
constexpr int kShrinkWarps = 8, kShrinkThreads = kShrinkWarps * kWarp;
constexpr int kChunk = 64;  // of k: a warp's reads of a row

constexpr int kExpandThreads = 64;
constexpr int kExpandBlocks = 6;         // of a multiprocessor, at least
constexpr int kWindow = kExpandThreads;  // ranks that a block of expand has in shared memory

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

// The numbers [k, k + 8) of a row, zeros where there are none. Not a branch: reads are on their way together.
__device__ __forceinline__ Pack<uint32_t, 4> load_words(const void* row, int32_t k, int32_t size) {
  const auto* const packs = static_cast<const Pack<uint32_t, 4>*>(row);
  Pack<uint32_t, 4> words = packs[k < size ? k / kPackWidth : 0];
#pragma unroll
  for (uint32_t& word : words.values) word = k < size ? word : 0;
  return words;
}

// The sums of 16 ranks at a time for kItems items of one adapter. Lane l reads 16 bytes of ranks l / 4 and l / 4 + 8
// and of the item's row l / 4: fragments of both hold the same numbers of k, in an order of their own. A row's sums are
// in the same order wherever it stands.
template <class T, int kItems>
__device__ __forceinline__ void shrink_items(const LoraItem* items, int32_t num_items, const LoraProduct& product,
                                             const int32_t* row_ids, RowRange range, const T* x, int32_t in_features,
                                             float* partial, float* t) {
  constexpr int kChunks = kItems == 1 ? 4 : kItems == 2 ? 2 : 1;  // on their way at a time
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const T* from[kItems];
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const int32_t at = i < num_items ? items[i].row_begin + lane / 4 : 0;
    const int32_t row = i < num_items && at < items[i].row_end ? row_ids[at] : -1;
    from[i] = x + int64_t{range.has(row) ? row - range.first : 0} * in_features;
  }
  const int32_t num_ranks = product.num_ranks;
  for (int32_t rank = blockIdx.y * kTileRanks; rank < num_ranks; rank += gridDim.y * kTileRanks) {
    const T* a[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int32_t own = min(rank + half * 8 + lane / 4, num_ranks - 1);
      const LoraPart& part = part_of_rank(product, own);
      a[half] = row_of<T>(part.a, own - part.rank_begin, in_features);
    }
    float sums[kItems][4] = {};
    for (int32_t begin = warp * kChunk; begin < in_features; begin += kShrinkWarps * kChunk * kChunks) {
      Pack<uint32_t, 4> w[kChunks][2][2], v[kChunks][2][kItems];
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int32_t k = begin + c * kShrinkWarps * kChunk + half * (kChunk / 2) + lane % 4 * kPackWidth;
          w[c][half][0] = load_words(a[0], k, in_features);
          w[c][half][1] = load_words(a[1], k, in_features);
#pragma unroll
          for (int i = 0; i < kItems; ++i) v[c][half][i] = load_words(from[i], k, in_features);
        }
      }
#pragma unroll
      for (int c = 0; c < kChunks; ++c)
#pragma unroll
        for (int half = 0; half < 2; ++half)
#pragma unroll
          for (int word = 0; word < 4; word += 2)
#pragma unroll
            for (int i = 0; i < kItems; ++i) {
              const uint32_t(&low)[4] = w[c][half][0].values, (&high)[4] = w[c][half][1].values;
              const uint32_t(&of_row)[4] = v[c][half][i].values;
              ptx::mma_m16n8k16<T>(sums[i], {low[word], high[word], low[word + 1], high[word + 1]},
                                   {of_row[word], of_row[word + 1]});
            }
    }
#pragma unroll
    for (int i = 0; i < kItems; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        partial[(warp * kItems + i) * kTileSums + (lane % 4 * 2 + e % 2) * kTileRanks + lane / 4 + e / 2 * 8] =
            sums[i][e];
    __syncthreads();
    for (int i = threadIdx.x; i < kItems * kTileSums; i += kShrinkThreads) {
      const int item = i / kTileSums, row = i % kTileSums / kTileRanks, own = rank + i % kTileRanks;
      if (item >= num_items || own >= num_ranks || items[item].row_begin + row >= items[item].row_end) continue;
      float sum = partial[i];
#pragma unroll
      for (int w = 1; w < kShrinkWarps; ++w) sum += partial[w * kItems * kTileSums + i];
      t[int64_t{items[item].row_begin + row} * kMaxLoraRanks + own] = part_of_rank(product, own).scale * sum;
    }
    __syncthreads();
  }
}

// t[row_id][rank] = scale * A[rank] x[row], T of 16 bits, in packs.
template <class T, int kItems>
__global__ void __launch_bounds__(kShrinkThreads, 2)
    lora_shrink_mma_kernel(const LoraItem* __restrict__ items, int32_t num_items, const int32_t* __restrict__ row_ids,
                           RowRange range, int32_t product_index, const T* __restrict__ x, int32_t in_features,
                           float* __restrict__ t) {
  ptx::follow_previous_grid();
  __shared__ float partial[kShrinkWarps * kItems * kTileSums];
  items += int64_t{blockIdx.x} * kItems;
  num_items = min(num_items - static_cast<int32_t>(blockIdx.x) * kItems, kItems);
  const LoraProduct* products = nullptr;
  bool is_one = true;
  for (int i = 0; i < num_items; ++i) {
    if (items[i].row_begin == items[i].row_end) continue;
    is_one = is_one && (products == nullptr || products == items[i].products);
    products = items[i].products;
  }
  if (products == nullptr) return;
  if (is_one)
    return shrink_items<T, kItems>(items, num_items, products[product_index], row_ids, range, x, in_features, partial,
                                   t);
  if constexpr (kItems > 1) {
    for (int i = 0; i < num_items; ++i)
      if (items[i].row_begin < items[i].row_end)
        shrink_items<T, 1>(items + i, 1, items[i].products[product_index], row_ids, range, x, in_features, partial, t);
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

// The part of a product that a column belongs to.
struct OwnPart {
  int32_t rank_begin = 0, rank_end = 0;  // none: out keeps what it has
  int32_t column = 0;                    // counted from the part's first
};

// What the columns of an expand block have in common, in shared memory.
template <class T>
struct ExpandShared {
  const T* b[kWindow];  // rows of B
  float factors[kWindow][kRows];
};

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
    const int32_t row = row_ids[item.row_begin + (i < num_rows ? i : 0)];
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
#pragma unroll
      for (int r = 0; r < kRanks; ++r) {
        if (first + r >= end) break;
        float numbers[kWidth];
#pragma unroll
        for (int j = 0; j < kWidth; ++j) numbers[j] = to_float(w[r].values[j]);
#pragma unroll
        for (int i = 0; i < kNumRows; ++i) {
          const float factor = shared->factors[first + r - window][i];
#pragma unroll
          for (int j = 0; j < kWidth; ++j) sums[i][j] = fmaf(numbers[j], factor, sums[i][j]);
        }
      }
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
                       int32_t product_index, const float* t, Out* __restrict__ out,
                       int32_t out_features) {
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

template <class T, int kItems>
void launch_shrink_mma(const LoraRows& rows, int32_t product, const T* x, int64_t in_features, float* t,
                       cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(ceil_div(rows.num_items, kItems));
  launch_ahead({dim3(blocks, kRankBlocks), dim3(kShrinkThreads), 0, stream}, lora_shrink_mma_kernel<T, kItems>,
               rows.items, rows.num_items, rows.row_ids, RowRange{rows.first_row, rows.end_row}, product, x,
               static_cast<int32_t>(in_features), t);
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
    launch_ahead({dim3(static_cast<unsigned>(rows.num_items), kRankBlocks), dim3(kThreads), 0, stream},
                 lora_shrink_kernel<T, kWidth>, rows.items, rows.row_ids, RowRange{rows.first_row, rows.end_row},
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
