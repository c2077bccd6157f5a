// States of the online softmax that the launch over shared prefixes leaves and each sequence's own launch goes on from:
// as they are in the registers, so that a row's bits are those of one walk through all positions.
#pragma once

#include "kernels/cuda/paged_attention_tiles.h"

namespace llmb::cuda::attention {

// Which rows an item has.
enum class ItemKind {
  kChain,      // consecutive tokens of a sequence
  kTree,       // or one that may be a tree's row behind its place
  kContinued,  // consecutive tokens, which may begin with states
  kShared      // of several sequences, over positions that all of them share, as far as their windows reach
};

// Number of the row's state in its first piece. Of a shared item: in the item's piece.
template <class T>
__device__ int64_t state_of(const Args<T>& args, const AttentionItem& item, int row) {
  const int token = token_of(args, item.row_begin + row);
  const int head = item.kv_head * args.group + (item.row_begin + row - token * args.group);
  return item.shared.first + int64_t{token} * args.num_heads + head;
}

// find_row() of a shared item.
template <class T>
__device__ Row find_shared_row(const Args<T>& args, const AttentionItem& item, int row) {
  const int index = token_of(args, item.row_begin + row);
  const int token = args.work.shared.tokens[item.query_start + index];
  return {token, item.kv_head * args.group + (item.row_begin + row - index * args.group),
          args.work.shared.positions[token]};
}

template <ItemKind kKind, class T>
__device__ Row find_row_of(const Args<T>& args, const AttentionItem& item, int row) {
  if constexpr (kKind == ItemKind::kShared) return find_shared_row(args, item, row);
  return find_row(args, item, row);
}

template <ItemKind kKind, class T>
__device__ RowPair find_rows_of(const Args<T>& args, const AttentionItem& item, int first_row) {
  if constexpr (kKind != ItemKind::kShared) {
    return find_rows(args, item, first_row);
  } else {
    RowPair pair;
#pragma unroll
    for (int h = 0; h < 2; ++h) pair.row[h] = find_shared_row(args, item, min(first_row + 8 * h, item.num_rows - 1));
    return pair;
  }
}

// The least and the greatest position of a warp's kRows rows of a shared item; the same in every lane.
struct PositionRange {
  int first, last;
};

template <int kRows, class T>
__device__ PositionRange find_shared_range(const Args<T>& args, const AttentionItem& item, int first_row) {
  const int row = min(first_row + static_cast<int>(threadIdx.x) % kRows, item.num_rows - 1);
  const int position = find_shared_row(args, item, row).position;
  PositionRange range{position, position};
#pragma unroll
  for (int step = 1; step < kRows; step *= 2) {
    range.first = min(range.first, __shfl_xor_sync(kAllLanes, range.first, step));
    range.last = max(range.last, __shfl_xor_sync(kAllLanes, range.last, step));
  }
  return range;
}

// A warp's 16 rows, the first of which is `first_row` of a shared item.
template <class T, int kDim>
__device__ void write_states(const Args<T>& args, const AttentionItem& item, int first_row, const OnlineRows& online,
                             const float (&values)[kDim / 8][4]) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = first_row + lane / 4 + 8 * h;
    if (row >= item.num_rows) continue;
    const int64_t state = state_of(args, item, row);
    float* stats = args.work.shared.stats + state * kStateStats;
    stats[lane % 4] = online.sum[h];
    if (lane % 4 == 0) stats[4] = online.max[h];
    float* to = args.work.shared.values + state * args.head_dim + lane % 4 * 2;
#pragma unroll
    for (int c = 0; c < kDim / 8; ++c)
      if (8 * c < args.head_dim)
        *reinterpret_cast<float2*>(to + 8 * c) = make_float2(values[c][2 * h], values[c][2 * h + 1]);
  }
}

// A lane's part of what pieces left of a row.
template <int kDim>
struct RowState {
  float max, sum;
  float2 values[kDim / 8];
};

// Reads a lane's part of a row's values as write_states() has them.
template <int kDim>
struct ReadPairs {
  __device__ void operator()(const float* row, int head_dim, float2 (&values)[kDim / 8]) const {
    const int pair = threadIdx.x % 4 * 2, last = head_dim - 8;
#pragma unroll
    for (int c = 0; c < kDim / 8; ++c)  // past head_dim, where nobody reads results: its last eight columns again
      values[c] = __ldcg(reinterpret_cast<const float2*>(row + min(8 * c, last) + pair));
  }
};

template <int kDim, class Read, class T>
__device__ __forceinline__ RowState<kDim> read_state(const Args<T>& args, int64_t state) {
  const float* stats = args.work.shared.stats + state * kStateStats;
  RowState<kDim> row;
  row.max = __ldcg(stats + 4);
  row.sum = __ldcg(stats + threadIdx.x % 4);
  Read()(args.work.shared.values + state * args.head_dim, args.head_dim, row.values);
  return row;
}

// The reverse of write_states, of an item that continues_states(): every kStep-th piece from `first_piece` on, merged
// in order; Read says which of a row's values are this lane's. The first is taken as it is. A piece's numbers are all
// asked for before any of them is used: one after the other their loads took longer than the attention that they spare.
template <class T, int kDim, int kStep = 1, class Read = ReadPairs<kDim>>
__device__ void load_states(const Args<T>& args, const AttentionItem& item, int first_row, OnlineRows* online,
                            float (&values)[kDim / 8][4], int first_piece = 0) {
  constexpr int kRows = kDim > 128 ? 1 : 2;  // at once, as registers allow
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int first = 0; first < 2; first += kRows) {
    int64_t state[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r)
      state[r] = state_of(args, item, min(first_row + lane / 4 + 8 * (first + r), item.num_rows - 1));
    for (int piece = first_piece; piece < item.shared.num_pieces; piece += kStep) {
      RowState<kDim> row[kRows];
#pragma unroll
      for (int r = 0; r < kRows; ++r)
        row[r] = read_state<kDim, Read>(args, state[r] + int64_t{piece} * item.shared.stride);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const int h = first + r;
        const float max = fmaxf(online->max[h], row[r].max), keep = weight(online->max[h] * args.fold, max * args.fold);
        const bool is_first = piece == first_piece;
        const float add = is_first ? 1.0f : weight(row[r].max * args.fold, max * args.fold);
        online->max[h] = max;
        online->sum[h] = is_first ? row[r].sum : fmaf(row[r].sum, add, online->sum[h] * keep);
#pragma unroll
        for (int c = 0; c < kDim / 8; ++c) {
          const float2 x = row[r].values[c];
          values[c][2 * h] = is_first ? x.x : fmaf(x.x, add, values[c][2 * h] * keep);
          values[c][2 * h + 1] = is_first ? x.y : fmaf(x.y, add, values[c][2 * h + 1] * keep);
        }
      }
    }
  }
}

}  // namespace llmb::cuda::attention
