// Shared by the attention kernels on the device: arguments, which row is whose, pieces and their merging.
#pragma once

#include "kernels/cuda/device.h"
#include "kernels/cuda/paged_attention.h"
#include "kernels/cuda/ptx.h"
#include "kernels/cuda/warp.h"

namespace llmb::cuda::attention {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;
constexpr float kLog2e = 1.44269504088896340736f;
constexpr float kMinusInfinity = -__builtin_huge_valf();

constexpr int max_of(int a, int b) { return a > b ? a : b; }

template <class T>
struct Args {
  const T* qkv;
  int64_t qkv_stride;
  T* out;
  const void* k;  // of T, or bytes with the scales below
  const void* v;
  const float* k_scales;
  const float* v_scales;
  const BlockId* block_ids;
  AttentionWork work;
  const float* alibi_slopes;
  const float* sinks;
  int32_t num_heads, num_kv_heads, group, head_dim;
  int32_t value_dim;  // of results: head_dim, or less of latents
  int32_t row_stride;  // elements from a position's row of a pool to the next
  int64_t out_stride;  // the same of tokens' results
  uint32_t group_reciprocal;        // (2^32 - 1) / group
  int32_t block_size, block_shift;  // block_shift: log2 of block_size, or -1
  // From a block of the pools to the next: elements; and rows, where these are whole.
  int64_t block_stride;
  uint32_t block_rows;
  int32_t window;                   // at most kNoWindow
  int32_t later, chunk;             // AttentionShape's
  float scale, softcap;
  float softcap_rate;  // 2 * log2(e) / softcap
  float fold;          // takes scores, transformed where they are, to units of log2
  bool deterministic;

  __device__ bool transforms_scores() const { return softcap > 0 || alibi_slopes != nullptr; }
  // Whether rows may see positions of a tile that are outside of the item's visible ones, but for these.
  __device__ bool masks_borders() const { return later > 0 || chunk > 0; }
};
constexpr int32_t kNoWindow = 1 << 30;  // position - window cannot overflow

// Where a row's query and result are, and what it sees: `window` positions up to this one, or fewer where a later one
// has no key.
struct Row {
  int32_t token, head, position;
};

// The token of a row of a sequence: row / group. The product with the reciprocal is that or one less.
template <class T>
__device__ int token_of(const Args<T>& args, int row) {
  const int token = static_cast<int>(__umulhi(static_cast<unsigned>(row), args.group_reciprocal));
  return row - token * args.group < args.group ? token : token + 1;
}

// `row` counts from the item's first.
template <class T>
__device__ Row find_row(const Args<T>& args, const AttentionItem& item, int row) {
  const int token = token_of(args, item.row_begin + row);
  return {item.query_start + token, item.kv_head * args.group + (item.row_begin + row - token * args.group),
          item.first_position + token};
}

template <class T>
__device__ const T* query_of(const Args<T>& args, const Row& row) {
  return args.qkv + row.token * args.qkv_stride + int64_t{row.head} * args.head_dim;
}

template <class T>
__device__ T* result_of(const Args<T>& args, const Row& row) {
  return args.out + row.token * args.out_stride + int64_t{row.head} * args.value_dim;
}

// The number of the sequence's block that holds a position.
template <class T>
__device__ unsigned block_of(const Args<T>& args, int position) {
  const unsigned p = static_cast<unsigned>(position);
  return args.block_shift >= 0 ? p >> args.block_shift : p / static_cast<unsigned>(args.block_size);
}

template <class T>
__device__ BlockId find_block(const Args<T>& args, const AttentionItem& item, int position) {
  return args.block_ids[(item.block_start + static_cast<int>(block_of(args, position))) * args.work.num_tables];
}

// A position's row in the pools, [num_blocks, num_kv_heads, block_size], blocks block_rows apart. `id` is find_block() of it, best called long
// before, so that nobody waits for memory.
template <class T>
__device__ uint32_t pool_row(const Args<T>& args, const AttentionItem& item, int position, BlockId id) {
  const unsigned block_size = static_cast<unsigned>(args.block_size);
  return static_cast<unsigned>(id) * args.block_rows + static_cast<unsigned>(item.kv_head) * block_size +
         static_cast<unsigned>(position) - block_of(args, position) * block_size;
}

template <class T>
__device__ uint32_t pool_row(const Args<T>& args, const AttentionItem& item, int position) {
  return pool_row(args, item, position, find_block(args, item, position));
}

// A position's block and its place there.
struct PoolPlace {
  unsigned block, offset;
};

template <class T>
__device__ PoolPlace place_of(const Args<T>& args, const AttentionItem& item, int position) {
  return {static_cast<unsigned>(find_block(args, item, position)),
          static_cast<unsigned>(position) - block_of(args, position) * static_cast<unsigned>(args.block_size)};
}

// The same where the item may be a row of a tree behind its place: its entry's rows it finds by way of their parents.
template <class T>
__device__ PoolPlace tree_place_of(const Args<T>& args, const AttentionItem& item, int position) {
  const AttentionTree& tree = args.work.tree;
  const StepRow own = tree.rows[item.query_start];
  int generations = item.first_position - position;
  if (own.is_in_place() || generations > own.depth) return place_of(args, item, position);
  int row = item.query_start;
  for (; generations > 0; --generations) row = tree.parent_rows[row];
  const unsigned slot = static_cast<unsigned>(tree.slots[row]), block_size = static_cast<unsigned>(args.block_size);
  const unsigned block = slot / block_size;
  return {block, slot - block * block_size};
}

template <class T>
__device__ uint32_t tree_pool_row(const Args<T>& args, const AttentionItem& item, int position) {
  const PoolPlace place = tree_place_of(args, item, position);
  return place.block * args.block_rows + static_cast<unsigned>(item.kv_head * args.block_size) + place.offset;
}

// Softmax over part of a row's positions: values = sum of 2^(score - max) * v, sum = sum of 2^(score - max); scores in
// units of log2. Nothing seen: max = -infinity, sum = 0.
struct Stats {
  float max, sum;
};

// The factor of a part's values in a merged result.
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

// Whether the item begins with the states that the launch over shared prefixes has left.
template <class T>
__device__ bool continues_states(const Args<T>& args, const AttentionItem& item) {
  return args.work.shared.stats != nullptr && item.shared.num_pieces > 0;
}

// Positions that some row of an item sees, within the item's range.
struct Visible {
  int begin, end;
};

template <class T>
__device__ Visible visible_positions(const Args<T>& args, const AttentionItem& item) {
  const int first = item.first_position + token_of(args, item.row_begin);
  const int first_seen = args.chunk > 0 ? first / args.chunk * args.chunk : first - args.window + 1;
  const int begin = continues_states(args, item) ? item.shared.num_positions : item.kv_begin;
  if (args.later == 0) return {min(max(begin, first_seen), item.kv_end), item.kv_end};
  const int last_seen = item.first_position + token_of(args, item.row_begin + item.num_rows - 1);
  const int end = max(begin, min(item.kv_end, last_seen + 1));
  return {min(max(begin, first_seen), end), end};
}

// A block's few shared variables, behind its tiles: registers are all taken.
struct BlockState {
  AttentionItem item;
  int index;  // of the item
  int has_item;
  Visible visible;
  struct Range {
    int first_position, last_position;  // of the warp's rows
  } warp[kWarps];
  int is_last;
};

// The block's first item, then the next with every call; false: there is none. Called by all threads. From here on an
// item's first_position is the last that its first token sees.
template <class T>
__device__ bool next_item(const Args<T>& args, bool is_first, BlockState* state) {
  __syncthreads();  // nobody needs the last item any more
  if (threadIdx.x == 0) {
    state->index = is_first ? args.work.cta_start[blockIdx.x] : state->index + 1;
    state->has_item = state->index < args.work.cta_start[blockIdx.x + 1];
    if (state->has_item) {
      AttentionItem item = args.work.items[state->index];
      item.first_position += args.later;
      state->item = item;
      state->visible = visible_positions(args, item);
    }
  }
  __syncthreads();
  return state->has_item;
}

// Called by all threads that wrote a piece's partial result: whether all pieces of the unit are written. `barrier` is
// where these threads meet, `is_first` is true for one of them, `is_last` is shared.
template <class T, class Barrier>
__device__ bool last_to_arrive(const Args<T>& args, const AttentionItem& item, bool is_first, int* is_last,
                               const Barrier& barrier) {
  __threadfence();
  barrier();
  if (is_first) {
    int32_t* counter = args.work.counters + item.split;
    *is_last = atomicAdd(counter, 1) == item.num_pieces - 1;
    if (*is_last) *counter = 0;
  }
  barrier();
  __threadfence();
  return *is_last;
}

// For row r in a piece; for none past the last.
template <class T>
__device__ Stats piece_stats(const Args<T>& args, const AttentionItem& item, int r, int piece) {
  if (piece >= item.num_pieces) return {kMinusInfinity, 0};
  const float* stats = args.work.partial_stats + 2 * (item.first_partial + int64_t{piece} * item.num_rows + r);
  return {__ldcg(stats), __ldcg(stats + 1)};
}

// Over all pieces of a unit, of kRows of its rows; the same in every lane.
template <int kRows, class T>
__device__ __forceinline__ void merge_stats(const Args<T>& args, const AttentionItem& item, const int (&row)[kRows],
                                            Stats (&total)[kRows]) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < kRows; ++i) total[i] = {kMinusInfinity, 0};
  for (int p = lane; p < item.num_pieces; p += 32) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) total[i].max = fmaxf(total[i].max, piece_stats(args, item, row[i], p).max);
  }
  for (int step = 1; step < 32; step *= 2) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) total[i].max = fmaxf(total[i].max, __shfl_xor_sync(kAllLanes, total[i].max, step));
  }
  for (int p = lane; p < item.num_pieces; p += 32) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const Stats piece = piece_stats(args, item, row[i], p);
      total[i].sum = fmaf(piece.sum, weight(piece.max, total[i].max), total[i].sum);
    }
  }
  for (int step = 1; step < 32; step *= 2) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) total[i].sum += __shfl_xor_sync(kAllLanes, total[i].sum, step);
  }
}

// The unit's result from its pieces, in their order. Written by other blocks just now: past the first-level cache.
// `warp` is this one's number among those that share out the rows; it takes kRows at a time, for the latency.
template <int kRows, class T>
__device__ void merge_pieces(const Args<T>& args, const AttentionItem& item, int warp, int num_warps) {
  constexpr int kColumns = 4;                          // of a lane
  [[maybe_unused]] constexpr int kUnroll = 4 / kRows;  // g++ passes the pragma over
  const int lane = threadIdx.x % 32;
  for (int first_row = warp * kRows; first_row < item.num_rows; first_row += num_warps * kRows) {
    Stats total[kRows];
    float factor[kRows];
    int row[kRows];  // the last one again, past it
#pragma unroll
    for (int i = 0; i < kRows; ++i) row[i] = min(first_row + i, item.num_rows - 1);
    merge_stats(args, item, row, total);
#pragma unroll
    for (int i = 0; i < kRows; ++i) factor[i] = final_factor(args, item, row[i], total[i]);
    for (int first_column = 0; first_column < args.value_dim; first_column += kColumns * 32) {
      const int column = first_column + lane;
      float acc[kRows][kColumns] = {};
      for (int first = 0; first < item.num_pieces; first += 32) {
        float weights[kRows];
#pragma unroll
        for (int i = 0; i < kRows; ++i)
          weights[i] = weight(piece_stats(args, item, row[i], first + lane).max, total[i].max);
#pragma unroll kUnroll
        for (int p = first; p < min(first + 32, item.num_pieces); ++p) {
#pragma unroll
          for (int i = 0; i < kRows; ++i) {
            const int64_t partial = item.first_partial + int64_t{p} * item.num_rows + row[i];
            const float* part = args.work.partials + partial * args.value_dim + column;
            const float w = __shfl_sync(kAllLanes, weights[i], p - first);
#pragma unroll
            for (int c = 0; c < kColumns; ++c)
              if (column + 32 * c < args.value_dim) acc[i][c] = fmaf(__ldcg(part + 32 * c), w, acc[i][c]);
          }
        }
      }
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        T* out = result_of(args, find_row(args, item, row[i]));
#pragma unroll
        for (int c = 0; c < kColumns; ++c)
          if (first_row + i < item.num_rows && column + 32 * c < args.value_dim)
            out[column + 32 * c] = from_float<T>(acc[i][c] * factor[i]);
      }
    }
  }
}

// The end of every item of a block of kThreads.
template <class T>
__device__ void finish_item(const Args<T>& args, BlockState* state) {
  const AttentionItem& item = state->item;
  const int warp = static_cast<int>(threadIdx.x / 32);
  if (item.partial >= 0 && last_to_arrive(args, item, threadIdx.x == 0, &state->is_last, [] { __syncthreads(); })) {
    if (item.num_rows <= 2 * kWarps) merge_pieces<1>(args, item, warp, kWarps);
    else merge_pieces<4>(args, item, warp, kWarps);
  }
}

}  // namespace llmb::cuda::attention
