// Attention of up to 128 rows on Hopper (as FlashAttention-3, Shah et al. 2024): two producer warps bring tiles of keys
// and of values by tensor copies, one box for each KV block, two more the next item's queries; two warpgroups of 64
// rows each multiply by wgmma, in turns, so that one's softmax runs beside the other's products, and beside its own
// product with the values. Bound by multiply-adds. sm_90a only.
#pragma once

#include <algorithm>

#include "base/check.h"
#include "kernels/cuda/paged_attention_wgmma_tiles.h"
#include "kernels/cuda/tensor_map.h"

namespace llmb::cuda::attention {

#ifdef LLMB_HAS_SM90A

// One of the two warpgroups that multiply. Rows of shared items see all of their positions, which are whole tiles, as
// far as their windows reach.
template <class T, int kDim, bool kTransforms, ItemKind kKind, int kValueDim = kDim>
class WgmmaConsumer {
 public:
  using W = Wgmma<T, kDim, kValueDim>;

  __device__ WgmmaConsumer(const Args<T>& args, T* shared, typename W::State* state)
      : args_(args),
        shared_(shared),
        state_(*state),
        group_(__shfl_sync(kAllLanes, threadIdx.x / 128 - 1, 0)),
        warp_(threadIdx.x / 32 % 4),
        lane_(threadIdx.x % 32) {
    if (group_ == 1) end_turn();
  }

  __device__ void run() {
    const int num_items = args_.work.cta_start[blockIdx.x + 1] - args_.work.cta_start[blockIdx.x];
    if constexpr (W::kQueryBuffers > 1) {
      if (num_items > 0) attend(num_items);
    } else {
      for (int i = 0; i < num_items; ++i) {
        attend(1);
        item_place_.advance();
      }
    }
    if (group_ == 0) begin_turn();  // takes what the other group's last turn gave
  }

 private:
  static constexpr bool kIsShared = kKind == ItemKind::kShared;
  static constexpr uint32_t kBothBarrier = 1, kGroupBarrier = 2, kTurnBarrier = 4;  // the latter two and the next
  static constexpr int kScoreBlocks = W::kTile / 8, kValueBlocks = kValueDim / 8;

  __device__ void meet_group() const { ptx::bar_sync(kGroupBarrier + group_, 128); }
  __device__ void begin_turn() const { ptx::bar_sync(kTurnBarrier + group_, 256); }
  __device__ void end_turn() const { ptx::bar_arrive(kTurnBarrier + (group_ ^ 1), 256); }

  __device__ T* queries() const { return W::queries(shared_, item_place_.slot, static_cast<int>(group_)); }
  __device__ const AttentionItem& item() const { return state_.items[item_place_.slot]; }
  __device__ int first_row() const { return static_cast<int>(group_) * W::kGroupRows + warp_ * 16; }
  __device__ void wait_for_tile(const RingPlace<W::kSlots>& place) const {
    ptx::mbarrier_wait(&state_.full[place.slot], place.round & 1);
  }
  __device__ void wait_for_queries() const {
    if constexpr (W::kQueryBuffers == 1) ptx::bar_sync(W::kFullBarrier, W::kQueryThreads);
    else ptx::mbarrier_wait(&state_.queries_full[item_place_.slot], item_place_.round & 1);
  }
  // Called by whole warps, for each buffer of each item once.
  __device__ void release_queries(int buffer) const {
    __syncwarp();
    if constexpr (W::kQueryBuffers == 1) ptx::bar_sync(W::kEmptyBarrier, W::kQueryThreads);
    else release(&state_.queries_empty[buffer]);
  }
  // The queries, the keys at place_, and values.
  struct Operands {
    uint64_t queries, keys, values;
  };
  __device__ Operands operands_of(int values_slot) const {
    return {uniform(ptx::wgmma_descriptor(queries(), 0, 1024)),
            uniform(ptx::wgmma_descriptor(W::tile(shared_, place_.slot), 0, 1024)),
            uniform(ptx::wgmma_descriptor(W::tile(shared_, values_slot), W::kTile * 128, 1024))};
  }
  // So that the compiler keeps it, and what is computed from it, in uniform registers.
  static __device__ uint64_t uniform(uint64_t descriptor) {
    return uint64_t{__shfl_sync(kAllLanes, static_cast<uint32_t>(descriptor >> 32), 0)} << 32 |
           __shfl_sync(kAllLanes, static_cast<uint32_t>(descriptor), 0);
  }
  // One arrival for each warp.
  __device__ void release(uint64_t* barrier) const {
    if (lane_ == 0) ptx::mbarrier_arrive(barrier);
  }

  // All items as one sequence of tiles: the scores of a tile, of the next item's first one too, are computed beside
  // the values of the one before, and the softmax beside both.
  __device__ void attend(int num_items) {
    float s[kScoreBlocks][4], o[kValueBlocks][4];
    uint32_t p[kScoreBlocks / 2][4];
    OnlineRows online;
    float rescale[2];
    wait_for_queries();
    wait_for_tile(place_);
    begin_turn();
    multiply_queries(operands_of(place_.slot), s);
    end_turn();
    begin_item(&online, o);
    ptx::wgmma_wait<0>();
    release(&state_.empty[place_.slot]);
    place_.advance();
    add_scores(s, &online, rescale);
    pack(s, p);
    for (;;) {
      const bool is_last_tile = position_ + W::kTile >= visible_.end;
      if (is_last_tile && --num_items == 0) break;
      const RingPlace<W::kSlots> values = place_;
      place_.advance();
      const RingPlace<W::kQueryBuffers> item_place = item_place_;
      if (is_last_tile) {
        item_place_.advance();
        wait_for_queries();
      }
      wait_for_tile(place_);
      const Operands operands = operands_of(values.slot);
      begin_turn();
      multiply_queries(operands, s);
      wait_for_tile(values);
      clear_unseen_values(values.slot);
      multiply_values(operands, p, o);
      end_turn();
      ptx::wgmma_wait<1>();
      release(&state_.empty[place_.slot]);
      place_.advance();
      if (is_last_tile) {
        ptx::wgmma_wait<0>();
        finish_item(state_.items[item_place.slot], item_place.slot, online, o);
        begin_item(&online, o);
      } else {
        position_ += W::kTile;
      }
      add_scores(s, &online, rescale);
      const bool rescales = __any_sync(kAllLanes, rescale[0] != 1.0f || rescale[1] != 1.0f);
      // The wait has to be in a branch too: ptxas would put a single one before the softmax.
      if (rescales) {
        ptx::wgmma_wait<0>();
        scale_values(rescale, o);
      }
      ptx::wgmma_wait<0>();
      release(&state_.empty[values.slot]);
      pack(s, p);
    }
    add_last_values(p, o);
    finish_item(item(), item_place_.slot, online, o);
  }

  __device__ __forceinline__ void add_last_values(const uint32_t (&p)[kScoreBlocks / 2][4],
                                                  float (&o)[kValueBlocks][4]) {
    wait_for_tile(place_);
    clear_unseen_values(place_.slot);
    multiply_values(operands_of(place_.slot), p, o);
    ptx::wgmma_wait<0>();
    release(&state_.empty[place_.slot]);
    place_.advance();
  }

  __device__ void begin_item(OnlineRows* online, float (&o)[kValueBlocks][4]) {
    visible_ = visible_positions(args_, item());
    position_ = first_tile(item(), visible_);
    int first_position = item().kv_end - 1, last_position = first_position;
    if constexpr (!kIsShared) {
      first_position = find_row(args_, item(), min(first_row(), item().num_rows - 1)).position;
      last_position = find_row(args_, item(), min(first_row() + 15, item().num_rows - 1)).position;
    } else if (args_.window < kNoWindow) {
      const PositionRange range = find_shared_range<16>(args_, item(), first_row());
      first_position = range.first, last_position = range.last;
    }
    first_all_seen_ = last_position - args_.window + 1;
    last_all_seen_ = first_position - W::kTile + 1;
    *online = OnlineRows();
#pragma unroll
    for (int b = 0; b < kValueBlocks; ++b) {
#pragma unroll
      for (int e = 0; e < 4; ++e) o[b][e] = 0;
    }
  }

  __device__ void finish_item(const AttentionItem& item, int buffer, const OnlineRows& online,
                              const float (&o)[kValueBlocks][4]) {
    if constexpr (kIsShared) {
      write_states<T, kValueDim>(args_, item, first_row(), online, o);
      return release_queries(buffer);
    }
    T* staging = W::queries(shared_, buffer, static_cast<int>(group_)) + warp_ * 16 * kDim;
    meet_group();  // the queries are done with
    write_rows<T, kValueDim>(args_, item, first_row(), online, o, staging);
    const auto meet = [] { ptx::bar_sync(kBothBarrier, 256); };
    const int thread = static_cast<int>(threadIdx.x) - 128;
    if (item.partial >= 0 && last_to_arrive(args_, item, thread == 0, &state_.is_last, meet))
      merge_pieces<4>(args_, item, thread / 32, 8);
    release_queries(buffer);
  }

  // Scores of the tile at position_ become numerators.
  __device__ void add_scores(float (&s)[kScoreBlocks][4], OnlineRows* online, float (&rescale)[2]) const {
    const int column = position_ + lane_ % 4 * 2;
    const bool all_seen = position_ >= first_all_seen_ && position_ <= last_all_seen_;
    if (!all_seen || kTransforms) {
      const RowPair rows = find_rows_of<kKind>(args_, item(), first_row() + lane_ / 4);
      if (kTransforms) transform_scores(args_, rows, column, s);
      if (!all_seen) mask_scores(rows, args_.window, column, s);
    }
    online->add(s, args_.fold, rescale);
  }

  // Starts s = queries * keys.
  __device__ void multiply_queries(const Operands& operands, float (&s)[kScoreBlocks][4]) const {
    auto& sums = reinterpret_cast<float(&)[W::kTile / 2]>(s);
    ptx::wgmma_fence();
#pragma unroll
    for (int channel = 0; channel < kDim; channel += 16) {
      const int half = channel / 64, at = channel % 64;
      ptx::wgmma<T, W::kTile>(sums, operands.queries + (half * W::kGroupRows * 64 + at) / 8,
                              operands.keys + (half * W::kTile * 64 + at) / 8, channel > 0);
    }
    ptx::wgmma_commit();
  }

  // Starts o += numerators * values.
  __device__ void multiply_values(const Operands& operands, const uint32_t (&p)[kScoreBlocks / 2][4],
                                  float (&o)[kValueBlocks][4]) const {
    auto& sums = reinterpret_cast<float(&)[kValueDim / 2]>(o);
    ptx::wgmma_fence();
#pragma unroll
    for (int b = 0; b < kScoreBlocks / 2; ++b)
      ptx::wgmma<T, kValueDim, true>(sums, p[b], operands.values + b * 16 * 64 / 8, true);
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
  __device__ void clear_unseen_values(int slot) const {
    if (position_ >= visible_.begin && position_ + W::kTile <= visible_.end) return;
    const int thread = static_cast<int>(threadIdx.x % 128);
    for (int row = thread / 8; row < W::kTile; row += 16) {
      if (position_ + row >= visible_.begin && position_ + row < visible_.end) continue;
      for (int half = 0; half < kValueDim / 64; ++half)
        *reinterpret_cast<uint4*>(W::tile(shared_, slot) + (half * W::kTile + row) * 64 + thread % 8 * 8) =
            make_uint4(0, 0, 0, 0);
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
  RingPlace<W::kQueryBuffers> item_place_;
  // The item: where its tile is, what it sees, and where tiles begin that all of this warp's rows see all of.
  int position_;
  Visible visible_;
  int first_all_seen_, last_all_seen_;
};

#endif  // LLMB_HAS_SM90A

template <class T, int kDim, bool kTransforms, ItemKind kKind, int kValueDim = kDim>
__global__ void __launch_bounds__(Wgmma<T, kDim, kValueDim>::kThreads, 1)
    wgmma_paged_attention_kernel(const Args<T> args, const __grid_constant__ CUtensorMap k_map,
                                 const __grid_constant__ CUtensorMap v_map, int box_rows) {
#ifdef LLMB_HAS_SM90A
  ptx::follow_previous_grid();
  using W = Wgmma<T, kDim, kValueDim>;
  T* shared = dynamic_shared<T>();
  auto* state = reinterpret_cast<typename W::State*>(dynamic_shared<char>() + W::kTileBytes);
  if (threadIdx.x == 0) {
    for (int i = 0; i < W::kSlots; ++i) {
      ptx::mbarrier_init(&state->full[i], 1);
      ptx::mbarrier_init(&state->empty[i], 8);
    }
    for (int i = 0; i < W::kQueryBuffers; ++i) {
      ptx::mbarrier_init(&state->queries_full[i], 2);
      ptx::mbarrier_init(&state->queries_empty[i], 8);
    }
    ptx::mbarrier_init_fence();
    ptx::tma_prefetch(&k_map);
    ptx::tma_prefetch(&v_map);
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    ptx::registers_decrease<40>();  // what the block began with: 40 + 2 * 232 <= 3 * 168
    const int warp = static_cast<int>(threadIdx.x / 32);
    if (warp >= 2) {
      produce_queries<T, W, kDim, kKind>(args, shared, state, warp - 2);
    } else if (kDim == kValueDim || warp == 0) {
      TileProducer<T, W, kDim>(args, box_rows, warp).run(warp == 0 ? &k_map : &v_map, shared, state);
    } else {
      TileProducer<T, W, kValueDim>(args, box_rows, warp).run(&v_map, shared, state);
    }
  } else {
    ptx::registers_increase<232>();
    WgmmaConsumer<T, kDim, kTransforms, kKind, kValueDim>(args, shared, state).run();
  }
#endif
}

// A box is the largest power of two of a pool's rows that no block's border cuts.
template <class T, int kDim, ItemKind kKind, int kValueDim = kDim>
void launch_wgmma_for_dim(const Args<T>& args, cudaStream_t stream) {
  using W = Wgmma<T, kDim, kValueDim>;
  const uint64_t num_rows = static_cast<uint64_t>(args.work.num_blocks) * static_cast<uint64_t>(args.num_kv_heads) *
                            static_cast<uint64_t>(args.block_size);
  LLMB_CHECK(num_rows > 0 && num_rows < uint64_t{1} << 31);
  const int32_t box_rows = std::min(W::kTile, args.block_size & -args.block_size);
  const uint64_t row_bytes = static_cast<uint64_t>(args.row_stride) * sizeof(T);
  const auto map_of = [&](const void* pool, uint64_t dim) {
    return make_tensor_map(static_cast<const T*>(pool),
                           {{dim, num_rows}, {row_bytes}, {64, static_cast<uint32_t>(box_rows)}});
  };
  const bool transforms = args.softcap > 0 || args.alibi_slopes != nullptr;
  auto kernel = wgmma_paged_attention_kernel<T, kDim, false, kKind, kValueDim>;
  if constexpr (kDim == kValueDim) {
    if (transforms) kernel = wgmma_paged_attention_kernel<T, kDim, true, kKind>;
  } else {
    LLMB_CHECK(!transforms);
  }
  launch_ahead({dim3(static_cast<unsigned>(args.work.num_ctas)), dim3(W::kThreads), W::kSharedBytes, stream}, kernel,
               args, map_of(args.k, kDim), map_of(args.v, kValueDim), box_rows);
}

template <class T, ItemKind kKind>
void launch_wgmma(const Args<T>& args, cudaStream_t stream) {
  if (args.head_dim == 64) {
    launch_wgmma_for_dim<T, 64, kKind>(args, stream);
  } else {
    launch_wgmma_for_dim<T, 128, kKind>(args, stream);
  }
}

}  // namespace llmb::cuda::attention
