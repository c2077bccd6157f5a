// Attention of up to 128 rows: the warps of a block share out the rows and walk through tiles of positions together
// (FlashAttention-2, Dao 2023). Bound by multiply-adds.
#pragma once

#include "kernels/cuda/paged_attention_scaled.h"
#include "kernels/cuda/paged_attention_states.h"

namespace llmb::cuda::attention {

// kRowBlocks: 16-row fragments of a warp. With two, each fragment of keys and values serves both, which the rate of
// shared memory needs. Per row the arithmetic is the same with one and with two. Rows of a shared item see all of its
// positions that their windows reach. Items that go on from its states have kTileRows rows at most, so one fragment a
// warp. kDim: channels of keys, kValueDim: of values.
template <class T, class KV, int kDim, int kPositions, int kRowBlocks, ItemKind kKind, int kValueDim = kDim>
class RowAttention {
 public:
  static constexpr int kRows = 16 * kRowBlocks * kWarps;
  static constexpr int kStages = 2;  // tiles of keys and of values, in turn
  static constexpr int kStageElements = kPositions * (kDim + kValueDim);
  static constexpr int kTileElements = kRows * kDim + kStages * kStageElements;
  static constexpr int kScaleBytes = kHasScales<KV> ? 2 * kStages * kPositions * 4 : 0;
  static constexpr int kSharedBytes = 2 * kTileElements + kScaleBytes;

  // REQUIRES: `state` is of next_item().
  __device__ RowAttention(const Args<T>& args, BlockState* state, T* shared)
      : args_(args),
        state_(*state),
        item_(state->item),
        shared_(shared),
        warp_(threadIdx.x / 32),
        lane_(threadIdx.x % 32) {
    const int first_row = warp_ * 16 * kRowBlocks, last_row = min(first_row + 16 * kRowBlocks, item_.num_rows) - 1;
    // A warp without rows sees nothing.
    int first = 0, last = -1;
    if (first_row <= last_row) {
      if constexpr (!kIsShared) {
        first = find_row(args, item_, first_row).position;
        last = find_row(args, item_, last_row).position;
      } else if (args.window == kNoWindow) {
        first = last = item_.kv_end - 1;
      } else {
        const PositionRange range = find_shared_range<16 * kRowBlocks>(args, item_, first_row);
        first = range.first, last = range.last;
      }
    }
    if (lane_ == 0) state->warp[warp_] = {first, last};
    __syncwarp();
  }

  __device__ void run() {
    const int begin = state_.visible.begin / kPositions * kPositions;
    const BlockId ids = find(begin);  // on their way while the queries are copied
    BlockId next_ids = find(begin + kPositions);
    copy_queries();
    {
      Eights eights;
      rows_of_eights(begin, ids, &eights);
      copy(state_.visible, begin, eights, 0);
    }
    ptx::cp_async_commit();
    if constexpr (kKind == ItemKind::kContinued && kRowBlocks == 1)
      if (continues_states(args_, item_) && state_.warp[warp_].last_position >= 0)
        load_states<T, kDim>(args_, item_, warp_ * 16, &online_[0], values_[0]);
    int stage = 0;
    for (int position = begin;; position += kPositions) {
      // Found before the barrier, which hides how long that takes.
      const Visible visible = state_.visible;
      const BlockState::Range rows = state_.warp[warp_];
      if (position >= visible.end) break;
      const int next = position + kPositions;
      const bool sees = position <= rows.last_position && next > rows.first_position - args_.window + 1;
      const bool all_seen = next - 1 <= rows.first_position && position > rows.last_position - args_.window &&
                            position >= visible.begin && next <= visible.end;
      Eights eights;
      rows_of_eights(next, next_ids, &eights);
      // A barrier says that a stage has landed for all warps, and that all have done with the other.
      ptx::cp_async_wait<0>();
      if constexpr (kHasScales<KV>)
        widen_positions<T, KV, kDim, kPositions, kThreads, 2>(
            static_cast<int>(threadIdx.x), {shared_ + keys_offset(stage), shared_ + values_offset(stage)});
      __syncthreads();
      if (next < visible.end) copy(visible, next, eights, stage ^ 1);
      ptx::cp_async_commit();
      next_ids = find(next + kPositions);
      if (sees) {
        add_scores(stage, position, all_seen);
        add_values(values_offset(stage));
      }
      stage ^= 1;
    }
    ptx::cp_async_wait<0>();  // where nothing is seen, queries are still on their way
    if (state_.warp[warp_].last_position < 0) return;
#pragma unroll
    for (int r = 0; r < kRowBlocks; ++r) {
      const int row = (warp_ * kRowBlocks + r) * 16;
      if constexpr (kIsShared) {
        write_states<T, kDim>(args_, item_, row, online_[r], values_[r]);
        continue;
      }
      // The warp's own queries are done with.
      write_rows<T, kValueDim>(args_, item_, row, online_[r], values_[r], shared_ + row * kDim);
    }
  }

 private:
  using Plan = CopyPlan<kDim, kPositions, kThreads>;
  using ValuePlan = CopyPlan<kValueDim, kPositions, kThreads>;
  static constexpr bool kIsShared = kKind == ItemKind::kShared;

  static __device__ int keys_offset(int stage) { return kRows * kDim + stage * kStageElements; }
  static __device__ int values_offset(int stage) { return keys_offset(stage) + kPositions * kDim; }
  // In a stage's keys, or in its values.
  __device__ float* scales_of(int stage, bool values) const {
    return reinterpret_cast<float*>(shared_ + kTileElements) + (2 * stage + (values ? 1 : 0)) * kPositions;
  }
  static constexpr int kScoreBlocks = kPositions / 8;
  static constexpr int kValueBlocks = kValueDim / 8;

  __device__ BlockId find(int position) const { return find_eight(args_, item_, state_.visible, position + 8 * lane_); }
  // The pool rows of what this thread copies, by step, and of the position whose scales it copies. Values have rows of
  // their own where they are copied in other steps than keys.
  struct Eights {
    uint32_t keys[Plan::kSteps], values[kDim == kValueDim ? 1 : ValuePlan::kSteps], scales;
  };
  // `ids` is find() of the position.
  __device__ void rows_of_eights(int position, BlockId ids, Eights* eights) const {
    const uint32_t eight = pool_row(args_, item_, position + 8 * lane_, ids);
    const auto thread = static_cast<int>(threadIdx.x);
#pragma unroll
    for (int step = 0; step < Plan::kSteps; ++step)
      eights->keys[step] = __shfl_sync(kAllLanes, eight, Plan::eight(thread, step));
    if constexpr (kDim != kValueDim) {
#pragma unroll
      for (int step = 0; step < ValuePlan::kSteps; ++step)
        eights->values[step] = __shfl_sync(kAllLanes, eight, ValuePlan::eight(thread, step));
    }
    if constexpr (kHasScales<KV>) eights->scales = __shfl_sync(kAllLanes, eight, thread % kPositions / 8);
  }

  // A thread copies those of a position; 0 where it is not visible.
  __device__ void copy_scales(const Visible& visible, int position, uint32_t eight, int stage) {
    const int row = static_cast<int>(threadIdx.x), at = position + row;
    if (row >= kPositions) return;
    const bool is_visible = at >= visible.begin && at < visible.end;
    uint32_t from = 0;
    if constexpr (kKind == ItemKind::kTree) {
      if (is_visible) from = tree_pool_row(args_, item_, at);
    } else if (is_visible) {
      from = eight + static_cast<unsigned>(row) % 8;
    }
    ptx::cp_async<4>(scales_of(stage, false) + row, args_.k_scales + from, is_visible);
    ptx::cp_async<4>(scales_of(stage, true) + row, args_.v_scales + from, is_visible);
  }

  __device__ void copy(const Visible& visible, int position, const Eights& eights, int stage) {
    if constexpr (kHasScales<KV>) copy_scales(visible, position, eights.scales, stage);
    const auto pool_row_at = [&](int step, int row) -> uint32_t {
      if constexpr (kKind == ItemKind::kTree) {
        const int at = position + row;
        return at >= visible.begin && at < visible.end ? tree_pool_row(args_, item_, at) : 0;
      }
      return eights.keys[step] + static_cast<unsigned>(row) % 8;
    };
    const auto thread = static_cast<int>(threadIdx.x);
    if constexpr (kDim == kValueDim) {
      copy_positions<T, KV, kDim, kPositions, kThreads, 2>(
          args_, {args_.k, args_.v}, args_.head_dim, visible, position, pool_row_at, thread,
          {shared_ + keys_offset(stage), shared_ + values_offset(stage)});
    } else {
      const auto value_row_at = [&](int step, int row) { return eights.values[step] + static_cast<unsigned>(row) % 8; };
      copy_positions<T, KV, kDim, kPositions, kThreads, 1>(args_, {args_.k}, args_.head_dim, visible, position,
                                                           pool_row_at, thread, {shared_ + keys_offset(stage)});
      copy_positions<T, KV, kValueDim, kPositions, kThreads, 1>(args_, {args_.v}, args_.value_dim, visible, position,
                                                                value_row_at, thread, {shared_ + values_offset(stage)});
    }
  }

  __device__ void copy_queries() {
    constexpr unsigned kLanes = Tile<kDim>::kPaddedChunks;
    const int chunk = static_cast<int>(threadIdx.x % kLanes);
    if (chunk >= Tile<kDim>::kChunks) return;
    for (int row = static_cast<int>(threadIdx.x / kLanes); row < kRows; row += kThreads / kLanes) {
      const bool valid = row < item_.num_rows && chunk * 8 < args_.head_dim;
      const T* from = query_of(args_, find_row_of<kKind>(args_, item_, valid ? row : 0)) + (valid ? chunk * 8 : 0);
      ptx::cp_async16(shared_ + Tile<kDim>::offset(row, chunk), from, valid);
    }
  }

  __device__ int lane_row(int row_block) const { return (warp_ * kRowBlocks + row_block) * 16 + lane_ / 4; }

  __device__ void add_scores(int stage, int position, bool all_seen) {
    float s[kRowBlocks][kScoreBlocks][4] = {};
    const LaneOffset<kDim> queries_at = query_offset<kDim>(warp_ * kRowBlocks * 16 * kDim, lane_);
    const LaneOffset<kDim> keys_at = key_offset<kDim>(keys_offset(stage), lane_);
#pragma unroll
    for (int channel = 0; channel < kDim; channel += 16) {
      uint32_t a[kRowBlocks][4];
#pragma unroll
      for (int r = 0; r < kRowBlocks; ++r) ptx::ldmatrix_x4(a[r], shared_ + queries_at.at(16 * r, channel / 8));
#pragma unroll
      for (int b = 0; b < kScoreBlocks; b += 2) {
        uint32_t keys_b[4];
        ptx::ldmatrix_x4(keys_b, shared_ + keys_at.at(8 * b, channel / 8));
#pragma unroll
        for (int r = 0; r < kRowBlocks; ++r) mma_pair<T>(s[r][b], s[r][b + 1], a[r], keys_b);
      }
    }
    const int column = position + lane_ % 4 * 2;
#pragma unroll
    for (int r = 0; r < kRowBlocks; ++r) {
      if constexpr (kHasScales<KV>) scale_columns(scales_of(stage, false), s[r]);
      if (!all_seen || args_.transforms_scores()) {
        const RowPair rows = find_rows_of<kKind>(args_, item_, lane_row(r));
        if (args_.transforms_scores()) transform_scores(args_, rows, column, s[r]);
        if (!all_seen) mask_scores(rows, args_.window, column, s[r]);
        if (!all_seen && args_.masks_borders()) mask_borders(state_.visible, column, s[r]);
      }
      float rescale[2];
      online_[r].add(s[r], args_.fold, rescale);
      rescale_values(rescale, values_[r]);
      if constexpr (kHasScales<KV>) scale_columns(scales_of(stage, true), s[r]);
#pragma unroll
      for (int b = 0; b < kScoreBlocks; ++b) {
        p_[r][b / 2][b % 2 * 2] = pack_two(s[r][b][0], s[r][b][1], T());
        p_[r][b / 2][b % 2 * 2 + 1] = pack_two(s[r][b][2], s[r][b][3], T());
      }
    }
  }

  __device__ void add_values(int values) {
    const LaneOffset<kValueDim> values_at = value_offset<kValueDim>(values, lane_);
#pragma unroll
    for (int b = 0; b < kPositions / 16; ++b) {
#pragma unroll
      for (int c = 0; c < kValueBlocks; c += 2) {
        uint32_t values_b[4];
        ptx::ldmatrix_x4_trans(values_b, shared_ + values_at.at(16 * b, c));
#pragma unroll
        for (int r = 0; r < kRowBlocks; ++r) mma_pair<T>(values_[r][c], values_[r][c + 1], p_[r][b], values_b);
      }
    }
  }

  const Args<T>& args_;
  const BlockState& state_;
  const AttentionItem& item_;
  T* const shared_;  // queries, then the stages
  const int warp_, lane_;
  OnlineRows online_[kRowBlocks];
  float values_[kRowBlocks][kValueBlocks][4] = {};
  uint32_t p_[kRowBlocks][kPositions / 16][4];  // the scores as operand A
};

}  // namespace llmb::cuda::attention
