// Packing, at load: a thread makes 32 numbers of a feature. Writing numbers: bound by their bytes; a block writes a
// unit, a thread eight bytes at a time.
#include "kernels/cuda/sparse24_pack.h"

#include "base/check.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/ptx.h"

namespace llmb::cuda {

namespace {

using sparse24::kBlock;
using sparse24::kTileFeatures;
using sparse24::kUnitK;

constexpr int kThreads = 256;
constexpr int kBlockWords = 9;  // which are kept, those that are
static_assert(block_size(BlockFormat::kSparse24F16).bytes == kBlockWords * 4);
static_assert(block_size(BlockFormat::kSparse24BF16).bytes == kBlockWords * 4);

// Two numbers of From as two of T.
template <class From, class T>
__device__ uint32_t converted(uint32_t two) {
  if constexpr (std::is_same_v<From, T>) return two;
  const auto number = [&](uint32_t bits) {
    const auto low = static_cast<uint16_t>(bits);
    From from;
    memcpy(&from, &low, sizeof(low));
    const T to = from_float<T>(to_float(from));
    uint16_t result;
    memcpy(&result, &to, sizeof(result));
    return uint32_t{result};
  };
  return number(two) | number(two >> 16) << 16;
}

// The places of the two bits that are set of four, the lower one first.
__device__ uint32_t places_of(uint32_t four) {
  const int first = __ffs(static_cast<int>(four)) - 1;
  const int second = __ffs(static_cast<int>(four & (four - 1))) - 1;
  return static_cast<uint32_t>(first | second << 2);
}

template <class From, class T>
__global__ void __launch_bounds__(kThreads)
    pack_sparse24_kernel(const uint32_t* __restrict__ blocks, int64_t rows, int64_t in_features, int64_t first_feature,
                         uint8_t* units) {
  const int64_t row_blocks = in_features / kBlock, index = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (index >= rows * row_blocks) return;
  const uint32_t* const block = blocks + index * kBlockWords;
  const int64_t feature = first_feature + index / row_blocks, k = index % row_blocks * kBlock;
  const int in_tile = static_cast<int>(feature % kTileFeatures), sixteen = in_tile / 16, group = in_tile % 8;
  const int high = in_tile / 8 % 2, half = static_cast<int>(k % kUnitK) / kBlock;
  uint8_t* const unit =
      units + (feature / kTileFeatures * sparse24::num_steps(in_features) + k / kUnitK) * int64_t{sparse24::kUnitBytes};
  uint32_t places[2] = {0, 0};
  for (int four = 0; four < 8; ++four) {
    const int place = sparse24::number_place(sixteen, half, 4 * group + four % 4) + (four / 4 * 2 + high) * 4;
    *reinterpret_cast<uint32_t*>(unit + place) = converted<From, T>(block[1 + four]);
    places[four / 4] |= places_of(block[0] >> (4 * four) & 15u) << (4 * (four % 4));
  }
  for (int i = 0; i < 2; ++i)
    *reinterpret_cast<uint16_t*>(unit + sparse24::places_place(sixteen, 4 * group + 2 * half + i) + 2 * high) =
        static_cast<uint16_t>(places[i]);
}

// A block is a unit, a warp 16 features of it.
template <class T>
__global__ void __launch_bounds__(kThreads)
    widen_sparse24_kernel(const uint8_t* __restrict__ units, int32_t num_steps, int64_t out_features,
                          int64_t in_features, T* __restrict__ out) {
  ptx::follow_previous_grid();
  const int lane = threadIdx.x % 32, sixteen = threadIdx.x / 32;
  const uint8_t* const unit = units + int64_t{blockIdx.x} * sparse24::kUnitBytes;
  const int64_t first_feature = int64_t{blockIdx.x} / num_steps * kTileFeatures + sixteen * 16 + lane / 4;
  const int64_t first_k = int64_t{blockIdx.x} % num_steps * kUnitK + lane % 4 * 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const uint4 words = *reinterpret_cast<const uint4*>(unit + sparse24::number_place(sixteen, half, lane));
    const uint32_t numbers[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {  // as the fragment's registers are
      const int64_t feature = first_feature + i % 2 * 8, k = first_k + half * kBlock + i / 2 * 16;
      if (feature >= out_features || k >= in_features) continue;
      const uint32_t places =
          *reinterpret_cast<const uint32_t*>(unit + sparse24::places_place(sixteen, lane / 4 * 4 + 2 * half + i / 2));
      const uint32_t bits = places >> (16 * (i % 2) + 4 * (lane % 4));
      const uint64_t four = uint64_t{numbers[i] & 0xffffu} << (16 * (bits & 3)) | uint64_t{numbers[i] >> 16}
                                                                                      << (16 * (bits >> 2 & 3));
      *reinterpret_cast<uint2*>(out + feature * in_features + k) =
          make_uint2(static_cast<uint32_t>(four), static_cast<uint32_t>(four >> 32));
    }
  }
}

}  // namespace

template <class T>
void pack_sparse24(const uint8_t* blocks, BlockFormat format, int64_t rows, int64_t in_features, int64_t first_feature,
                   uint8_t* units, cudaStream_t stream) {
  LLMB_CHECK(is_sparse24(format) && in_features % kBlock == 0);
  if (rows == 0) return;
  const auto num_blocks = static_cast<unsigned>(ceil_div(rows * (in_features / kBlock), int64_t{kThreads}));
  const auto kernel =
      format == BlockFormat::kSparse24F16 ? pack_sparse24_kernel<__half, T> : pack_sparse24_kernel<__nv_bfloat16, T>;
  launch({dim3(num_blocks), dim3(kThreads), 0, stream}, kernel, reinterpret_cast<const uint32_t*>(blocks), rows,
         in_features, first_feature, units);
}

template <class T>
void widen_sparse24(const Sparse24View& weight, T* out, cudaStream_t stream) {
  LLMB_CHECK(weight.in_features % kBlock == 0);
  if (weight.out_features == 0) return;
  const int64_t num_steps = sparse24::num_steps(weight.in_features);
  launch_ahead(
      {dim3(static_cast<unsigned>(sparse24::num_tiles(weight.out_features) * num_steps)), dim3(kThreads), 0, stream},
      widen_sparse24_kernel<T>, weight.units, static_cast<int32_t>(num_steps), weight.out_features, weight.in_features,
      out);
}

template void pack_sparse24<__nv_bfloat16>(const uint8_t*, BlockFormat, int64_t, int64_t, int64_t, uint8_t*,
                                           cudaStream_t);
template void pack_sparse24<__half>(const uint8_t*, BlockFormat, int64_t, int64_t, int64_t, uint8_t*, cudaStream_t);
template void widen_sparse24(const Sparse24View&, __nv_bfloat16*, cudaStream_t);
template void widen_sparse24(const Sparse24View&, __half*, cudaStream_t);

}  // namespace llmb::cuda
