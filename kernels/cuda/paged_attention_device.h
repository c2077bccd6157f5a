// What the attention kernels share on the device: arguments, which row is whose, pieces and their merging.
#pragma once

#include "kernels/cuda/device.h"
#include "kernels/cuda/paged_attention.h"
#include "kernels/cuda/ptx.h"

namespace llmb::cuda::attention {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;
constexpr unsigned kAllLanes = 0xFFFFFFFFu;
constexpr float kLog2e = 1.44269504088896340736f;
constexpr float kMinusInfinity = -__builtin_huge_valf();

constexpr int max_of(int a, int b) { return a > b ? a : b; }

template <class T>
struct Args {
  const T* qkv;
  int64_t qkv_stride;
  T* out;
  const T* k;
  const T* v;
  const BlockId* block_ids;
  AttentionWork work;
  const float* alibi_slopes;
  const float* sinks;
  int32_t num_heads, num_kv_heads, group, head_dim;
  int32_t block_size, block_shift;  // block_shift: log2 of block_size, or -1
  int32_t window;                   // at most kNoWindow
  float scale, softcap;
  float softcap_rate;  // 2 * log2(e) / softcap
  bool deterministic;

  __device__ bool transforms_scores() const { return softcap > 0 || alibi_slopes != nullptr; }
};
constexpr int32_t kNoWindow = 1 << 30;  // position - window cannot overflow

// Where a row's query and result are, and what it sees.
struct Row {
  int32_t token, head, position;
};

// `row` counts from the item's first.
template <class T>
__device__ Row find_row(const Args<T>& args, const AttentionItem& item, int row) {
  const int token = (item.row_begin + row) / args.group;
  return {item.query_start + token, item.kv_head * args.group + (item.row_begin + row - token * args.group),
          item.first_position + token};
}

template <class T>
__device__ const T* query_of(const Args<T>& args, const Row& row) {
  return args.qkv + row.token * args.qkv_stride + int64_t{row.head} * args.head_dim;
}

template <class T>
__device__ T* result_of(const Args<T>& args, const Row& row) {
  return args.out + (int64_t{row.token} * args.num_heads + row.head) * args.head_dim;
}

// A row of the pools: [num_blocks, num_kv_heads, block_size].
template <class T>
__device__ uint32_t pool_row(const Args<T>& args, const AttentionItem& item, int position) {
  const unsigned p = static_cast<unsigned>(position), block_size = static_cast<unsigned>(args.block_size);
  const unsigned block = args.block_shift >= 0 ? p >> args.block_shift : p / block_size;
  const unsigned id = static_cast<unsigned>(args.block_ids[item.block_start + static_cast<int>(block)]);
  return (id * static_cast<unsigned>(args.num_kv_heads) + static_cast<unsigned>(item.kv_head)) * block_size + p -
         block * block_size;
}

// Softmax over part of a row's positions: values = sum of 2^(score - max) * v, sum = sum of 2^(score - max); scores in
// units of log2. Nothing seen: max = -infinity, sum = 0.
struct Stats {
  float max, sum;
};

// What a part's values are to be multiplied with in a merged result.
__device__ inline float weight(float part_max, float max) {
  return part_max == kMinusInfinity ? 0.0f : ptx::ex2_approx(part_max - max);
}

// The factor that makes values of `stats` the result of the item's row `row`.
template <class T>
__device__ float final_factor(const Args<T>& args, const AttentionItem& item, int row, const Stats& stats) {
  if (args.sinks == nullptr) return 1.0f / stats.sum;
  const float sink = args.sinks[find_row(args, item, row).head] * kLog2e;
  const float max = fmaxf(stats.max, sink);
  const float keep = weight(stats.max, max);
  return keep / fmaf(stats.sum, keep, ptx::ex2_approx(sink - max));
}

// A score q · k in units of log2. Only where args.transforms_scores().
template <class T>
__device__ float transform_score(const Args<T>& args, float score, float slope, int distance) {
  score *= args.scale;
  if (args.softcap > 0) {
    const float e = ptx::ex2_approx(fminf(score * args.softcap_rate, 64.0f));
    score = args.softcap * (1 - __fdividef(2, e + 1));
  }
  return fmaf(slope, static_cast<float>(distance), score) * kLog2e;
}

// A block's few shared variables, behind its tiles. The item is here rather than in registers, which are all taken.
struct BlockState {
  AttentionItem item;
  int is_last;
};

// Called by all threads of the block when a piece's partial result is written: whether the others' are too.
template <class T>
__device__ bool last_to_arrive(const Args<T>& args, BlockState* state) {
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    int32_t* counter = args.work.counters + state->item.split;
    state->is_last = atomicAdd(counter, 1) == state->item.num_pieces - 1;
    if (state->is_last) *counter = 0;
  }
  __syncthreads();
  __threadfence();
  return state->is_last;
}

// The unit's result from its pieces, in their order. Written by other blocks just now: past the first-level cache.
template <class T>
__device__ void merge_pieces(const Args<T>& args, const AttentionItem& item) {
  constexpr int kColumns = 8;  // of a lane
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (int r = warp; r < item.num_rows; r += kWarps) {
    const float* stats = args.work.partial_stats + (item.first_partial + r) * int64_t{2};
    Stats total{kMinusInfinity, 0};
    for (int p = 0; p < item.num_pieces; ++p)
      total.max = fmaxf(total.max, __ldcg(stats + int64_t{p} * item.num_rows * 2));
    for (int p = 0; p < item.num_pieces; ++p) {
      const float* part = stats + int64_t{p} * item.num_rows * 2;
      total.sum = fmaf(__ldcg(part + 1), weight(__ldcg(part), total.max), total.sum);
    }
    const float factor = final_factor(args, item, r, total);
    T* out = result_of(args, find_row(args, item, r));
    for (int column = lane; column < args.head_dim; column += kColumns * 32) {
      float acc[kColumns] = {};
      for (int p = 0; p < item.num_pieces; ++p) {
        const int64_t at = item.first_partial + int64_t{p} * item.num_rows + r;
        const float w = weight(__ldcg(args.work.partial_stats + 2 * at), total.max);
        const float* values = args.work.partials + at * args.head_dim + column;
#pragma unroll
        for (int i = 0; i < kColumns; ++i)
          if (column + 32 * i < args.head_dim) acc[i] = fmaf(__ldcg(values + 32 * i), w, acc[i]);
      }
#pragma unroll
      for (int i = 0; i < kColumns; ++i)
        if (column + 32 * i < args.head_dim) out[column + 32 * i] = from_float<T>(acc[i] * factor);
    }
  }
}

}  // namespace llmb::cuda::attention
