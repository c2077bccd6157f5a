// The first kernel of lora in 16 bits, t[row_id][rank] = scale * A[rank] x[row], and what all kernels of lora look up.
// Device code only.
//
// A block makes the sums of 16 ranks for the rows of one item, or of up to 4 with one adapter, as products of tensor
// cores: ranks are rows, the item's rows columns. Its warps share out k, and their sums are added in order.
#pragma once

#include <cstdint>

#include "kernels/cuda/device.h"
#include "kernels/cuda/lora.h"
#include "kernels/cuda/pack.h"
#include "kernels/cuda/ptx.h"
#include "kernels/cuda/warp.h"

namespace llmb::cuda::lora_shrink {

constexpr int kRows = kLoraItemRows;
constexpr int kTileRanks = 16, kTileSums = kTileRanks * kRows;
constexpr int kWarps = 8, kThreads = kWarps * kWarp;
constexpr int kChunk = 64;  // of k: a warp's reads of a row

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

// The row of x or out at an item's place.
__device__ __forceinline__ int32_t row_at(const int32_t* row_ids, int32_t place) {
  return row_ids != nullptr ? row_ids[place] : place;
}

// Rows of an item outside of [first, end) read and write the first one's place in x, and nothing in out.
struct RowRange {
  int32_t first, end;
  __device__ __forceinline__ bool has(int32_t row) const { return row >= first && row < end; }
};

// The numbers [k, k + 8) of a row, zeros where there are none. Not a branch: reads are on their way together.
__device__ __forceinline__ Pack<uint32_t, 4> load_words(const void* row, int32_t k, int32_t size) {
  const auto* const packs = static_cast<const Pack<uint32_t, 4>*>(row);
  Pack<uint32_t, 4> words = packs[k < size ? k / kPackWidth : 0];
#pragma unroll
  for (uint32_t& word : words.values) word = k < size ? word : 0;
  return words;
}

// A warp's part of k. Lane l reads 16 bytes of ranks l / 4 and l / 4 + 8 and of the item's row l / 4: fragments of both
// hold the same numbers of k, in an order of their own.
template <class T, int kItems>
__device__ __forceinline__ void add_products(const T* const (&a)[2], const T* const (&from)[kItems],
                                             int32_t in_features, float (&sums)[kItems][4]) {
  constexpr int kChunks = kItems == 1 ? 4 : kItems == 2 ? 2 : 1;  // on their way at a time
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  for (int32_t begin = warp * kChunk; begin < in_features; begin += kWarps * kChunk * kChunks) {
    Pack<uint32_t, 4> w[kChunks][2][2], v[kChunks][2][kItems];
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int32_t k = begin + c * kWarps * kChunk + half * (kChunk / 2) + lane % 4 * kPackWidth;
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
}

// The sums of 16 ranks at a time for kItems items of one adapter; a row's are in the same order wherever it stands.
template <class T, int kItems>
__device__ __forceinline__ void shrink_items(const LoraItem* items, int32_t num_items, const LoraProduct& product,
                                             const int32_t* row_ids, RowRange range, const T* x, int32_t in_features,
                                             float* partial, float* t) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const T* from[kItems];
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const int32_t at = i < num_items ? items[i].row_begin + lane / 4 : 0;
    const int32_t row = i < num_items && at < items[i].row_end ? row_at(row_ids, at) : -1;
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
    add_products<T, kItems>(a, from, in_features, sums);
#pragma unroll
    for (int i = 0; i < kItems; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        partial[(warp * kItems + i) * kTileSums + (lane % 4 * 2 + e % 2) * kTileRanks + lane / 4 + e / 2 * 8] =
            sums[i][e];
    __syncthreads();
    for (int i = threadIdx.x; i < kItems * kTileSums; i += kThreads) {
      const int item = i / kTileSums, row = i % kTileSums / kTileRanks, own = rank + i % kTileRanks;
      if (item >= num_items || own >= num_ranks || items[item].row_begin + row >= items[item].row_end) continue;
      float sum = partial[i];
#pragma unroll
      for (int w = 1; w < kWarps; ++w) sum += partial[w * kItems * kTileSums + i];
      t[int64_t{items[item].row_begin + row} * kMaxLoraRanks + own] = part_of_rank(product, own).scale * sum;
    }
    __syncthreads();
  }
}

// t[row_id][rank] = scale * A[rank] x[row], T of 16 bits, in packs.
template <class T, int kItems>
__global__ void __launch_bounds__(kThreads, 2)
    kernel(const LoraItem* __restrict__ items, int32_t num_items, const int32_t* __restrict__ row_ids, RowRange range,
           int32_t product_index, const T* __restrict__ x, int32_t in_features, float* __restrict__ t) {
  ptx::follow_previous_grid();
  __shared__ float partial[kWarps * kItems * kTileSums];
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

}  // namespace llmb::cuda::lora_shrink
