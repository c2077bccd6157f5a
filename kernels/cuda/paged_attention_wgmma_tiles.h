// Feeds the wgmma kernel: its shared memory, and the warps that bring keys, values and queries there. sm_90a only.
#pragma once

#include "kernels/cuda/paged_attention_states.h"

namespace llmb::cuda::attention {

// kDim: channels of keys, kValueDim: of values.
template <class T, int kDim, int kValueDim = kDim>
struct Wgmma {
  static_assert(kDim % 64 == 0 && kValueDim % 64 == 0 && kValueDim <= kDim);
  static constexpr int kThreads = 384;  // the producers' warpgroup and two consumers
  static constexpr int kTile = AttentionTiling::kWgmmaTile;
  static constexpr int kGroupRows = 64;
  static constexpr bool kIsJoined = kDim != kValueDim;
  static constexpr int kQueryBuffers = kIsJoined ? 1 : 2;  // this item's, and the next one's where there is room
  static constexpr int kSlots = kIsJoined ? 4 : 5;         // tiles of keys and values, in turn
  // A tile is [channels / 64, positions, 64], a group's queries [kDim / 64, kGroupRows, 64], rows swizzled as tensor
  // copies do it.
  static constexpr int kTileElements = kTile * kDim, kValueElements = kTile * kValueDim;
  static constexpr int kQueryElements = kGroupRows * kDim;

  // One buffer of queries is also where a warp leaves its results: whoever writes there next meets all threads that read
  // or wrote, at barriers where everyone waits (racecheck does not see bar_arrive). Nobody has anything else to do then.
  // Two of them come and go by queries_full and queries_empty.
  static constexpr uint32_t kFullBarrier = 6, kEmptyBarrier = 7;
  static constexpr uint32_t kQueryThreads = 320;  // two warps of producers, two groups of consumers

  struct State {
    uint64_t full[kSlots], empty[kSlots];
    uint64_t queries_full[kQueryBuffers], queries_empty[kQueryBuffers];
    AttentionItem items[kQueryBuffers];
    int is_last;
  };
  static constexpr int kTileBytes =
      (kQueryBuffers * 2 * kQueryElements + (kSlots + 1) / 2 * kTileElements + kSlots / 2 * kValueElements) * 2;
  static constexpr int kSharedBytes = kTileBytes + static_cast<int>(sizeof(State));

  static __device__ T* queries(T* shared, int buffer, int group) {
    return shared + (buffer * 2 + group) * kQueryElements;
  }
  static __device__ T* tile(T* shared, int slot) {
    // Slots take turns; where tiles differ in size there is an even number of them, so that each has tiles of one.
    const int pair = slot / 2 * (kTileElements + kValueElements) + slot % 2 * kTileElements;
    return shared + kQueryBuffers * 2 * kQueryElements + (kIsJoined ? pair : slot * kTileElements);
  }
};

// Where an item's tiles begin. Every item has one at least, if only one that it does not see: before the windows of its
// rows, or, of a piece that became empty, behind them.
__device__ inline int first_tile(const AttentionItem& item, const Visible& visible) {
  constexpr int kTile = AttentionTiling::kWgmmaTile;
  return min(visible.begin, max(visible.end - 1, item.kv_begin)) / kTile * kTile;
}

#ifdef LLMB_HAS_SM90A

// A place in the ring of slots, and how often it has been around.
template <int kSlots>
struct RingPlace {
  int slot = 0;
  uint32_t round = 0;

  __device__ void advance() {
    if (++slot < kSlots) return;
    slot = 0;
    ++round;
  }
};

// Brings the keys (`first` 0) or values (1) of all tiles, of kDim channels: one warp, each lane of which copies one box
// at most of a tile. Where the boxes are is looked up a tile ahead.
template <class T, class W, int kDim>
class TileProducer {
 public:
  __device__ TileProducer(const Args<T>& args, int box_rows, int first)
      : args_(args),
        box_rows_(box_rows),
        box_(static_cast<int>(threadIdx.x % 32) / kHalves * box_rows),
        half_(static_cast<int>(threadIdx.x % 32) % kHalves),
        index_(args.work.cta_start[blockIdx.x]),
        end_(args.work.cta_start[blockIdx.x + 1]) {
    if (first == 1) place_.advance();
  }

  __device__ void run(const CUtensorMap* map, T* shared, typename W::State* state) {
    if (index_ == end_) return;
    next_ = args_.work.items[index_];
    begin_item();
    find_box();
    while (index_ < end_) {
      const bool is_mine = is_mine_;
      const int row = static_cast<int>(pool_row(args_, item_, tile_ + box_, id_));
      tile_ += W::kTile;
      if (tile_ >= visible_.end && ++index_ < end_) begin_item();
      if (index_ < end_) find_box();
      const uint32_t num_boxes = static_cast<uint32_t>(__popc(__ballot_sync(kAllLanes, is_mine)));
      uint64_t* full = &state->full[place_.slot];
      ptx::mbarrier_wait(&state->empty[place_.slot], ~place_.round & 1);
      if (threadIdx.x % 32 == 0)
        ptx::mbarrier_arrive_expect_tx(full, num_boxes * static_cast<uint32_t>(box_rows_) * 128);
      __syncwarp();
      if (is_mine)
        ptx::tma_load_2d(W::tile(shared, place_.slot) + (half_ * W::kTile + box_) * 64, map, full, half_ * 64, row);
      place_.advance();
      place_.advance();
    }
  }

 private:
  static constexpr int kHalves = kDim / 64;

  __device__ void begin_item() {
    item_ = next_;
    if (index_ + 1 < end_) next_ = args_.work.items[index_ + 1];
    visible_ = visible_positions(args_, item_);
    tile_ = first_tile(item_, visible_);
  }

  __device__ void find_box() {
    const int position = tile_ + box_;
    is_mine_ = box_ < W::kTile && position < visible_.end && position + box_rows_ > visible_.begin;
    id_ = is_mine_ ? find_block(args_, item_, position) : 0;
  }

  const Args<T>& args_;
  const int box_rows_, box_, half_;
  int index_;
  const int end_;
  AttentionItem item_, next_;
  Visible visible_;
  int tile_;
  RingPlace<W::kSlots> place_;
  bool is_mine_;  // of the next tile
  BlockId id_;
};

// One warp for each group of consumers: brings the queries of its rows, an item ahead where there are two buffers.
template <class T, class W, int kDim, ItemKind kKind>
__device__ void produce_queries(const Args<T>& args, T* shared, typename W::State* state, int group) {
  constexpr int kChunks = Tile<kDim>::kPaddedChunks, kStep = 32 / kChunks;
  const int lane = threadIdx.x % 32, chunk = lane % kChunks;
  constexpr bool kHasTwo = W::kQueryBuffers > 1;
  RingPlace<W::kQueryBuffers> place;
  const int begin = args.work.cta_start[blockIdx.x], end = args.work.cta_start[blockIdx.x + 1];
  for (int i = begin; i < end; ++i) {
    const AttentionItem item = args.work.items[i];
    if (kHasTwo) ptx::mbarrier_wait(&state->queries_empty[place.slot], ~place.round & 1);
    else if (i > begin) ptx::bar_sync(W::kEmptyBarrier, W::kQueryThreads);
    if (group == 0 && lane == 0) state->items[place.slot] = item;
    T* to = W::queries(shared, place.slot, group);
#pragma unroll 4
    for (int row = lane / kChunks; row < W::kGroupRows; row += kStep) {
      const int unit_row = group * W::kGroupRows + row;
      const bool valid = unit_row < item.num_rows;
      if (kChunks > kDim / 8 && chunk >= kDim / 8) continue;
      const T* from = query_of(args, find_row_of<kKind>(args, item, valid ? unit_row : 0)) + chunk * 8;
      ptx::cp_async16(to + (chunk / 8 * W::kGroupRows + row) * 64 + (chunk % 8 ^ row % 8) * 8, from, valid);
    }
    ptx::cp_async_commit();
    ptx::cp_async_wait<0>();
    ptx::fence_proxy_async();
    __syncwarp();
    if (!kHasTwo) ptx::bar_sync(W::kFullBarrier, W::kQueryThreads);
    else if (lane == 0) ptx::mbarrier_arrive(&state->queries_full[place.slot]);
    place.advance();
  }
  if (!kHasTwo && begin < end) ptx::bar_sync(W::kEmptyBarrier, W::kQueryThreads);
}

#endif  // LLMB_HAS_SM90A

}  // namespace llmb::cuda::attention
