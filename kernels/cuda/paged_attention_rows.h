// Attention of up to 128 rows: the warps of a block share out the rows and walk through tiles of positions together
// (FlashAttention-2, Dao 2023). Bound by multiply-adds.
#pragma once

#include "kernels/cuda/paged_attention_tiles.h"

namespace llmb::cuda::attention {

// kRowBlocks: 16-row fragments of a warp. With two, each fragment of keys and values serves both, which the rate of
// shared memory needs. Per row the arithmetic is the same with one and with two.
template <class T, int kDim, int kPositions, int kRowBlocks>
class RowAttention {
 public:
  static constexpr int kRows = 16 * kRowBlocks * kWarps;
  static constexpr int kStages = 3;  // tiles of keys and values, in turn
  static constexpr int kSharedElements = (kRows + kStages * kPositions) * kDim;

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
    const int first = first_row <= last_row ? find_row(args, item_, first_row).position : 0;
    const int last = first_row <= last_row ? find_row(args, item_, last_row).position : -1;
    if (lane_ == 0) state->warp[warp_] = {first, last};
    __syncwarp();
  }

  __device__ void run() {
    const int begin = state_.visible.begin / kPositions * kPositions;
    copy_queries();
    eights_ = find(begin);
    copy(args_.k, begin, 0);
    ptx::cp_async_commit();
    copy(args_.v, begin, 1);
    ptx::cp_async_commit();
    uint32_t next_eights = find(begin + kPositions);
    int stage = 0;
    for (int position = begin; position < state_.visible.end; position += kPositions) {
      const int next = position + kPositions;
      const bool sees = position <= last_position() && next > first_position() - args_.window + 1;
      // A barrier says that a stage has landed for all warps, and that all have done with the stage before it.
      ptx::cp_async_wait<1>();
      __syncthreads();
      eights_ = next_eights;
      if (next < state_.visible.end) copy(args_.k, next, before(stage));
      ptx::cp_async_commit();
      if (sees) add_scores(stage_offset(stage), position);
      stage = after(stage);

      ptx::cp_async_wait<1>();
      __syncthreads();
      if (next < state_.visible.end) copy(args_.v, next, before(stage));
      ptx::cp_async_commit();
      next_eights = find(next + kPositions);
      if (sees) add_values(stage_offset(stage));
      stage = after(stage);
    }
    if (last_position() < 0) return;
    if (item_.partial < 0) {
      write_results();
    } else {
      write_partials();
    }
  }

 private:
  static __device__ int before(int stage) { return stage == 0 ? kStages - 1 : stage - 1; }
  static __device__ int after(int stage) { return stage == kStages - 1 ? 0 : stage + 1; }
  static __device__ int stage_offset(int stage) { return (kRows + stage * kPositions) * kDim; }
  static constexpr int kScoreBlocks = kPositions / 8;
  static constexpr int kValueBlocks = kDim / 8;

  __device__ uint32_t find(int position) const {
    return find_eight(args_, item_, state_.visible, position + 8 * lane_);
  }

  __device__ void copy(const T* pool, int position, int stage) {
    copy_positions<T, kDim, kPositions, kThreads>(args_, pool, state_.visible, position, eights_, 0, threadIdx.x,
                                                  shared_ + stage_offset(stage));
  }

  __device__ void copy_queries() {
    constexpr unsigned kLanes = Tile<kDim>::kPaddedChunks;
    const int chunk = static_cast<int>(threadIdx.x % kLanes);
    if (chunk >= Tile<kDim>::kChunks) return;
    for (int row = static_cast<int>(threadIdx.x / kLanes); row < kRows; row += kThreads / kLanes) {
      const bool valid = row < item_.num_rows && chunk * 8 < args_.head_dim;
      const T* from = query_of(args_, find_row(args_, item_, valid ? row : 0)) + (valid ? chunk * 8 : 0);
      ptx::cp_async16(shared_ + Tile<kDim>::offset(row, chunk), from, valid);
    }
  }

  __device__ int first_position() const { return state_.warp[warp_].first_position; }
  __device__ int last_position() const { return state_.warp[warp_].last_position; }
  __device__ int lane_row(int row_block) const { return (warp_ * kRowBlocks + row_block) * 16 + lane_ / 4; }

  __device__ void add_scores(int keys, int position) {
    float s[kRowBlocks][kScoreBlocks][4] = {};
    const LaneOffset<kDim> queries_at = query_offset<kDim>(warp_ * kRowBlocks * 16 * kDim, lane_);
    const LaneOffset<kDim> keys_at = key_offset<kDim>(keys, lane_);
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
    const bool all_seen = position + kPositions - 1 <= first_position() && position > last_position() - args_.window;
#pragma unroll
    for (int r = 0; r < kRowBlocks; ++r) {
      if (!all_seen || args_.transforms_scores()) {
        const RowPair rows = find_rows(args_, item_, lane_row(r));
        if (args_.transforms_scores()) transform_scores(args_, rows, column, s[r]);
        if (!all_seen) mask_scores(rows, args_.window, column, s[r]);
      }
      float rescale[2];
      online_[r].add(s[r], args_.fold, rescale);
      rescale_values(rescale, values_[r]);
#pragma unroll
      for (int b = 0; b < kScoreBlocks; ++b) {
        p_[r][b / 2][b % 2 * 2] = pack_two(s[r][b][0], s[r][b][1], T());
        p_[r][b / 2][b % 2 * 2 + 1] = pack_two(s[r][b][2], s[r][b][3], T());
      }
    }
  }

  __device__ void add_values(int values) {
    const LaneOffset<kDim> values_at = value_offset<kDim>(values, lane_);
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

  // By way of the warp's own queries' place, so that stores are of 16 bytes.
  __device__ void write_results() {
    constexpr unsigned kLanes = Tile<kDim>::kPaddedChunks;
    const LaneOffset<kDim> pair_at(0, lane_row(0), 0);
#pragma unroll
    for (int r = 0; r < kRowBlocks; ++r) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const Stats stats = online_[r].stats(h, args_.fold);
        const float factor = final_factor(args_, item_, min(lane_row(r) + 8 * h, item_.num_rows - 1), stats);
#pragma unroll
        for (int c = 0; c < kValueBlocks; ++c)
          *reinterpret_cast<uint32_t*>(shared_ + pair_at.at(16 * r + 8 * h, c) + lane_ % 4 * 2) =
              pack_two(values_[r][c][2 * h] * factor, values_[r][c][2 * h + 1] * factor, T());
      }
    }
    __syncwarp();
    const int chunk = static_cast<int>(threadIdx.x % kLanes), first_row = warp_ * 16 * kRowBlocks;
    if (chunk * 8 >= args_.head_dim) return;
    const int end = min(first_row + 16 * kRowBlocks, item_.num_rows);
    for (int row = first_row + lane_ / static_cast<int>(kLanes); row < end; row += 32 / kLanes)
      *reinterpret_cast<uint4*>(result_of(args_, find_row(args_, item_, row)) + chunk * 8) =
          *reinterpret_cast<const uint4*>(shared_ + Tile<kDim>::offset(row, chunk));
  }

  __device__ void write_partials() {
#pragma unroll
    for (int r = 0; r < kRowBlocks; ++r) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const Stats stats = online_[r].stats(h, args_.fold);
        const int row = lane_row(r) + 8 * h;
        if (row >= item_.num_rows) continue;
        const int64_t at = item_.partial + row;
        if (lane_ % 4 == 0) {
          args_.work.partial_stats[2 * at] = stats.max;
          args_.work.partial_stats[2 * at + 1] = stats.sum;
        }
        float* to = args_.work.partials + at * args_.head_dim;
#pragma unroll
        for (int c = 0; c < kValueBlocks; ++c) {
          const int column = 8 * c + lane_ % 4 * 2;
          if (column >= args_.head_dim) continue;
          *reinterpret_cast<float2*>(to + column) = make_float2(values_[r][c][2 * h], values_[r][c][2 * h + 1]);
        }
      }
    }
  }

  const Args<T>& args_;
  const BlockState& state_;
  const AttentionItem& item_;
  T* const shared_;  // queries, then the stages
  const int warp_, lane_;
  uint32_t eights_;
  OnlineRows online_[kRowBlocks];
  float values_[kRowBlocks][kValueBlocks][4] = {};
  uint32_t p_[kRowBlocks][kPositions / 16][4];  // the scores as operand A
};

}  // namespace llmb::cuda::attention
