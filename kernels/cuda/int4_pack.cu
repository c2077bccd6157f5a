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
// Blocks are: kInt4F16 and its like scale, zero, codes; kMXFP4 exponent, codes; indexed ones codes.
constexpr int kHeaderBytes = 3, kFourBits = 16, kEightBits = 32;
static_assert(block_size(BlockFormat::kInt4F16).bytes == kHeaderBytes + kFourBits);
static_assert(block_size(BlockFormat::kInt4BF16).bytes == kHeaderBytes + kFourBits);
static_assert(block_size(BlockFormat::kInt8F16).bytes == kHeaderBytes + kEightBits);
static_assert(block_size(BlockFormat::kInt8BF16).bytes == kHeaderBytes + kEightBits);
static_assert(block_size(BlockFormat::kIndexedInt4F16).bytes == kFourBits);
static_assert(block_size(BlockFormat::kIndexedInt8F16).bytes == kEightBits);
static_assert(block_size(BlockFormat::kMXFP4).bytes == 1 + kFourBits && kGroupScaleBytes == kHeaderBytes);

struct Group {
  uint32_t words[4];  // of eight codes each, the first in the lowest bits
};

// Where a group of k of a feature lies. Features i and i + 8 share words.
struct Place {
  uint8_t *unit, *scales;
  int in_tile, group;  // of the unit

  __device__ Place(uint8_t* units, Meaning meaning, int64_t num_steps, int64_t feature, int64_t first_k)
      : unit(units +
             (feature / int4::kTileFeatures * num_steps + first_k / int4::kUnitK) * int64_t{int4::unit_bytes(meaning)}),
        scales(unit + int4::code_bytes(meaning)),
        in_tile(static_cast<int>(feature % int4::kTileFeatures)),
        group(static_cast<int>(first_k % int4::kUnitK / kGroup)) {}

  // code(k): of the group's.
  template <class Code>
  __device__ void write_codes(const Code& code) const {
    const int half = in_tile / 8 % 2;
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
  template <class Code>
  __device__ void write_bytes(const Code& code) const {
    for (int sixteen = 0; sixteen < kGroup / 16; ++sixteen)
      for (int lane = 0; lane < 4; ++lane) {
        const int k = sixteen * 16 + 2 * lane;
        const uint32_t bits = code(k) | code(k + 8) << 8 | code(k + 1) << 16 | code(k + 9) << 24;
        const int at = ((in_tile / 16 * 4 + 2 * group + sixteen) * 32 + in_tile % 8 * 4 + lane) * 2 + in_tile / 8 % 2;
        reinterpret_cast<uint32_t*>(unit)[at] = bits ^ 0x80808080u;
      }
  }
  template <class T>
  __device__ void write_scale(T scale) const {
    reinterpret_cast<T*>(scales)[index()] = scale;
  }
  template <class T>
  __device__ void write_zero(int zero) const {  // of codes of four bits
    reinterpret_cast<uint16_t*>(scales + int4::kScaleBytes)[index()] =
        static_cast<uint16_t>((int4::Pairs<T>::kMagic & 0xffffu) + static_cast<uint32_t>(zero));
  }
  template <class T>
  __device__ void write_byte_zero(int zero) const {
    reinterpret_cast<T*>(scales + int4::kScaleBytes)[index()] = from_float<T>(static_cast<float>(zero - 128));
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
  const Place place(units, Meaning::kFromEight, int4::num_steps(in_features), first_feature + row, k);
  place.write_codes([&](int i) { return codes.words[i / 8] >> (4 * (i % 8)) & 15u; });
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
                            int64_t first_feature, Meaning meaning, BlockOrder order, uint8_t* units) {
  const int64_t groups = in_features / kGroup, index = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (index >= rows * groups) return;
  const bool is_e2m1 = meaning == Meaning::kE2m1, is_bytes = int4::has_bytes(meaning);
  const bool is_indexed = order.columns != nullptr;
  const int header = is_indexed ? 0 : is_e2m1 ? 1 : kHeaderBytes;
  const int block_bytes = header + (is_bytes ? kEightBits : kFourBits);
  const int64_t row = index / groups, group = index % groups;
  const uint8_t* const from =
      blocks + row * (groups * block_bytes + (is_indexed ? order.num_groups * kHeaderBytes : 0));
  const auto code = [&](int k) {
    const int64_t column = is_indexed ? order.columns[group * kGroup + k] : group * kGroup + k;
    const uint8_t* const codes = from + column / kGroup * block_bytes + header;
    const auto at = static_cast<int>(column % kGroup);
    return is_bytes ? uint32_t{codes[at]} : static_cast<uint32_t>(codes[at % 16] >> (at / 16 * 4) & 15);
  };
  const int64_t of = is_indexed ? order.groups[group] : 0;
  const uint8_t* const scale = from + (is_indexed ? groups * block_bytes + 2 * of : group * block_bytes);
  const int zero = is_indexed ? from[groups * block_bytes + 2 * order.num_groups + of] : scale[2];
  const Place place(units, meaning, int4::num_steps(in_features), first_feature + row, group * kGroup);
  if (is_bytes) place.write_bytes(code);
  else place.write_codes(code);
  place.write_scale(is_e2m1 ? e2m1_scale<T>(scale[0]) : static_cast<uint16_t>(scale[0] | scale[1] << 8));
  if (meaning == Meaning::kFromZeros) place.write_zero<T>(zero);
  if (meaning == Meaning::kBytesFromZeros) place.write_byte_zero<T>(zero);
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
      unit + int4::code_place<kMeaning>(warp), unit + int4::scale_place<kMeaning>(warp),
      [&](int k, const uint32_t(&fragment)[4]) {
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
                      uint8_t* units, cudaStream_t stream, const BlockOrder& order) {
  if (rows == 0) return;
  launch({dim3(num_blocks(rows, in_features)), dim3(kThreads), 0, stream}, pack_int4_blocks_kernel<T>, blocks, rows,
         in_features, first_feature, meaning, order, units);
}

template <class T>
void dequantize_int4(const Int4View& weight, T* out, cudaStream_t stream) {
  if (weight.out_features == 0) return;
  const int64_t num_steps = int4::num_steps(weight.in_features);
  int4::with_codes(weight.meaning, [&]<Meaning kMeaning>(int4::Codes<kMeaning>) {
    launch_ahead(
        {dim3(static_cast<unsigned>(int4::num_tiles(weight.out_features) * num_steps)), dim3(kThreads), 0, stream},
        dequantize_int4_kernel<T, kMeaning>, weight.units, static_cast<int32_t>(num_steps), weight.out_features,
        weight.in_features, out);
  });
}

template void quantize_int4<__nv_bfloat16>(const float*, int64_t, int64_t, int64_t, uint8_t*, cudaStream_t);
template void quantize_int4<__half>(const float*, int64_t, int64_t, int64_t, uint8_t*, cudaStream_t);
template void pack_int4_blocks<__nv_bfloat16>(const uint8_t*, int64_t, int64_t, int64_t, Meaning, uint8_t*,
                                              cudaStream_t, const BlockOrder&);
template void pack_int4_blocks<__half>(const uint8_t*, int64_t, int64_t, int64_t, Meaning, uint8_t*, cudaStream_t,
                                       const BlockOrder&);
template void dequantize_int4(const Int4View&, __nv_bfloat16*, cudaStream_t);
template void dequantize_int4(const Int4View&, __half*, cudaStream_t);

}  // namespace llmb::cuda
