// Products of weights of few bits and rows of x on tensor cores: the main loop of linear_int4, linear_fp8,
// linear_sparse24 and linear_grouped of the first two. Device code only.
//
// A weight is taken in units of 128 features by 64 k, [tile of features][step of k]. Codes says how they lie
// (int4_fragments.h, fp8_fragments.h):
//   kUnitBytes           of a unit in shared memory
//   kHasRowScales        whether sums are multiplied by a scale of their feature
//   Source               the matrix; source() makes it of its address
//   Loader<kUnits>       brings one stage of kUnits units after the other to shared memory, by all threads
//   Places               of what a lane reads of a unit
//   for_each_fragment()  a lane's part of mma_m16n8k16's first operand for 16 features, 16 k at a time, as T
// Where products are others than mma_m16n8k16's, Codes has Sums of its own instead of the last two
// (sparse24_fragments.h).
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/device.h"
#include "kernels/cuda/linear_codes_options.h"
#include "kernels/cuda/mma_tiles.h"
#include "kernels/cuda/ptx.h"

namespace llmb::cuda::code_tiles {

constexpr int kThreads = 256;  // eight warps, of 16 features each
constexpr int kMinStages = 3;

// kRows rows of x times 128 features. Units and their columns of x are in a ring of stages, or on their way there.
template <int kNumRows, class CodesOfWeight>
struct Shape {
  using Codes = CodesOfWeight;
  static constexpr int kRows = kNumRows, kRowTiles = kRows / 8;
  static constexpr int kUnitBytes = Codes::kUnitBytes, kXElements = kRows * kUnitK;  // of a unit
  // A stage costs some 60 instructions beside its units, and few rows of small units are bound by instructions.
  static constexpr bool kHasFour =
      kRows <= 16 && kMinStages * 4 * (kUnitBytes + 2 * kXElements) <= tuning::kInt4RingBytes;
  static constexpr int kUnits = kHasFour ? 4 : kRows <= 32 ? 2 : 1;
  static constexpr int kMaxStages = kHasFour || kRows > 64 ? 4 : 8;  // as many begin by way of registers, less one
  static constexpr int kStageBytes = kUnits * (kUnitBytes + 2 * kXElements);
};

// Until the oldest of the stages under way has landed.
template <class S>
__device__ __forceinline__ void wait_for_stage(int num_stages) {
  if constexpr (S::kMaxStages <= 4) {
    if (num_stages == 3) ptx::cp_async_wait<1>();
    else ptx::cp_async_wait<2>();
    return;
  }
  switch (num_stages) {
    case 3:
      return ptx::cp_async_wait<1>();
    case 4:
      return ptx::cp_async_wait<2>();
    case 5:
      return ptx::cp_async_wait<3>();
    case 6:
      return ptx::cp_async_wait<4>();
    case 7:
      return ptx::cp_async_wait<5>();
    default:
      return ptx::cp_async_wait<6>();
  }
}

// Brings units that lie one behind the other to shared memory, kUnits at a time: a Loader of Codes. A thread's
// addresses are reckoned once and then move on.
template <int kUnitBytes, int kUnits>
class UnitLoader {
 public:
  __device__ __forceinline__ UnitLoader(const uint8_t* units, int, int begin, int end)
      : from_(units + int64_t{begin} * kUnitBytes + threadIdx.x * 16),
        bytes_left_((end - begin) * kUnitBytes - static_cast<int>(threadIdx.x) * 16) {}

  __device__ __forceinline__ void load(uint8_t* stage) {
    constexpr int kBytes = kUnits * kUnitBytes, kPassBytes = kThreads * 16;
    uint8_t* const to = stage + threadIdx.x * 16;
    const auto copy_below = [&](int end) {
#pragma unroll
      for (int at = 0; at < kBytes; at += kPassBytes) {
        const bool is_in_stage = at + kPassBytes <= kBytes || static_cast<int>(threadIdx.x) * 16 < kBytes - at;
        if (is_in_stage && end > at) ptx::cp_async16(to + at, from_ + at);
      }
    };
    if (bytes_left_ >= kBytes) copy_below(kBytes);  // most stages, without a comparison for each piece
    else copy_below(bytes_left_);
    from_ += kBytes;
    bytes_left_ -= kBytes;
  }

 private:
  const uint8_t* from_;  // this thread's first 16 bytes of the next stage
  int bytes_left_;       // of the block's from there on
};

// Brings a block's units to shared memory, and the columns of x that belong to them: stage after stage of kUnits units,
// the last of which may be short. A thread's addresses are reckoned once and then move on.
template <class T, class S>
class Loader {
 public:
  // Units [begin, end) of a matrix with num_steps units a tile; row i of x is at row_of(i), nullptr: zeros.
  template <class RowOf>
  __device__ __forceinline__ Loader(const typename S::Codes::Source& weight, const T* x, const RowOf& row_of,
                                    int64_t in_features, int num_steps, int begin, int end)
      : weights_(weight, num_steps, begin, end),
        x_units_left_(end - begin),
        k_(begin % num_steps * kUnitK),
        k_end_(num_steps * kUnitK),
        x_place_(S::kUnits * S::kUnitBytes + 2 * mma_tiles::element_of(threadIdx.x / kChunks, threadIdx.x % kChunks)) {
    const int column = threadIdx.x % kChunks * 8;
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      const int row = pass * kPassRows + static_cast<int>(threadIdx.x) / kChunks;
      const T* const from = row_of(row);
      x_[pass] = from != nullptr ? from + column : x;
      columns_[pass] = from != nullptr ? static_cast<int>(in_features) - column : 0;
      ptx::keep(x_[pass]);
    }
    ptx::keep(x_place_);
  }

  __device__ __forceinline__ void load_weights(uint8_t* stage) { weights_.load(stage); }

  // The next stage's columns of x.
  __device__ __forceinline__ void load_x(uint8_t* stage) {
    if (!has_place()) return;
    T* const to = reinterpret_cast<T*>(stage + x_place_);
    for_each_piece([&](int place, const T* from, bool is_inside) { ptx::cp_async16(to + place, from, is_inside); });
  }

  // The same of the ring's first stages, at once: by way of registers, since asynchronous copies end in their order,
  // behind those of weights.
  __device__ __forceinline__ void load_first_x(uint8_t* ring, int num_stages) {
    if (!has_place()) return;
    uint4 pieces[S::kMaxStages - 1][S::kUnits * kPasses];
#pragma unroll
    for (int s = 0; s < S::kMaxStages - 1; ++s) {
      int i = 0;
      if (s < num_stages)
        for_each_piece([&](int, const T* from, bool is_inside) {
          pieces[s][i++] = is_inside ? __ldcg(reinterpret_cast<const uint4*>(from)) : make_uint4(0, 0, 0, 0);
        });
    }
#pragma unroll
    for (int s = 0; s < S::kMaxStages - 1; ++s) {
      T* const to = reinterpret_cast<T*>(ring + s * S::kStageBytes + x_place_);
#pragma unroll
      for (int i = 0; i < S::kUnits * kPasses; ++i)
        if (s < num_stages)
          *reinterpret_cast<uint4*>(to + i / kPasses * S::kXElements + i % kPasses * kPassRows * kUnitK) = pieces[s][i];
    }
  }

 private:
  static constexpr int kChunks = kUnitK / 8, kPassRows = kThreads / kChunks;  // of 16 bytes of a row of x
  static constexpr int kPasses = S::kRows <= kPassRows ? 1 : S::kRows / kPassRows;

  // Whether this thread copies any of x.
  static __device__ __forceinline__ bool has_place() {
    return S::kRows >= kPassRows || threadIdx.x < S::kRows * kChunks;
  }
  // This thread's pieces of 16 bytes of the next stage: use(elements from x_place_ on, from, is_inside), where not
  // inside, for zeros.
  template <class Use>
  __device__ __forceinline__ void for_each_piece(const Use& use) {
#pragma unroll
    for (int u = 0; u < S::kUnits; ++u) {
#pragma unroll
      for (int pass = 0; pass < kPasses; ++pass)
        use(u * S::kXElements + pass * kPassRows * kUnitK, x_[pass] + k_, x_units_left_ > u && k_ < columns_[pass]);
      k_ += kUnitK;
      if (k_ == k_end_) k_ = 0;
    }
    x_units_left_ -= S::kUnits;
  }

  typename S::Codes::template Loader<S::kUnits> weights_;
  int x_units_left_, k_;
  const int k_end_;
  int x_place_;           // of this thread's first 16 bytes of x in a stage
  const T* x_[kPasses];   // of its rows
  int columns_[kPasses];  // that are there from x_ on
};

// Sums of a warp that has 16 features and all rows: this thread's, of features lane / 4 and 8 on.
template <class Number, int kRowTiles>
class WarpSums {
 public:
  __device__ __forceinline__ void clear() {
#pragma unroll
    for (auto& tile : value_)
#pragma unroll
      for (Number& sum : tile) sum = 0;
  }

  // Calls write(row, feature, sum) for each, counted from the tile's first.
  template <class Write>
  __device__ __forceinline__ void for_each(const Write& write) const {
    const int feature = static_cast<int>(threadIdx.x) / 32 * 16 + static_cast<int>(threadIdx.x) % 32 / 4;
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int j = 0; j < kRowTiles; ++j)
#pragma unroll
        for (int e = 0; e < 2; ++e) write(row(j) + e, feature + 8 * half, value_[j][2 * half + e]);
  }
  // The four sums of row(j), the row after it, and features 8 on.
  __device__ __forceinline__ Number (&of(int j))[4] { return value_[j]; }
  static __device__ __forceinline__ int row(int j) { return j * 8 + static_cast<int>(threadIdx.x) % 4 * 2; }

 protected:
  __device__ __forceinline__ WarpSums() { clear(); }

  Number value_[kRowTiles][4];
};

// This thread's part of 128 features times kRows rows.
template <class T, class S>
class Sums : public WarpSums<float, S::kRowTiles> {
  using WarpSums<float, S::kRowTiles>::value_;

 public:
  __device__ __forceinline__ Sums() {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < kPlaces; ++i) {
      places_[i] = S::kRowTiles == 1 ? mma_tiles::element_of(lane % 8, 4 * i + lane / 8)
                                     : mma_tiles::element_of(lane / 16 * 8 + lane % 8, 2 * i + lane / 8 % 2);
      places_[i] *= int{sizeof(T)};
      ptx::keep(places_[i]);
    }
    codes_.keep();
  }

  __device__ __forceinline__ void add_unit(const uint8_t* unit, const uint8_t* x_tile) {
    uint32_t few[4];  // of 8 rows and 32 k
    S::Codes::template for_each_fragment<T>(unit, codes_, [&](int k, const uint32_t(&fragment)[4]) {
      if constexpr (S::kRowTiles == 1) {
        if (k % 2 == 0) ptx::ldmatrix_x4(few, x_tile + places_[k / 2]);
        const uint32_t b[2] = {few[k % 2 * 2], few[k % 2 * 2 + 1]};
        ptx::mma_m16n8k16<T>(value_[0], fragment, b);
      } else {
#pragma unroll
        for (int j = 0; j < S::kRowTiles; j += 2) {
          uint32_t pair[4];
          ptx::ldmatrix_x4(pair, x_tile + places_[k] + j * (8 * kUnitK * int{sizeof(T)}));
          const uint32_t b0[2] = {pair[0], pair[1]}, b1[2] = {pair[2], pair[3]};
          ptx::mma_m16n8k16<T>(value_[j], fragment, b0);
          ptx::mma_m16n8k16<T>(value_[j + 1], fragment, b1);
        }
      }
    });
  }

 private:
  // Bytes from the begin of a unit, and of a tile of x, to what this lane reads.
  static constexpr int kPlaces = S::kRowTiles == 1 ? 2 : 4;

  typename S::Codes::Places codes_{static_cast<int>(threadIdx.x) / 32};
  int places_[kPlaces];
};

// The products of units [begin, end), of which `loader` begins with the first. end_part(sums, tile, first step, end
// step) takes the sums of a tile's steps, as many as there are among these units. Weights are read before the kernel
// ahead of this one has ended.
template <class T, class S, class EndPart>
__device__ __forceinline__ void multiply_units(Loader<T, S>& loader, int num_stages, int num_steps, int begin, int end,
                                               const EndPart& end_part) {
  uint8_t* const ring = dynamic_shared<uint8_t>();
  uint8_t* const ring_end = ring + num_stages * S::kStageBytes;
  uint8_t* const last_stage = ring_end - S::kStageBytes;
  for (uint8_t* stage = ring; stage != last_stage; stage += S::kStageBytes) {
    loader.load_weights(stage);
    ptx::cp_async_commit();
  }
  ptx::wait_for_previous_grid();
  loader.load_first_x(ring, num_stages - 1);
  Sums<T, S> sums;
  int tile = begin / num_steps, step = begin % num_steps, first_step = step;
  uint8_t *stage = ring, *next_stage = last_stage;
  for (int unit = begin; unit < end;) {
    wait_for_stage<S>(num_stages);
    __syncthreads();  // every thread's copies have landed, and nobody reads the stage that is filled next
    loader.load_weights(next_stage);
    loader.load_x(next_stage);
    ptx::cp_async_commit();  // an empty group keeps the count
    const auto add_unit = [&](int u) {
      sums.add_unit(stage + u * S::kUnitBytes,
                    stage + S::kUnits * S::kUnitBytes + u * (S::kXElements * int{sizeof(T)}));
    };
    for (int u = 0; u < S::kUnits && unit < end;) {
      const int count = min(S::kUnits - u, min(end - unit, num_steps - step));  // until the tile or the stage ends
      if (S::kHasFour && count == S::kUnits) {
#pragma unroll
        for (int i = 0; i < S::kUnits; ++i) add_unit(i);
      } else {
#pragma unroll 1
        for (int i = 0; i < count; ++i) add_unit(u + i);
      }
      u += count, unit += count, step += count;
      if (step < num_steps && unit < end) continue;
      end_part(sums, tile, first_step, step);
      sums.clear();
      ++tile, step = 0, first_step = 0;
    }
    if ((stage += S::kStageBytes) == ring_end) stage = ring;
    if ((next_stage += S::kStageBytes) == ring_end) next_stage = ring;
  }
}

template <class S>
constexpr int num_stages(int ring_bytes) {
  return std::clamp(ring_bytes / S::kStageBytes, kMinStages, S::kMaxStages);
}

}  // namespace llmb::cuda::code_tiles
