// Attention of up to 16 rows, as in decode: the warps of a block share out the positions, each with a pipeline of its
// own, and merge at the end (Flash-Decoding within a block). Bound by the bytes of keys and values.
#pragma once

#include "kernels/cuda/paged_attention_strips.h"

namespace llmb::cuda::attention {

// KV: of keys and values in memory, T, int8_t or E4m3.
template <class T, class KV, int kDim, ItemKind kKind>
class PositionAttention {
 public:
  using Tiles = Strip<T, KV, kDim>;
  static constexpr int kStrip = Tiles::kPositions;  // of a warp at a time
  static constexpr int kRows = 16;
  static constexpr int kStages = kDim > 128 ? 3 : 5;
  static constexpr int kMergeStride = kDim + 8;  // floats; rows of a lane quad in different banks
  static constexpr int kMergeFloats = kWarps * kRows * (kMergeStride + 2);
  static constexpr int kTileBytes = kWarps * kStages * kStrip * Tiles::kUnits * 2;
  static constexpr int kScaleBytes = kHasScales<KV> ? kWarps * kStages * kStrip * 8 : 0;
  static constexpr int kSharedBytes = max_of(kTileBytes + kScaleBytes, kMergeFloats * 4);

  // REQUIRES: `state` is of next_item().
  __device__ PositionAttention(const Args<T>& args, const BlockState& state, T* shared)
      : args_(args),
        item_(state.item),
        visible_(state.visible),
        shared_(shared),
        warp_(threadIdx.x / 32),
        lane_(threadIdx.x % 32),
        begin_(visible_.begin / kStrip * kStrip + warp_ * kStrip),
        rows_(find_rows(args, state.item, lane_ / 4)),
        all_see_from_(find_row(args, state.item, state.item.num_rows - 1).position - args.window + 1),
        all_see_to_(find_row(args, state.item, 0).position) {}

  __device__ void run() {
    load_queries();
    eights_ = row_of(0, find(0));
    next_ids_ = find(kBatch);
    for (int strip = 0; strip < kAhead; ++strip) {
      copy_keys(strip, 2 * strip);
      ptx::cp_async_commit();
      copy(args_.v, strip, 2 * strip + 1);
      ptx::cp_async_commit();
    }
    if constexpr (kKind == ItemKind::kContinued)
      if (continues_states(args_, item_))
        load_states<T, kDim, kWarps, typename Tiles::Read>(args_, item_, 0, &online_, values_, warp_);
    int stage = 0;
    for (int strip = 0; position_of(strip) < visible_.end; ++strip) {
      const int ahead = strip + kAhead;
      ptx::cp_async_wait<kStages - 2>();
      __syncwarp();
      if (ahead % kBatch == 0) {
        eights_ = row_of(ahead, next_ids_);
        next_ids_ = find(ahead + kBatch);
      }
      copy_keys(ahead, before(stage));
      ptx::cp_async_commit();
      add_scores(stage, position_of(strip));
      stage = after(stage);

      ptx::cp_async_wait<kStages - 2>();
      __syncwarp();
      copy(args_.v, ahead, before(stage));
      ptx::cp_async_commit();
      Tiles::add_values(shared_, stage_offset(stage), lane_, p_, values_);
      stage = after(stage);
    }
    merge_warps();
  }

 private:
  static constexpr int kStep = kStrip * kWarps;     // positions of the block at a time
  static constexpr int kAhead = (kStages - 1) / 2;  // strips under way
  static constexpr int kEights = kStrip / 8;
  static constexpr int kBatch = 32 / kEights;  // strips whose pool rows the lanes hold

  // Scales of the strip whose keys are in the stage: its keys', then its values'.
  __device__ float* scales_of(int stage) const {
    return reinterpret_cast<float*>(reinterpret_cast<char*>(shared_) + kTileBytes) +
           2 * (warp_ * kStages + stage) * kStrip;
  }
  __device__ int stage_offset(int stage) const { return (warp_ * kStages + stage) * kStrip * Tiles::kUnits; }
  static __device__ int before(int stage) { return stage == 0 ? kStages - 1 : stage - 1; }
  static __device__ int after(int stage) { return stage == kStages - 1 ? 0 : stage + 1; }
  __device__ int position_of(int strip) const { return begin_ + strip * kStep; }

  // Lanes i kEights to (i + 1) kEights - 1: of strip first_strip + i.
  __device__ int lane_position(int first_strip) const {
    return position_of(first_strip + lane_ / kEights) + lane_ % kEights * 8;
  }
  __device__ BlockId find(int first_strip) const {
    return find_eight(args_, item_, visible_, lane_position(first_strip));
  }
  __device__ uint32_t row_of(int first_strip, BlockId id) const {
    return pool_row(args_, item_, lane_position(first_strip), id);
  }

  __device__ void copy(const void* pool, int strip, int stage) {
    if (position_of(strip) >= visible_.end) return;
    const auto pool_row_at = [&](int step, int row) -> uint32_t {
      if constexpr (kKind == ItemKind::kTree) {
        const int position = position_of(strip) + row;
        return position >= visible_.begin && position < visible_.end ? tree_pool_row(args_, item_, position) : 0;
      }
      return __shfl_sync(kAllLanes, eights_, strip % kBatch * kEights + Tiles::Plan::eight(lane_, step)) +
             static_cast<unsigned>(row) % 8;
    };
    Tiles::copy(args_, pool, visible_, position_of(strip), pool_row_at, lane_, shared_ + stage_offset(stage));
  }

  // And all scales of the strip.
  __device__ void copy_keys(int strip, int stage) {
    copy(args_.k, strip, stage);
    if constexpr (kHasScales<KV>)
      if (position_of(strip) < visible_.end) copy_scales(strip, stage);
  }

  // A lane copies those of a position; 0 where it is not visible.
  __device__ void copy_scales(int strip, int stage) {
    const int row = lane_ % kStrip, position = position_of(strip) + row;
    const bool visible = position >= visible_.begin && position < visible_.end;
    uint32_t from = 0;
    if constexpr (kKind == ItemKind::kTree) {
      if (visible) from = tree_pool_row(args_, item_, position);
    } else {
      from = __shfl_sync(kAllLanes, eights_, strip % kBatch * kEights + row / 8) + static_cast<unsigned>(row) % 8;
    }
    if (!visible) from = 0;
    if (lane_ >= kStrip) return;
    ptx::cp_async<4>(scales_of(stage) + row, args_.k_scales + from, visible);
    ptx::cp_async<4>(scales_of(stage) + kStrip + row, args_.v_scales + from, visible);
  }

  // Each warp reads all queries straight into operands.
  __device__ void load_queries() {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const bool is_row = lane_ / 4 < item_.num_rows - 8 * h;
      const T* query = query_of(args_, rows_.row[h]);
#pragma unroll
      for (int c = 0; c < kDim / 16; ++c) Tiles::load_query(query, c, h, lane_, is_row, args_.head_dim, q_[c]);
    }
  }

  __device__ void add_scores(int stage, int position) {
    float s[kStrip / 8][4] = {};
    Tiles::add_scores(shared_, stage_offset(stage), lane_, q_, s);
    if constexpr (kHasScales<KV>) scale_columns(scales_of(stage), s);
    const int column = position + lane_ % 4 * 2;
    if (args_.transforms_scores()) transform_scores(args_, rows_, column, s);
    if (position < all_see_from_ || position + kStrip - 1 > all_see_to_) mask_scores(rows_, args_.window, column, s);
    if (args_.masks_borders() && (position < visible_.begin || position + kStrip > visible_.end))
      mask_borders(visible_, column, s);
    float rescale[2];
    online_.add(s, args_.fold, rescale);
    rescale_values(rescale, values_);
    if constexpr (kHasScales<KV>) scale_columns(scales_of(stage) + kStrip, s);
#pragma unroll
    for (int b = 0; b < kStrip / 8; ++b) {
      p_[b / 2][b % 2 * 2] = pack_two(s[b][0], s[b][1], T());
      p_[b / 2][b % 2 * 2 + 1] = pack_two(s[b][2], s[b][3], T());
    }
  }

  __device__ void merge_warps() {
    float* values = reinterpret_cast<float*>(shared_);      // [kWarps, kRows, kMergeStride]
    float* stats = values + kWarps * kRows * kMergeStride;  // [kWarps, kRows, 2]
    ptx::cp_async_wait<0>();
    __syncthreads();
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const Stats mine = online_.stats(h, args_.fold);
      if (lane_ / 4 >= item_.num_rows - 8 * h) continue;
      const int at = warp_ * kRows + lane_ / 4 + 8 * h;
      if (lane_ % 4 == 0) {
        stats[2 * at] = mine.max;
        stats[2 * at + 1] = mine.sum;
      }
      Tiles::store(values_, h, lane_, values + at * kMergeStride);
    }
    __syncthreads();
    for (int row = warp_; row < item_.num_rows; row += kWarps) write_row(row, values, stats);
  }

  __device__ void write_row(int r, const float* values, const float* stats) {
    Stats total{kMinusInfinity, 0};
#pragma unroll
    for (int w = 0; w < kWarps; ++w) total.max = fmaxf(total.max, stats[2 * (w * kRows + r)]);
    float weights[kWarps];
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      weights[w] = weight(stats[2 * (w * kRows + r)], total.max);
      total.sum = fmaf(stats[2 * (w * kRows + r) + 1], weights[w], total.sum);
    }
    const Row row = find_row(args_, item_, r);
    const bool whole = item_.partial < 0;
    const int64_t partial = item_.partial + r;
    const float factor = whole ? final_factor(args_, item_, r, total) : 1.0f;
    if (!whole && lane_ == 0) {
      args_.work.partial_stats[2 * partial] = total.max;
      args_.work.partial_stats[2 * partial + 1] = total.sum;
    }
    for (int column = 2 * lane_; column < args_.head_dim; column += 64) {
      float2 acc = make_float2(0, 0);
#pragma unroll
      for (int w = 0; w < kWarps; ++w) {
        const float2 x = *reinterpret_cast<const float2*>(values + (w * kRows + r) * kMergeStride + column);
        acc.x = fmaf(x.x, weights[w], acc.x);
        acc.y = fmaf(x.y, weights[w], acc.y);
      }
      if (whole) {
        *reinterpret_cast<uint32_t*>(result_of(args_, row) + column) = pack_two(acc.x * factor, acc.y * factor, T());
      } else {
        *reinterpret_cast<float2*>(args_.work.partials + partial * args_.head_dim + column) = acc;
      }
    }
  }

  const Args<T>& args_;
  const AttentionItem& item_;
  const Visible visible_;
  T* const shared_;
  const int warp_, lane_;
  const int begin_;  // of the warp's first strip
  const RowPair rows_;
  const int all_see_from_, all_see_to_;  // positions that all rows see
  uint32_t eights_;                      // pool rows of this batch of strips
  BlockId next_ids_;                     // of the next one's
  uint32_t q_[kDim / 16][4];
  OnlineRows online_;
  float values_[kDim / 8][4] = {};
  uint32_t p_[kStrip / 16][4];  // the numerators as operand A
};

}  // namespace llmb::cuda::attention
