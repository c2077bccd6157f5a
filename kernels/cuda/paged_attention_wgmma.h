// Attention of up to 128 rows on Hopper (as FlashAttention-3, Shah et al. 2024): a producer warp brings tiles of keys
// and values by tensor copies, one box for each KV block; two warpgroups of 64 rows each multiply by wgmma, in turns,
// so that one's softmax runs beside the other's products. Bound by multiply-adds. sm_90a only.
#pragma once

#include <algorithm>

#include "base/check.h"
#include "kernels/cuda/paged_attention_tiles.h"
#include "kernels/cuda/tensor_map.h"

namespace llmb::cuda::attention {

template <class T, int kDim>
struct Wgmma {
  static_assert(kDim % 64 == 0);
  static constexpr int kThreads = 384;  // the producer's warpgroup and two consumers
  static constexpr int kTile = AttentionTiling::kWgmmaTile;
  static constexpr int kGroupRows = 64;
  static constexpr int kSlots = 6;  // tiles of keys and values, in turn
  // A tile is [kDim / 64, positions, 64], a group's queries [kDim / 64, kGroupRows, 64], rows swizzled as tensor copies
  // do it.
  static constexpr int kTileElements = kTile * kDim;
  static constexpr int kQueryElements = kGroupRows * kDim;

  struct State {
    uint64_t full[kSlots], empty[kSlots];
    int is_last;
  };
  static constexpr int kTileBytes = (2 * kQueryElements + kSlots * kTileElements) * 2;
  static constexpr int kSharedBytes = kTileBytes + static_cast<int>(sizeof(State));

  static __device__ T* tile(T* shared, int slot) { return shared + 2 * kQueryElements + slot * kTileElements; }
};

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

// One warp: each lane copies one box at most of every tile.
template <class T, int kDim>
__device__ void produce_tiles(const Args<T>& args, const CUtensorMap* k_map, const CUtensorMap* v_map, int box_rows,
                              T* shared, typename Wgmma<T, kDim>::State* state) {
  using W = Wgmma<T, kDim>;
  constexpr int kHalves = kDim / 64;
  const int lane = threadIdx.x % 32, box = lane / kHalves * box_rows, half = lane % kHalves;
  RingPlace<W::kSlots> place;
  for (int i = args.work.cta_start[blockIdx.x]; i < args.work.cta_start[blockIdx.x + 1]; ++i) {
    const AttentionItem item = args.work.items[i];
    const Visible visible = visible_positions(args, item);
    for (int tile = visible.begin / W::kTile * W::kTile; tile < visible.end; tile += W::kTile) {
      const int position = tile + box;
      const bool is_mine = box < W::kTile && position < visible.end && position + box_rows > visible.begin;
      const int row = is_mine ? static_cast<int>(pool_row(args, item, position)) : 0;
      const uint32_t num_boxes = static_cast<uint32_t>(__popc(__ballot_sync(kAllLanes, is_mine)));
      for (const CUtensorMap* map : {k_map, v_map}) {
        ptx::mbarrier_wait(&state->empty[place.slot], ~place.round & 1);
        if (lane == 0)
          ptx::mbarrier_arrive_expect_tx(&state->full[place.slot], num_boxes * static_cast<uint32_t>(box_rows) * 128);
        __syncwarp();
        T* to = W::tile(shared, place.slot) + (half * W::kTile + box) * 64;
        if (is_mine) ptx::tma_load_2d(to, map, &state->full[place.slot], half * 64, row);
        place.advance();
      }
    }
  }
}

// One of the two warpgroups that multiply.
template <class T, int kDim>
class WgmmaConsumer {
 public:
  using W = Wgmma<T, kDim>;

  __device__ WgmmaConsumer(const Args<T>& args, T* shared, typename W::State* state)
      : args_(args),
        shared_(shared),
        state_(*state),
        group_(threadIdx.x / 128 - 1),
        warp_(threadIdx.x / 32 % 4),
        lane_(threadIdx.x % 32) {
    if (group_ == 1) end_turn();
  }

  __device__ void run() {
    for (int i = args_.work.cta_start[blockIdx.x]; i < args_.work.cta_start[blockIdx.x + 1]; ++i) {
      const AttentionItem& item = args_.work.items[i];
      attend(item);
      const auto meet = [] { ptx::bar_sync(kBothBarrier, 256); };
      const int thread = static_cast<int>(threadIdx.x) - 128;
      if (item.partial >= 0 && last_to_arrive(args_, item, thread == 0, &state_.is_last, meet))
        merge_pieces(args_, item, thread / 32, 8);
    }
    if (group_ == 0) begin_turn();  // takes what the other group's last turn gave
  }

 private:
  static constexpr uint32_t kBothBarrier = 1, kGroupBarrier = 2, kTurnBarrier = 4;  // the latter two and the next
  static constexpr int kScoreBlocks = W::kTile / 8, kValueBlocks = kDim / 8;

  __device__ void meet_group() const { ptx::bar_sync(kGroupBarrier + group_, 128); }
  __device__ void begin_turn() const { ptx::bar_sync(kTurnBarrier + group_, 256); }
  __device__ void end_turn() const { ptx::bar_arrive(kTurnBarrier + (group_ ^ 1), 256); }

  __device__ T* queries() const { return shared_ + group_ * W::kQueryElements; }
  __device__ T* tile() const { return W::tile(shared_, place_.slot); }
  __device__ void wait_for_tile() const { ptx::mbarrier_wait(&state_.full[place_.slot], place_.round & 1); }
  // One arrival for each warp.
  __device__ void release(int slot) const {
    if (lane_ == 0) ptx::mbarrier_arrive(&state_.empty[slot]);
  }

  __device__ void attend(const AttentionItem& item) {
    const Visible visible = visible_positions(args_, item);
    const int first_row = group_ * W::kGroupRows + warp_ * 16;
    const RowPair rows = find_rows(args_, item, first_row + lane_ / 4);
    const int first_position = find_row(args_, item, min(first_row, item.num_rows - 1)).position;
    const int last_position = find_row(args_, item, min(first_row + 15, item.num_rows - 1)).position;
    float s[kScoreBlocks][4], o[kValueBlocks][4] = {};
    uint32_t p[kScoreBlocks / 2][4];
    OnlineRows online;
    float rescale[2];
    // Scores of one tile become numerators.
    const auto add_scores = [&](int position) {
      const int column = position + lane_ % 4 * 2;
      if (args_.transforms_scores()) transform_scores(args_, rows, column, s);
      const bool all_seen = position + W::kTile - 1 <= first_position && position > last_position - args_.window;
      if (!all_seen) mask_scores(rows, args_.window, column, s);
      online.add(s, args_.fold, rescale);
    };

    load_queries(item);
    int position = visible.begin / W::kTile * W::kTile;
    if (position < visible.end) {
      wait_for_tile();
      begin_turn();
      multiply_queries(s);
      end_turn();
      ptx::wgmma_wait<0>();
      release(place_.slot);
      place_.advance();
      add_scores(position);
      pack(s, p);
      for (; position + W::kTile < visible.end; position += W::kTile) {
        // Values of this tile beside keys of the next; its softmax then beside the values.
        const RingPlace<W::kSlots> values = place_;
        wait_for_tile();
        clear_unseen_values(visible, position);
        place_.advance();
        wait_for_tile();
        begin_turn();
        multiply_queries(s);
        multiply_values(W::tile(shared_, values.slot), p, o);
        end_turn();
        ptx::wgmma_wait<1>();
        release(place_.slot);
        place_.advance();
        add_scores(position + W::kTile);
        ptx::wgmma_wait<0>();
        release(values.slot);
        rescale_values(rescale, o);
        pack(s, p);
      }
      wait_for_tile();
      clear_unseen_values(visible, position);
      multiply_values(tile(), p, o);
      ptx::wgmma_wait<0>();
      release(place_.slot);
      place_.advance();
    }
    meet_group();  // the queries are done with
    write_rows<T, kDim>(args_, item, first_row, online, o, queries() + warp_ * 16 * kDim);
  }

  __device__ void load_queries(const AttentionItem& item) {
    constexpr int kChunks = kDim / 8, kStep = 128 / kChunks;
    meet_group();  // nobody writes results from there any more
    const int thread = static_cast<int>(threadIdx.x % 128), chunk = thread % kChunks;
    for (int row = thread / kChunks; row < W::kGroupRows; row += kStep) {
      const int unit_row = group_ * W::kGroupRows + row;
      const bool valid = unit_row < item.num_rows;
      const T* from = query_of(args_, find_row(args_, item, valid ? unit_row : 0)) + chunk * 8;
      ptx::cp_async16(queries() + (chunk / 8 * W::kGroupRows + row) * 64 + (chunk % 8 ^ row % 8) * 8, from, valid);
    }
    ptx::cp_async_commit();
    ptx::cp_async_wait<0>();
    ptx::fence_proxy_async();
    meet_group();
  }

  // Starts s = queries * keys of the tile.
  __device__ void multiply_queries(float (&s)[kScoreBlocks][4]) const {
    auto& sums = reinterpret_cast<float(&)[W::kTile / 2]>(s);
    ptx::wgmma_fence();
#pragma unroll
    for (int channel = 0; channel < kDim; channel += 16) {
      const int half = channel / 64, at = channel % 64;
      ptx::wgmma<T, W::kTile>(sums, ptx::wgmma_descriptor(queries() + half * W::kGroupRows * 64 + at, 0, 1024),
                              ptx::wgmma_descriptor(tile() + half * W::kTile * 64 + at, 0, 1024), channel > 0);
    }
    ptx::wgmma_commit();
  }

  // Starts o += numerators * values.
  __device__ void multiply_values(const T* values, const uint32_t (&p)[kScoreBlocks / 2][4],
                                  float (&o)[kValueBlocks][4]) const {
    auto& sums = reinterpret_cast<float(&)[kDim / 2]>(o);
    ptx::wgmma_fence();
#pragma unroll
    for (int b = 0; b < kScoreBlocks / 2; ++b)
      ptx::wgmma<T, kDim, true>(sums, p[b], ptx::wgmma_descriptor(values + b * 16 * 64, W::kTile * 128, 1024), true);
    ptx::wgmma_commit();
  }

  __device__ static void pack(const float (&s)[kScoreBlocks][4], uint32_t (&p)[kScoreBlocks / 2][4]) {
#pragma unroll
    for (int b = 0; b < kScoreBlocks; ++b) {
      p[b / 2][b % 2 * 2] = pack_two(s[b][0], s[b][1], T());
      p[b / 2][b % 2 * 2 + 1] = pack_two(s[b][2], s[b][3], T());
    }
  }

  // Boxes bring whole blocks, or none: what no row may see is cleared in values, lest 0 * NaN. Both groups do it.
  __device__ void clear_unseen_values(const Visible& visible, int position) const {
    if (position >= visible.begin && position + W::kTile <= visible.end) return;
    const int thread = static_cast<int>(threadIdx.x % 128);
    for (int row = thread / 8; row < W::kTile; row += 16) {
      if (position + row >= visible.begin && position + row < visible.end) continue;
      for (int half = 0; half < kDim / 64; ++half)
        *reinterpret_cast<uint4*>(tile() + (half * W::kTile + row) * 64 + thread % 8 * 8) = make_uint4(0, 0, 0, 0);
    }
    ptx::fence_proxy_async();
    meet_group();
  }

  const Args<T>& args_;
  T* const shared_;
  typename W::State& state_;
  const uint32_t group_;
  const int warp_, lane_;
  RingPlace<W::kSlots> place_;
};

#endif  // LLMB_HAS_SM90A

template <class T, int kDim>
__global__ void __launch_bounds__(Wgmma<T, kDim>::kThreads, 1)
    wgmma_paged_attention_kernel(const Args<T> args, const __grid_constant__ CUtensorMap k_map,
                                 const __grid_constant__ CUtensorMap v_map, int box_rows) {
#ifdef LLMB_HAS_SM90A
  ptx::follow_previous_grid();
  using W = Wgmma<T, kDim>;
  T* shared = dynamic_shared<T>();
  auto* state = reinterpret_cast<typename W::State*>(dynamic_shared<char>() + W::kTileBytes);
  if (threadIdx.x == 0) {
    for (int i = 0; i < W::kSlots; ++i) {
      ptx::mbarrier_init(&state->full[i], 1);
      ptx::mbarrier_init(&state->empty[i], 8);
    }
    ptx::mbarrier_init_fence();
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    ptx::registers_decrease<40>();
    if (threadIdx.x < 32) produce_tiles<T, kDim>(args, &k_map, &v_map, box_rows, shared, state);
  } else {
    ptx::registers_increase<232>();
    WgmmaConsumer<T, kDim>(args, shared, state).run();
  }
#endif
}

// A pool is rows of head_dim; a box is the largest power of two of them that no block's border cuts.
template <class T, int kDim>
void launch_wgmma_for_dim(const Args<T>& args, cudaStream_t stream) {
  using W = Wgmma<T, kDim>;
  const uint64_t num_rows = static_cast<uint64_t>(args.work.num_blocks) * static_cast<uint64_t>(args.num_kv_heads) *
                            static_cast<uint64_t>(args.block_size);
  LLMB_CHECK(num_rows > 0 && num_rows < uint64_t{1} << 31);
  const int32_t box_rows = std::min(W::kTile, args.block_size & -args.block_size);
  const auto map_of = [&](const T* pool) {
    return make_tensor_map(pool, {{kDim, num_rows}, {kDim * sizeof(T)}, {64, static_cast<uint32_t>(box_rows)}});
  };
  launch_ahead({dim3(static_cast<unsigned>(args.work.num_ctas)), dim3(W::kThreads), W::kSharedBytes, stream},
               wgmma_paged_attention_kernel<T, kDim>, args, map_of(args.k), map_of(args.v), box_rows);
}

template <class T>
void launch_wgmma(const Args<T>& args, cudaStream_t stream) {
  if (args.head_dim == 64) {
    launch_wgmma_for_dim<T, 64>(args, stream);
  } else {
    launch_wgmma_for_dim<T, 128>(args, stream);
  }
}

}  // namespace llmb::cuda::attention
