// Tiles of queries, keys and values in shared memory and in tensor-core fragments.
#pragma once

#include "kernels/cuda/paged_attention_device.h"

namespace llmb::cuda::attention {

// [rows, kDim] of 2-byte elements, rows packed. The 16-byte chunks of a row are permuted by the row's number, so that
// the eight rows of an ldmatrix lie in different banks.
template <int kDim>
struct Tile {
  static_assert(kDim % 16 == 0);
  static constexpr int kChunks = kDim / 8;
  static constexpr int kSpread = kChunks % 8 == 0 ? 8 : kChunks % 4 == 0 ? 4 : 2;
  static constexpr int kPaddedChunks = kChunks <= 4 ? 4 : kChunks <= 8 ? 8 : kChunks <= 16 ? 16 : 32;  // a power of two
  static constexpr int kRowShift = kSpread == 8 ? 0 : kSpread == 4 ? 1 : 2;

  // A row's chunk numbers are xored with this; the same for rows 8 apart.
  static __device__ int swizzle(int row) { return row >> kRowShift & (kSpread - 1); }
  static __device__ int offset(int row, int chunk) { return row * kDim + (chunk ^ swizzle(row)) * 8; }
};

// Eight positions that start at a multiple of 8 lie in one block: a lane finds it for its warp, and later their row of
// the pools.
template <class T>
__device__ BlockId find_eight(const Args<T>& args, const AttentionItem& item, const Visible& visible, int position) {
  return position < visible.end && position + 8 > visible.begin ? find_block(args, item, position) : 0;
}

// How kCopiers threads copy kRows positions: a row takes a power of two of threads, each the same column of every row
// it copies, so that most of its address is found once.
template <int kDim, int kRows, int kCopiers>
struct CopyPlan {
  static constexpr int kLanes = Tile<kDim>::kPaddedChunks;  // of a row
  static constexpr int kStepRows = kCopiers / kLanes;
  static constexpr int kSteps = kRows / kStepRows;

  // The eight of the row that a copier copies in a step. Steps of up to eight rows do not leave it: then all copy the
  // same one.
  static __device__ int eight(int copier, int step) {
    return kStepRows <= 8 ? step * kStepRows / 8 : (copier / kLanes + step * kStepRows) / 8;
  }
};

// Starts the copies of kRows positions from `position` into one or more tiles, of as many pools, by kCopiers threads of
// which this is `copier`; positions that are not visible and columns past `dim` become 0. pool_row_at(step, row) is
// the pool row of the tile's row that this thread copies in a step; all threads call it. KV: of the pools' elements, T
// or bytes; of these the eight of a chunk become the first half of its place (paged_attention_scaled.h).
template <class T, class KV, int kDim, int kRows, int kCopiers, int kPools, class PoolRowAt>
__device__ void copy_positions(const Args<T>& args, const void* const (&pools)[kPools], int dim, const Visible& visible,
                               int position, const PoolRowAt& pool_row_at, int copier, T* const (&tiles)[kPools]) {
  constexpr unsigned kChunkBytes = 8 * sizeof(KV);
  using Plan = CopyPlan<kDim, kRows, kCopiers>;
  const int first_row = copier / Plan::kLanes, chunk = copier % Plan::kLanes;
  const int num_chunks = dim / 8;
  const unsigned row_bytes = static_cast<unsigned>(args.row_stride) * static_cast<unsigned>(sizeof(KV));
  const unsigned column = static_cast<unsigned>(min(chunk, num_chunks - 1)) * kChunkBytes;
  const unsigned num_visible = chunk < num_chunks ? static_cast<unsigned>(visible.end - visible.begin) : 0;
  const unsigned before = static_cast<unsigned>(position - visible.begin + first_row);
  const int to = Tile<kDim>::offset(first_row, chunk);
#pragma unroll
  for (int step = 0; step < Plan::kSteps; ++step) {
    const int row = step * Plan::kStepRows;
    const uint64_t from = uint64_t{pool_row_at(step, first_row + row)} * row_bytes + column;
    const int swizzled = to ^ Tile<kDim>::swizzle(row) * 8;
    if (Tile<kDim>::kChunks == Plan::kLanes || chunk < Tile<kDim>::kChunks) {
#pragma unroll
      for (int pool = 0; pool < kPools; ++pool) {
        T* const tile = tiles[pool] + swizzled + row * kDim;
        const char* const source = static_cast<const char*>(pools[pool]) + from;
        const bool valid = before + static_cast<unsigned>(row) < num_visible;
        if constexpr (kChunkBytes == 16) ptx::cp_async16(tile, source, valid);
        else ptx::cp_async<kChunkBytes>(tile, source, valid);
      }
    }
  }
}

// A lane's address for ldmatrix: a row of a tile and one of two neighbouring chunks. As an offset from the block's
// shared memory that is xored with constants, it needs one register where one address for each chunk would need many.
template <int kDim>
class LaneOffset {
 public:
  // `tile`: offset of the tile, a multiple of 8 * kDim.
  __device__ LaneOffset(int tile, int row, int second_chunk)
      : at_(tile + row * kDim + (second_chunk ^ Tile<kDim>::swizzle(row)) * 8) {}
  // first_row: a multiple of 8; chunk: one that `second_chunk` can be added to without a carry.
  __device__ int at(int first_row, int chunk) const {
    constexpr int kSpread = Tile<kDim>::kSpread;
    return (at_ ^ chunk % kSpread * 8) + first_row * kDim + chunk / kSpread * kSpread * 8;
  }

 private:
  int at_;
};

// Operand A: rows 0-7 and 8-15 at channels 0-7, then at channels 8-15.
template <int kDim>
__device__ LaneOffset<kDim> query_offset(int tile, int lane) {
  return {tile, lane % 16, lane / 16};
}
// Operands B of positions 0-7 and 8-15, over 16 channels.
template <int kDim>
__device__ LaneOffset<kDim> key_offset(int tile, int lane) {
  return {tile, lane / 16 * 8 + lane % 8, lane / 8 % 2};
}
// Operands B of channels 0-7 and 8-15, over 16 positions; transposed.
template <int kDim>
__device__ LaneOffset<kDim> value_offset(int tile, int lane) {
  return {tile, lane % 16, lane / 16};
}

template <class T>
__device__ void mma_pair(float (&d0)[4], float (&d1)[4], const uint32_t (&a)[4], const uint32_t (&b)[4]) {
  const uint32_t b0[2] = {b[0], b[1]}, b1[2] = {b[2], b[3]};
  ptx::mma_m16n8k16<T>(d0, a, b0);
  ptx::mma_m16n8k16<T>(d1, a, b1);
}

template <class Pair>
__device__ uint32_t bits_of(const Pair& pair) {
  uint32_t bits;
  memcpy(&bits, &pair, sizeof(bits));
  return bits;
}
__device__ inline uint32_t pack_two(float low, float high, __nv_bfloat16) {
  return bits_of(__floats2bfloat162_rn(low, high));
}
__device__ inline uint32_t pack_two(float low, float high, __half) { return bits_of(__floats2half2_rn(low, high)); }

// The two rows of a lane in an m16 fragment are lane / 4 and lane / 4 + 8; element e of its n8 block is of row e / 2
// and of column 2 * (lane % 4) + e % 2.
struct RowPair {
  Row row[2];
};

template <class T>
__device__ RowPair find_rows(const Args<T>& args, const AttentionItem& item, int first_row) {
  RowPair pair;
#pragma unroll
  for (int h = 0; h < 2; ++h) pair.row[h] = find_row(args, item, min(first_row, item.num_rows - 1 - 8 * h) + 8 * h);
  return pair;
}

// position: of the lane's first column.
template <class T, int kBlocks>
__device__ void transform_scores(const Args<T>& args, const RowPair& rows, int position, float (&s)[kBlocks][4]) {
  float slope[2] = {0, 0};
  if (args.alibi_slopes != nullptr) {
#pragma unroll
    for (int h = 0; h < 2; ++h) slope[h] = args.alibi_slopes[rows.row[h].head];
  }
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
    for (int e = 0; e < 4; ++e)
      s[b][e] = transform_score(args, s[b][e], slope[e / 2], position + 8 * b + e % 2 - rows.row[e / 2].position);
  }
}

template <int kBlocks>
__device__ void mask_scores(const RowPair& rows, int window, int position, float (&s)[kBlocks][4]) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int distance = rows.row[h].position - position;
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
      for (int c = 0; c < 2; ++c)
        if (static_cast<unsigned>(distance - (8 * b + c)) >= static_cast<unsigned>(window))
          s[b][2 * h + c] = kMinusInfinity;
    }
  }
}

// Masks positions outside of `visible`, whose keys are not there.
template <int kBlocks>
__device__ void mask_borders(const Visible& visible, int position, float (&s)[kBlocks][4]) {
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
    for (int e = 0; e < 4; ++e)
      if (position + 8 * b + e % 2 < visible.begin || position + 8 * b + e % 2 >= visible.end) s[b][e] = kMinusInfinity;
  }
}

// Online softmax (Milakov and Gimelshein 2018) of the two rows of a lane. max is of the scores as they come; `fold`
// takes them to units of log2. sum is of this lane's columns only. max may be behind by up to kSlack units of log2,
// which costs no precision and saves most rescaling.
struct OnlineRows {
  static constexpr float kSlack = 8;

  float max[2] = {kMinusInfinity, kMinusInfinity};
  float sum[2] = {0, 0};

  // Scores become 2^(score - max); `rescale` is what earlier values are to be multiplied with. Exactly 1 where the
  // maximum stays, so that positions a row does not see leave its bits alone.
  template <int kBlocks>
  __device__ void add(float (&s)[kBlocks][4], float fold, float (&rescale)[2]) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float top = max[h];
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) top = fmaxf(top, fmaxf(s[b][2 * h], s[b][2 * h + 1]));
      top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, 1));
      top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, 2));
      if (!((top - max[h]) * fold > kSlack)) top = max[h];  // -infinity stays where nothing was seen
      rescale[h] = top == max[h] ? 1.0f : ptx::ex2_approx((max[h] - top) * fold);
      const float shift = top == kMinusInfinity ? 0.0f : -top * fold;
      float total = 0;
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
        for (int e = 2 * h; e < 2 * h + 2; ++e) {
          s[b][e] = ptx::ex2_approx(fmaf(s[b][e], fold, shift));
          total += s[b][e];
        }
      }
      sum[h] = fmaf(sum[h], rescale[h], total);
      max[h] = top;
    }
  }

  // One for each whole row, in units of log2.
  __device__ Stats stats(int h, float fold) const {
    float total = sum[h] + __shfl_xor_sync(kAllLanes, sum[h], 1);
    total += __shfl_xor_sync(kAllLanes, total, 2);
    return {max[h] * fold, total};
  }
};

template <int kBlocks>
__device__ void scale_values(const float (&rescale)[2], float (&o)[kBlocks][4]) {
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
    for (int e = 0; e < 4; ++e) o[b][e] *= rescale[e / 2];
  }
}

// Most steps leave all maxima as they are.
template <int kBlocks>
__device__ void rescale_values(const float (&rescale)[2], float (&o)[kBlocks][4]) {
  if (__any_sync(kAllLanes, rescale[0] != 1.0f || rescale[1] != 1.0f)) scale_values(rescale, o);
}

// Writes a warp's 16 rows, the first of which is `first_row` of the item: as results, or as a piece's partial results.
// Results go by way of `staging`, a Tile of 16 rows, so that stores are of 16 bytes.
template <class T, int kDim>
__device__ void write_rows(const Args<T>& args, const AttentionItem& item, int first_row, const OnlineRows& online,
                           const float (&values)[kDim / 8][4], T* staging) {
  constexpr unsigned kLanes = Tile<kDim>::kPaddedChunks;
  const int lane = threadIdx.x % 32;
  const LaneOffset<kDim> pair_at(0, lane / 4, 0);
  __syncwarp();  // other lanes have read what they need of the staging's former contents
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const Stats stats = online.stats(h, args.fold);
    const int row = first_row + lane / 4 + 8 * h;
    if (item.partial < 0) {
      const float factor = final_factor(args, item, min(row, item.num_rows - 1), stats);
#pragma unroll
      for (int c = 0; c < kDim / 8; ++c)
        *reinterpret_cast<uint32_t*>(staging + pair_at.at(8 * h, c) + lane % 4 * 2) =
            pack_two(values[c][2 * h] * factor, values[c][2 * h + 1] * factor, T());
    } else if (row < item.num_rows) {
      const int64_t partial = item.partial + row;
      if (lane % 4 == 0) {
        args.work.partial_stats[2 * partial] = stats.max;
        args.work.partial_stats[2 * partial + 1] = stats.sum;
      }
      float* to = args.work.partials + partial * args.value_dim + lane % 4 * 2;
#pragma unroll
      for (int c = 0; c < kDim / 8; ++c)
        if (8 * c < args.value_dim)
          *reinterpret_cast<float2*>(to + 8 * c) = make_float2(values[c][2 * h], values[c][2 * h + 1]);
    }
  }
  if (item.partial >= 0) return;
  __syncwarp();
  const int chunk = static_cast<int>(threadIdx.x % kLanes), end = min(16, item.num_rows - first_row);
  if (chunk * 8 >= args.value_dim) return;
  for (int row = lane / static_cast<int>(kLanes); row < end; row += 32 / kLanes)
    *reinterpret_cast<uint4*>(result_of(args, find_row(args, item, first_row + row)) + chunk * 8) =
        *reinterpret_cast<const uint4*>(staging + Tile<kDim>::offset(row, chunk));
}

}  // namespace llmb::cuda::attention
