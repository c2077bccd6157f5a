// Attention of heads of 264 to 512 channels, and over latents of up to 576, which all heads of a row read as keys and
// as values at once: the bytes of a position are copied once for up to 64 rows (heads times tokens). Instantiated once per
// element type in paged_attention_wide_bf16.cu and _f16.cu.
//
// A row's values do not fit one warp's registers. So the warps of a block share out positions for the scores, which meet
// in shared memory, and then channels for the values: each warp makes the same numerators of all scores. Per row the
// arithmetic is the same however many rows an item has.
//
// Decode is bound by the bytes of the cache, prefill by reads of shared memory.
#pragma once

#include "kernels/cuda/paged_attention_mma.h"

namespace llmb::cuda::attention {

constexpr int kWideThreads = 256;
constexpr int kWideWarps = kWideThreads / 32;

// kLatents: a position's value is the last channels of its key, from kFirstValue on. kRowBlocks: of 16 rows at a time.
template <class T, bool kLatents, int kRowBlocks, int kPositions>
class WideAttention {
 public:
  static constexpr int kRows = 16 * kRowBlocks;
  static constexpr int kKeyDim = kLatents ? 576 : 512, kValueDim = 512;
  static constexpr int kFirstValue = kLatents ? 64 : 0;
  static constexpr int kStages = 2;
  static constexpr int kStageElements = kPositions * (kLatents ? kKeyDim : kKeyDim + kValueDim);
  static constexpr int kScoreStride = kPositions + 8;  // floats; four rows of a lane quad in different banks
  static constexpr int kScoresAt = 2 * (kRows * kKeyDim + kStages * kStageElements);  // bytes
  static constexpr int kPoolRowsAt = kScoresAt + 4 * kRows * kScoreStride;
  static constexpr int kSharedBytes = kPoolRowsAt + 4 * kStages * kPositions;

  // REQUIRES: `state` is of next_item(). first_row: of the item's rows, those from it on.
  __device__ WideAttention(const Args<T>& args, const BlockState& state, int first_row, T* shared)
      : args_(args),
        item_(state.item),
        visible_(state.visible),
        first_row_(first_row),
        shared_(shared),
        warp_(static_cast<int>(threadIdx.x) / 32),
        lane_(static_cast<int>(threadIdx.x) % 32) {}

  __device__ void run() {
    const int begin = visible_.begin / kPositions * kPositions;
    __syncthreads();  // nobody reads what was here before
    find_pool_rows(begin, 0);
    find_pool_rows(begin + kPositions, 1);
    copy_queries();
    __syncthreads();
    copy(begin, 0);
    ptx::cp_async_commit();
    int stage = 0;
    for (int position = begin; position < visible_.end; position += kPositions, stage ^= 1) {
      ptx::cp_async_wait<0>();
      __syncthreads();  // the stage has landed for all, and all have done with the other one and with the scores
      if (position + kPositions < visible_.end) copy(position + kPositions, stage ^ 1);
      ptx::cp_async_commit();
      for (int unit = warp_; unit < kUnits; unit += kWideWarps) add_scores(stage, unit, position);
      find_pool_rows(position + 2 * kPositions, stage);
      __syncthreads();
      add_values(stage);
    }
    ptx::cp_async_wait<0>();
    write_rows();
  }

 private:
  static constexpr int kPositionBlocks = kPositions / 16;
  static constexpr int kUnits = kRowBlocks * kPositionBlocks;  // of 16 rows and 16 positions
  static constexpr int kColumns = kValueDim / kWideWarps;      // of a warp
  static constexpr int kColumnBlocks = kColumns / 8;

  __device__ float* scores(int row) const {
    return reinterpret_cast<float*>(reinterpret_cast<char*>(shared_) + kScoresAt) + row * kScoreStride;
  }
  __device__ uint32_t* pool_rows(int stage) const {
    return reinterpret_cast<uint32_t*>(reinterpret_cast<char*>(shared_) + kPoolRowsAt) + stage * kPositions;
  }
  static __device__ int keys_offset(int stage) { return kRows * kKeyDim + stage * kStageElements; }
  static __device__ int values_offset(int stage) { return keys_offset(stage) + (kLatents ? 0 : kPositions * kKeyDim); }
  __device__ bool is_visible(int position) const { return position >= visible_.begin && position < visible_.end; }

  // A thread finds one position's row of the pools.
  __device__ void find_pool_rows(int position, int stage) const {
    const int i = static_cast<int>(threadIdx.x);
    if (i >= kPositions) return;
    uint32_t row = 0;
    if (is_visible(position + i))
      row = args_.work.tree.parent_rows != nullptr ? tree_pool_row(args_, item_, position + i)
                                                   : pool_row(args_, item_, position + i);
    pool_rows(stage)[i] = row;
  }

  // Starts the copies of a pool's rows into a tile; positions that are not visible and columns past head_dim become 0.
  template <int kDim>
  __device__ void copy_tile(const void* pool, int position, int stage, int tile) const {
    constexpr int kChunks = Tile<kDim>::kChunks;
    const T* const from = static_cast<const T*>(pool);
    const int num_chunks = args_.head_dim / 8;
    for (int i = static_cast<int>(threadIdx.x); i < kPositions * kChunks; i += kWideThreads) {
      const int row = i / kChunks, chunk = i - row * kChunks;
      const bool valid = chunk < num_chunks && is_visible(position + row);
      const uint64_t at = valid ? uint64_t{pool_rows(stage)[row]} * static_cast<unsigned>(args_.head_dim) +
                                      static_cast<unsigned>(chunk) * 8
                                : 0;
      ptx::cp_async16(shared_ + tile + Tile<kDim>::offset(row, chunk), from + at, valid);
    }
  }

  __device__ void copy(int position, int stage) const {
    copy_tile<kKeyDim>(args_.k, position, stage, keys_offset(stage));
    if constexpr (!kLatents) copy_tile<kValueDim>(args_.v, position, stage, values_offset(stage));
  }

  __device__ void copy_queries() const {
    constexpr int kChunks = Tile<kKeyDim>::kChunks;
    for (int i = static_cast<int>(threadIdx.x); i < kRows * kChunks; i += kWideThreads) {
      const int row = i / kChunks, chunk = i - row * kChunks;
      const bool valid = first_row_ + row < item_.num_rows && chunk * 8 < args_.head_dim;
      const T* const from = query_of(args_, find_row(args_, item_, valid ? first_row_ + row : 0));
      ptx::cp_async16(shared_ + Tile<kKeyDim>::offset(row, chunk), from + (valid ? chunk * 8 : 0), valid);
    }
  }

  // 16 rows by 16 positions.
  __device__ void add_scores(int stage, int unit, int position) const {
    const int row_block = unit / kPositionBlocks, position_block = unit % kPositionBlocks;
    const LaneOffset<kKeyDim> queries_at = query_offset<kKeyDim>(row_block * 16 * kKeyDim, lane_);
    const LaneOffset<kKeyDim> keys_at =
        key_offset<kKeyDim>(keys_offset(stage) + position_block * 16 * kKeyDim, lane_);
    float s[2][4] = {};
    for (int first = 0; first < kKeyDim / 8; first += 8) {
#pragma unroll
      for (int chunk = 0; chunk < 8; chunk += 2) {
        uint32_t a[4], keys[4];
        ptx::ldmatrix_x4(a, shared_ + queries_at.at(0, chunk) + first * 8);
        ptx::ldmatrix_x4(keys, shared_ + keys_at.at(0, chunk) + first * 8);
        mma_pair<T>(s[0], s[1], a, keys);
      }
    }
    const int column = lane_ % 4 * 2, first_row = row_block * 16 + lane_ / 4;
    const RowPair rows = find_rows(args_, item_, first_row_ + first_row);
    position += position_block * 16 + column;
    if (args_.transforms_scores()) transform_scores(args_, rows, position, s);
    mask_scores(rows, args_.window, position, s);
    if (args_.masks_borders()) mask_borders(visible_, position, s);
#pragma unroll
    for (int b = 0; b < 2; ++b) {
#pragma unroll
      for (int h = 0; h < 2; ++h)
        *reinterpret_cast<float2*>(scores(first_row + 8 * h) + position_block * 16 + 8 * b + column) =
            make_float2(s[b][2 * h], s[b][2 * h + 1]);
    }
  }

  // The numerators of 16 rows, as operand A, and what they do to the values so far.
  __device__ void make_numerators(int r, uint32_t (&p)[kPositionBlocks][4]) {
    float s[2 * kPositionBlocks][4];
#pragma unroll
    for (int b = 0; b < 2 * kPositionBlocks; ++b) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float2 x =
            *reinterpret_cast<const float2*>(scores(r * 16 + lane_ / 4 + 8 * h) + 8 * b + lane_ % 4 * 2);
        s[b][2 * h] = x.x, s[b][2 * h + 1] = x.y;
      }
    }
    float rescale[2];
    online_[r].add(s, args_.fold, rescale);
    rescale_values(rescale, values_[r]);
#pragma unroll
    for (int b = 0; b < 2 * kPositionBlocks; ++b) {
      p[b / 2][b % 2 * 2] = pack_two(s[b][0], s[b][1], T());
      p[b / 2][b % 2 * 2 + 1] = pack_two(s[b][2], s[b][3], T());
    }
  }

  __device__ void add_values(int stage) {
    constexpr int kDim = kLatents ? kKeyDim : kValueDim;
    uint32_t p[kRowBlocks][kPositionBlocks][4];
#pragma unroll
    for (int r = 0; r < kRowBlocks; ++r) make_numerators(r, p[r]);
    const LaneOffset<kDim> values_at = value_offset<kDim>(values_offset(stage), lane_);
    const int first = kFirstValue + warp_ * kColumns;  // a multiple of 64
#pragma unroll
    for (int b = 0; b < kPositionBlocks; ++b) {
#pragma unroll
      for (int c = 0; c < kColumnBlocks; c += 2) {
        uint32_t operands[4];
        ptx::ldmatrix_x4_trans(operands, shared_ + values_at.at(16 * b, c) + first);
#pragma unroll
        for (int r = 0; r < kRowBlocks; ++r) mma_pair<T>(values_[r][c], values_[r][c + 1], p[r][b], operands);
      }
    }
  }

  // As results, or as a piece's partial results.
  __device__ void write_rows() const {
#pragma unroll
    for (int r = 0; r < kRowBlocks; ++r) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const Stats stats = online_[r].stats(h, args_.fold);
        const int row = first_row_ + r * 16 + lane_ / 4 + 8 * h;
        if (row >= item_.num_rows) continue;
        const int first = warp_ * kColumns + lane_ % 4 * 2;
        const bool whole = item_.partial < 0;
        const int64_t partial = item_.partial + row;
        if (!whole && warp_ == 0 && lane_ % 4 == 0) {
          args_.work.partial_stats[2 * partial] = stats.max;
          args_.work.partial_stats[2 * partial + 1] = stats.sum;
        }
        const float factor = whole ? final_factor(args_, item_, row, stats) : 1.0f;
        T* const to = result_of(args_, find_row(args_, item_, row)) + first;
        float* const part = args_.work.partials + partial * args_.value_dim + first;
#pragma unroll
        for (int c = 0; c < kColumnBlocks; ++c) {
          if (warp_ * kColumns + 8 * c >= args_.value_dim) continue;
          const float low = values_[r][c][2 * h], high = values_[r][c][2 * h + 1];
          if (whole) *reinterpret_cast<uint32_t*>(to + 8 * c) = pack_two(low * factor, high * factor, T());
          else *reinterpret_cast<float2*>(part + 8 * c) = make_float2(low, high);
        }
      }
    }
  }

  const Args<T>& args_;
  const AttentionItem& item_;
  const Visible& visible_;  // registers are all taken
  const int first_row_;
  T* const shared_;  // queries, the stages, scores, pool rows of both stages
  const int warp_, lane_;
  OnlineRows online_[kRowBlocks];  // the same in every warp
  float values_[kRowBlocks][kColumnBlocks][4] = {};
};

// Without large shared memory, 99 KiB must do.
template <class T, bool kLatents, bool kLarge>
struct WideKernel {
  using Few = WideAttention<T, kLatents, 1, kLarge ? 32 : 16>;
  using Many = WideAttention<T, kLatents, kLarge ? 4 : kLatents ? 2 : 1, kLarge ? 32 : 16>;
  static constexpr int kStateAt = (Many::kSharedBytes + 15) / 16 * 16;
  static constexpr int kSharedBytes = kStateAt + static_cast<int>(sizeof(BlockState));
};

template <class T, bool kLatents>
__global__ void __launch_bounds__(kWideThreads, 1) wide_paged_attention_kernel(const Args<T> args) {
  ptx::follow_previous_grid();
  using K = WideKernel<T, kLatents, kLargeShared>;
  T* const shared = dynamic_shared<T>();
  BlockState* const state = reinterpret_cast<BlockState*>(dynamic_shared<char>() + K::kStateAt);
  const AttentionItem& item = state->item;
  for (bool more = next_item(args, true, state); more; more = next_item(args, false, state)) {
    if (item.num_rows <= K::Few::kRows) {
      typename K::Few(args, *state, 0, shared).run();
    } else {
      for (int row = 0; row < item.num_rows; row += K::Many::kRows)
        typename K::Many(args, *state, row, shared).run();
    }
    if (item.partial >= 0 && last_to_arrive(args, item, threadIdx.x == 0, &state->is_last, [] { __syncthreads(); }))
      merge_pieces<1>(args, item, static_cast<int>(threadIdx.x) / 32, kWideWarps);
  }
}

template <class T, bool kLatents>
void launch_wide_kernel(const Args<T>& args, cudaStream_t stream) {
  const int shared_bytes = has_large_shared() ? WideKernel<T, kLatents, true>::kSharedBytes
                                              : WideKernel<T, kLatents, false>::kSharedBytes;
  launch_ahead(
      {dim3(static_cast<unsigned>(args.work.num_ctas)), dim3(kWideThreads), static_cast<size_t>(shared_bytes), stream},
      wide_paged_attention_kernel<T, kLatents>, args);
}

template <class T>
void launch_wide(const Args<T>& args, cudaStream_t stream) {
  LLMB_CHECK(args.qkv_stride % 8 == 0 && args.work.shared.stats == nullptr);
  if (args.value_dim < args.head_dim) launch_wide_kernel<T, true>(args, stream);
  else launch_wide_kernel<T, false>(args, stream);
}

}  // namespace llmb::cuda::attention
