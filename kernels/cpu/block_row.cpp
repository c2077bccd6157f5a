#include "kernels/cpu/block_row.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/block_row.cpp"
#include "hwy/foreach_target.h"  // must come before highway.h
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace llmb::cpu {
namespace HWY_NAMESPACE {

// max |x|; infinity or NaN where an x is.
HWY_INLINE float largest_of(const float* x, int64_t n) {
  // As numbers without a sign, bits are in the order of magnitudes, and infinity and NaN are the largest.
  const DU du;
  auto largest = hn::Zero(du);
  for (int64_t i = 0; i < n; i += kLanes)
    largest = hn::Max(largest, hn::And(hn::BitCast(du, hn::LoadU(D(), x + i)), hn::Set(du, 0x7fffffffu)));
  uint32_t lanes[kLanes];
  hn::StoreU(largest, du, lanes);
  return std::bit_cast<float>(*std::max_element(lanes, lanes + kLanes));
}

// 16 numbers; returns their sum.
HWY_INLINE int32_t round16(const float* x, float factor, uint8_t* out) {
  const D d;
  const DI di;
  const DU du;
  const hn::Rebind<uint8_t, D> d8;
  // Its last bits count ones: adding it rounds to whole numbers.
  const V shift = hn::Set(d, 0x1.8p23f), f = hn::Set(d, factor);
  VI sum = hn::Zero(di);
  LLMB_UNROLL for (int i = 0; i < kLogicalLanes; i += kLanes) {
    const auto bits = hn::BitCast(du, hn::Add(hn::Mul(hn::LoadU(d, x + i), f), shift));
    hn::StoreU(hn::U8FromU32(hn::And(bits, hn::Set(du, 0xffu))), d8, out + i);
    sum = hn::Add(sum, hn::Sub(hn::BitCast(di, bits), hn::Set(di, std::bit_cast<int32_t>(0x1.8p23f))));
  }
  return hn::GetLane(hn::SumOfLanes(di, sum));
}

void quantize_block_row_target(const float* x, int64_t num_k, int64_t block, uint8_t* out) {
  const BlockRow row(num_k, block);
  auto* const scales = reinterpret_cast<float*>(out + row.scales);
  auto* const sums32 = reinterpret_cast<int32_t*>(out + row.sums32);
  auto* const sums16 = reinterpret_cast<int32_t*>(out + row.sums16);
  for (int64_t k = 0; k < num_k; k += block) {
    const float max = largest_of(x + k, block);
    const bool is_finite = std::isfinite(max);
    scales[k / block] = is_finite ? max / 127 : std::numeric_limits<float>::quiet_NaN();
    const float inverse = is_finite && max > 0 ? 127 / max : 0;
    const float factor = std::isfinite(inverse) ? inverse : 0;
    for (int64_t i = k; i < k + block; i += kSmallBlock) {
      int32_t sums[2] = {};
      if (is_finite)
        for (int half = 0; half < 2; ++half) sums[half] = round16(x + i + 16 * half, factor, out + i + 16 * half);
      else std::memset(out + i, 0, kSmallBlock);
      sums32[i / kSmallBlock] = sums[0] + sums[1];
      if (block != kSmallBlock) std::copy_n(sums, 2, sums16 + i / 16);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace llmb::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace llmb::cpu {

HWY_EXPORT(quantize_block_row_target);

void quantize_block_row(const float* x, int64_t num_k, int64_t block, uint8_t* out) {
  HWY_DYNAMIC_DISPATCH(quantize_block_row_target)(x, num_k, block, out);
}

}  // namespace llmb::cpu
#endif
