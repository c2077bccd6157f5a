// How a warp that walks through positions by itself (paged_attention_positions.h) has a strip of keys or values in
// shared memory and takes it as tensor-core operands: as T, or as the bytes that are in the pools, widened on their way
// into registers. Rows of a tile are counted in units of two bytes.
#pragma once

#include "kernels/cuda/paged_attention_scaled.h"
#include "kernels/cuda/paged_attention_states.h"

namespace llmb::cuda::attention {

template <class T, class KV, int kDim>
struct Strip;  // below, for bytes

// Keys and values are of T.
template <class T, int kDim>
struct Strip<T, T, kDim> {
  static constexpr int kPositions = 16;
  static constexpr int kUnits = kDim;  // of a row
  using Plan = CopyPlan<kUnits, kPositions, 32>;
  using Read = ReadPairs<kDim>;

  // Whether rows of the pools can be copied; where they cannot, RowAttention takes the item.
  static __device__ bool takes(const Args<T>&) { return true; }

  // Starts the copies of a strip, as copy_positions().
  template <class PoolRowAt>
  static __device__ void copy(const Args<T>& args, const void* pool, const Visible& visible, int position,
                              const PoolRowAt& pool_row_at, int lane, T* tile) {
    copy_positions<T, T, kDim, kPositions, 32, 1>(args, {pool}, args.head_dim, visible, position, pool_row_at, lane, {tile});
  }

  // Fragment c of a query for the lane's row h; 0 where the row is not `valid` and past head_dim.
  static __device__ void load_query(const T* query, int c, int h, int lane, bool valid, int head_dim,
                                    uint32_t (&fragment)[4]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int channel = 16 * c + 8 * half + lane % 4 * 2;
      fragment[2 * half + h] = valid && channel < head_dim ? *reinterpret_cast<const uint32_t*>(query + channel) : 0;
    }
  }

  // s += queries * keys; `tile` counts in units from `shared`.
  static __device__ void add_scores(const T* shared, int tile, int lane, const uint32_t (&queries)[kDim / 16][4],
                                    float (&s)[kPositions / 8][4]) {
    const LaneOffset<kUnits> at = key_offset<kUnits>(tile, lane);
#pragma unroll
    for (int c = 0; c < kDim / 16; ++c) {
      uint32_t keys[4];
      ptx::ldmatrix_x4(keys, shared + at.at(0, 2 * c));
      mma_pair<T>(s[0], s[1], queries[c], keys);
    }
  }

  // values += numerators * the tile.
  static __device__ void add_values(const T* shared, int tile, int lane, const uint32_t (&p)[kPositions / 16][4],
                                    float (&values)[kDim / 8][4]) {
    const LaneOffset<kUnits> at = value_offset<kUnits>(tile, lane);
#pragma unroll
    for (int c = 0; c < kDim / 8; c += 2) {
      uint32_t operands[4];
      ptx::ldmatrix_x4_trans(operands, shared + at.at(0, c));
      mma_pair<T>(values[c], values[c + 1], p[0], operands);
    }
  }

  // The lane's results of its row h go to a row of floats, where all channels of the tile have a place.
  static __device__ void store(const float (&values)[kDim / 8][4], int h, int lane, float* row) {
#pragma unroll
    for (int c = 0; c < kDim / 8; ++c)
      *reinterpret_cast<float2*>(row + 8 * c + lane % 4 * 2) = make_float2(values[c][2 * h], values[c][2 * h + 1]);
  }
};

// Keys and values are bytes. A register of an ldmatrix holds two neighbouring bytes for each element of 16 bits, so one
// load brings the operands of two products. Which channel or position a place of an operand stands for changes no sum:
// the queries follow the keys, and results come in places of their own.
template <class T, class KV, int kDim>
struct Strip {
  static_assert(kHasScales<KV>);
  static constexpr int kPositions = kDim > 128 ? 16 : 32;  // as registers allow
  static constexpr int kUnits = (kDim / 2 + 15) / 16 * 16;
  static constexpr int kChunks = kDim / 16;  // of 16 channels

  using Plan = CopyPlan<kUnits, kPositions, 32>;

  static __device__ bool takes(const Args<T>& args) { return args.head_dim % 16 == 0; }  // it copies 16 bytes at a time

  template <class PoolRowAt>
  static __device__ void copy(const Args<T>& args, const void* pool, const Visible& visible, int position,
                              const PoolRowAt& pool_row_at, int lane, T* tile) {
    const int first_row = lane / Plan::kLanes, chunk = lane % Plan::kLanes, num_chunks = args.head_dim / 16;
    const char* const column = static_cast<const char*>(pool) + min(chunk, num_chunks - 1) * 16;
    const unsigned num_visible = chunk < num_chunks ? static_cast<unsigned>(visible.end - visible.begin) : 0;
    const unsigned before = static_cast<unsigned>(position - visible.begin + first_row);
    const int to = Tile<kUnits>::offset(first_row, chunk);
#pragma unroll
    for (int step = 0; step < Plan::kSteps; ++step) {
      const int row = step * Plan::kStepRows;
      const uint64_t from = uint64_t{pool_row_at(step, first_row + row)} * static_cast<unsigned>(args.head_dim);
      if (Tile<kUnits>::kChunks == Plan::kLanes || chunk < Tile<kUnits>::kChunks)
        ptx::cp_async16(tile + (to ^ Tile<kUnits>::swizzle(row) * 8) + row * kUnits, column + from,
                        before + static_cast<unsigned>(row) < num_visible);
    }
  }

  static __device__ void load_query(const T* query, int c, int h, int lane, bool valid, int head_dim,
                                    uint32_t (&fragment)[4]) {
    const int channel = 16 * c + lane % 4 * 4;
    uint2 four = make_uint2(0, 0);
    if (valid && channel < head_dim) four = *reinterpret_cast<const uint2*>(query + channel);
    fragment[h] = __byte_perm(four.x, four.y, 0x5410);
    fragment[2 + h] = __byte_perm(four.x, four.y, 0x7632);
  }

  static __device__ void add_scores(const T* shared, int tile, int lane, const uint32_t (&queries)[kDim / 16][4],
                                    float (&s)[kPositions / 8][4]) {
    const LaneOffset<kUnits> at = key_offset<kUnits>(tile, lane);
#pragma unroll
    for (int c = 0; c < kChunks; c += 2) {
#pragma unroll
      for (int first = 0; first < kPositions; first += 16) {
        uint32_t bytes[4];  // of positions 0-7: chunks c and c + 1; of positions 8-15
        ptx::ldmatrix_x4(bytes, shared + at.at(first, c));
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (c + i % 2 >= kChunks) continue;
          const EvenOdd keys = widen_four<T, KV>(bytes[i]);
          ptx::mma_m16n8k16<T>(s[first / 8 + i / 2], queries[c + i % 2], {keys.even, keys.odd});
        }
      }
    }
  }

  // The first block of results has the even ones of 16 channels, the second the odd ones.
  static __device__ void add_values(const T* shared, int tile, int lane, const uint32_t (&p)[kPositions / 16][4],
                                    float (&values)[kDim / 8][4]) {
    const LaneOffset<kUnits> at = value_offset<kUnits>(tile, lane);
#pragma unroll
    for (int first = 0; first < kPositions; first += 16) {
#pragma unroll
      for (int c = 0; c < kChunks; c += 2) {
        uint32_t bytes[4];  // of chunk c: positions 0-7 and 8-15; of chunk c + 1
        ptx::ldmatrix_x4_trans(bytes, shared + at.at(first, c));
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          if (c + i >= kChunks) continue;
          const EvenOdd low = widen_four<T, KV>(bytes[2 * i]), high = widen_four<T, KV>(bytes[2 * i + 1]);
          ptx::mma_m16n8k16<T>(values[2 * (c + i)], p[first / 16], {low.even, high.even});
          ptx::mma_m16n8k16<T>(values[2 * (c + i) + 1], p[first / 16], {low.odd, high.odd});
        }
      }
    }
  }

  static __device__ void store(const float (&values)[kDim / 8][4], int h, int lane, float* row) {
#pragma unroll
    for (int c = 0; c < kDim / 8; c += 2)
      *reinterpret_cast<float4*>(row + 8 * c + lane % 4 * 4) =
          make_float4(values[c][2 * h], values[c + 1][2 * h], values[c][2 * h + 1], values[c + 1][2 * h + 1]);
  }

  // As ReadPairs, where store() has them.
  struct Read {
    __device__ void operator()(const float* row, int head_dim, float2 (&values)[kDim / 8]) const {
#pragma unroll
      for (int c = 0; c < kDim / 8; c += 2) {
        const int column = min(8 * c + static_cast<int>(threadIdx.x) % 4 * 4, head_dim - 4);
        const float4 x = __ldcg(reinterpret_cast<const float4*>(row + column));
        values[c] = make_float2(x.x, x.z);
        values[c + 1] = make_float2(x.y, x.w);
      }
    }
  };
};

}  // namespace llmb::cuda::attention
