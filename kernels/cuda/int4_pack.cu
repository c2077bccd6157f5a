// Packing, at load: a thread makes a group of 32 numbers of a feature. Writing numbers: bound by their bytes; a block
// writes a unit, by way of shared memory.
#include "kernels/cuda/int4_pack.h"

#include "core/block_format.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/int4_fragments.h"
#include "kernels/cuda/ptx.h"

namespace llmb::cuda {

namespace {

using int4::kGroup;
using int4::Meaning;

constexpr int kThreads = 256;
// Blocks are: kInt4F16 and kInt4BF16 scale, zero, codes; kMXFP4 exponent, codes.
constexpr int kBlockBytes = 19, kMxfp4BlockBytes = 17;
static_assert(block_size(BlockFormat::kInt4F16).bytes == kBlockBytes);
static_assert(block_size(BlockFormat::kInt4BF16).bytes == kBlockBytes);
static_assert(block_size(BlockFormat::kMXFP4).bytes == kMxfp4BlockBytes);

struct Group {
  uint32_t words[4];  // of eight codes each, the first in the lowest bits
};

// Where a group of k of a feature lies. Features i and i + 8 share words.
struct Place {
  uint8_t* unit;
  int in_tile, group;  // of the unit

  __device__ Place(uint8_t* units, int unit_bytes, int64_t num_steps, int64_t feature, int64_t first_k)
      : unit(units +
             (feature / int4::kTileFeatures * num_steps + first_k / int4::kUnitK) * static_cast<int64_t>(unit_bytes)),
        in_tile(static_cast<int>(feature % int4::kTileFeatures)),
        group(static_cast<int>(first_k % int4::kUnitK / kGroup)) {}

  __device__ void write_codes(const Group& codes) const {
    const int half = in_tile / 8 % 2;
    const auto code = [&](int k) { return codes.words[k / 8] >> (4 * (k % 8)) & 15u; };
#pragma unroll
    for (int sixteen = 0; sixteen < kGroup / 16; ++sixteen) {
#pragma unroll
      for (int lane = 0; lane < 4; ++lane) {
        const int k = sixteen * 16 + 2 * lane;
        const uint32_t bits = code(k) | code(k + 1) << 16 | code(k + 8) << 8 | code(k + 9) << 24;
        auto* const words = reinterpret_cast<uint32_t*>(unit) + (in_tile / 16 * 32 + in_tile % 8 * 4 + lane) * 4;
        atomicOr(words + 2 * group + sixteen, bits << (4 * half));
      }
    }
  }
  template <class T>
  __device__ void write_scale(T scale) const {
    reinterpret_cast<T*>(unit + int4::kCodeBytes)[index()] = scale;
  }
  template <class T>
  __device__ void write_zero(int zero) const {
    reinterpret_cast<uint16_t*>(unit + int4::kCodeBytes + int4::kScaleBytes)[index()] =
        static_cast<uint16_t>((int4::Pairs<T>::kMagic & 0xffffu) + static_cast<uint32_t>(zero));
  }

 private:
  __device__ int index() const {
    return group * int4::kTileFeatures + in_tile / 16 * 16 + in_tile % 8 * 2 + in_tile / 8 % 2;
  }
};

// As quantize_group() of kernels/cpu/quantize.cpp, in the same order. Codes are its numbers + 8.
__device__ Group quantize_group(const float* x, int num, float* scale) {
  constexpr float kSmallest = 0x1p-100f;
  float largest = 0, extreme = 0;
  bool is_finite = true;
  for (int i = 0; i < num; ++i) {
    const float magnitude = fabsf(x[i]);
    is_finite = is_finite && magnitude < INFINITY;
    if (magnitude > largest) largest = magnitude, extreme = x[i];
  }
  Group group{{0x88888888u, 0x88888888u, 0x88888888u, 0x88888888u}};
  *scale = is_finite ? 0.0f : NAN;
  if (!is_finite || largest < kSmallest) return group;
  *scale = to_float(from_float<__nv_bfloat16>(__fdiv_rn(extreme, -8.0f)));
  const float inverse = __fdiv_rn(1.0f, *scale);
  for (int word = 0; word < kGroup / 8; ++word) {
    uint32_t codes = 0;
    for (int i = 0; i < 8; ++i) {
      const float value = word * 8 + i < num ? x[word * 8 + i] : 0.0f;
      const float inside = fminf(fmaxf(__fmul_rn(value, inverse), -8.0f), 7.0f);
      codes |= static_cast<uint32_t>(__float2int_rn(inside) + 8) << (4 * i);
    }
    group.words[word] = codes;
  }
  return group;
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    quantize_int4_kernel(const float* __restrict__ x, int64_t rows, int64_t in_features, int64_t first_feature,
                         uint8_t* units) {
  const int64_t groups = ceil_div(in_features, int64_t{kGroup});
  const int64_t index = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (index >= rows * groups) return;
  const int64_t row = index / groups, k = index % groups * kGroup;
  const auto num = static_cast<int>(min(int64_t{kGroup}, in_features - k));
  float scale;
  const Group codes = quantize_group(x + row * in_features + k, num, &scale);
  const Place place(units, int4::unit_bytes(Meaning::kFromEight), int4::num_steps(in_features), first_feature + row, k);
  place.write_codes(codes);
  place.write_scale(from_float<T>(scale));
}

// The bits of 2^(exponent − 127 + kE2m1Shift); 0 where that is too small for T, as is every number of such a group.
template <class T>
__device__ uint16_t e2m1_scale(int exponent) {
  constexpr int kBits = int4::Pairs<T>::kMantissaBits;
  const int biased = exponent - 127 + int4::Pairs<T>::kE2m1Shift + int4::Pairs<T>::kExponentBias;
  if (biased > 0) return static_cast<uint16_t>(biased << kBits);
  return biased > -kBits ? static_cast<uint16_t>(1 << (kBits - 1 + biased)) : uint16_t{0};
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    pack_int4_blocks_kernel(const uint8_t* __restrict__ blocks, int64_t rows, int64_t in_features,
                            int64_t first_feature, Meaning meaning, uint8_t* units) {
  const int64_t groups = in_features / kGroup, index = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (index >= rows * groups) return;
  const bool is_e2m1 = meaning == Meaning::kE2m1;
  const uint8_t* const block = blocks + index * (is_e2m1 ? kMxfp4BlockBytes : kBlockBytes);
  const uint8_t* const stored = block + (is_e2m1 ? 1 : 3);
  Group codes{};  // a byte has the codes of a k and of the one 16 on
  for (int k = 0; k < kGroup; ++k)
    codes.words[k / 8] |= static_cast<uint32_t>(stored[k % 16] >> (k / 16 * 4) & 15) << (4 * (k % 8));
  const Place place(units, int4::unit_bytes(meaning), int4::num_steps(in_features), first_feature + index / groups,
                    index % groups * kGroup);
  place.write_codes(codes);
  place.write_scale(is_e2m1 ? e2m1_scale<T>(block[0]) : static_cast<uint16_t>(block[0] | block[1] << 8));
  if (meaning == Meaning::kFromZeros) place.write_zero<T>(block[2]);
}

// A block is a unit.
template <class T, Meaning kMeaning>
__global__ void __launch_bounds__(kThreads)
    dequantize_int4_kernel(const uint8_t* __restrict__ units, int32_t num_steps, int64_t out_features,
                           int64_t in_features, T* __restrict__ out) {
  constexpr int kRowWords = int4::kUnitK / 2 + 4;  // so that rows begin in different banks
  __shared__ __align__(16) uint32_t tile[int4::kTileFeatures * kRowWords];
  ptx::follow_previous_grid();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const uint8_t* const unit = units + int64_t{blockIdx.x} * int4::unit_bytes(kMeaning);
  int4::for_each_fragment<T, kMeaning>(
      unit + int4::code_place(warp), unit + int4::scale_place(warp), [&](int k, const uint32_t(&fragment)[4]) {
        uint32_t* const to = tile + (warp * 16 + lane / 4) * kRowWords + k * 8 + lane % 4;
        to[0] = fragment[0], to[8 * kRowWords] = fragment[1], to[4] = fragment[2], to[8 * kRowWords + 4] = fragment[3];
      });
  __syncthreads();
  const int64_t first_feature = int64_t{blockIdx.x} / num_steps * int4::kTileFeatures;
  const int64_t first_k = int64_t{blockIdx.x} % num_steps * int4::kUnitK;
  constexpr int kChunks = int4::kUnitK / 8;
  for (int i = threadIdx.x; i < int4::kTileFeatures * kChunks; i += kThreads) {
    const int64_t feature = first_feature + i / kChunks, k = first_k + i % kChunks * 8;
    if (feature < out_features && k < in_features)
      *reinterpret_cast<uint4*>(out + feature * in_features + k) =
          *reinterpret_cast<const uint4*>(tile + i / kChunks * kRowWords + i % kChunks * 4);
  }
}

unsigned num_blocks(int64_t rows, int64_t in_features) {
  return static_cast<unsigned>(ceil_div(rows * ceil_div(in_features, int64_t{kGroup}), int64_t{kThreads}));
}

}  // namespace

template <class T>
void quantize_int4(const float* x, int64_t rows, int64_t in_features, int64_t first_feature, uint8_t* units,
                   cudaStream_t stream) {
  if (rows == 0) return;
  launch({dim3(num_blocks(rows, in_features)), dim3(kThreads), 0, stream}, quantize_int4_kernel<T>, x, rows,
         in_features, first_feature, units);
}

template <class T>
void pack_int4_blocks(const uint8_t* blocks, int64_t rows, int64_t in_features, int64_t first_feature, Meaning meaning,
                      uint8_t* units, cudaStream_t stream) {
  if (rows == 0) return;
  launch({dim3(num_blocks(rows, in_features)), dim3(kThreads), 0, stream}, pack_int4_blocks_kernel<T>, blocks, rows,
         in_features, first_feature, meaning, units);
}

template <class T>
void dequantize_int4(const Int4View& weight, T* out, cudaStream_t stream) {
  if (weight.out_features == 0) return;
  const int64_t num_steps = int4::num_steps(weight.in_features);
  const auto kernel = weight.meaning == Meaning::kE2m1        ? dequantize_int4_kernel<T, Meaning::kE2m1>
                      : weight.meaning == Meaning::kFromZeros ? dequantize_int4_kernel<T, Meaning::kFromZeros>
                                                              : dequantize_int4_kernel<T, Meaning::kFromEight>;
  launch_ahead(
      {dim3(static_cast<unsigned>(int4::num_tiles(weight.out_features) * num_steps)), dim3(kThreads), 0, stream},
      kernel, weight.units, static_cast<int32_t>(num_steps), weight.out_features, weight.in_features, out);
}

template void quantize_int4<__nv_bfloat16>(const float*, int64_t, int64_t, int64_t, uint8_t*, cudaStream_t);
template void quantize_int4<__half>(const float*, int64_t, int64_t, int64_t, uint8_t*, cudaStream_t);
template void pack_int4_blocks<__nv_bfloat16>(const uint8_t*, int64_t, int64_t, int64_t, Meaning, uint8_t*,
                                              cudaStream_t);
template void pack_int4_blocks<__half>(const uint8_t*, int64_t, int64_t, int64_t, Meaning, uint8_t*, cudaStream_t);
template void dequantize_int4(const Int4View&, __nv_bfloat16*, cudaStream_t);
template void dequantize_int4(const Int4View&, __half*, cudaStream_t);

}  // namespace llmb::cuda
