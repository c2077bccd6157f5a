#include "kernels/cpu/quantize.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/float_formats.h"
#include "kernels/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/quantize.cpp"
#include "hwy/foreach_target.h"  // must come before highway.h
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace llmb::cpu {
namespace HWY_NAMESPACE {

void widen_target(const uint8_t* from, DType dtype, int64_t n, float* to) {
  const D d;
  const hn::Rebind<uint16_t, D> d16;
  int64_t i = 0;
  if (dtype == DType::kF32) {
    std::memcpy(to, from, static_cast<size_t>(n) * sizeof(float));
    return;
  }
  if (dtype == DType::kBF16) {
    for (; i + kLanes <= n; i += kLanes) {
      HWY_ALIGN uint16_t halves[kLanes];
      std::memcpy(halves, from + 2 * i, sizeof halves);
      hn::StoreU(hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(DU(), hn::Load(d16, halves)))), d, to + i);
    }
  }
  for (; i < n; ++i) {
    uint16_t bits;
    std::memcpy(&bits, from + 2 * i, 2);
    to[i] = dtype == DType::kBF16 ? bf16_to_f32(bits) : f16_to_f32(bits);
  }
}

float max_magnitude_target(const float* x, int64_t n) {
  const D d;
  const V infinity = hn::Set(d, HUGE_VALF);
  V largest = hn::Zero(d);
  auto is_odd = hn::Lt(largest, largest);  // lanes that are not finite
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const V magnitude = hn::Abs(hn::LoadU(d, x + i));
    is_odd = hn::Or(is_odd, hn::Not(hn::Lt(magnitude, infinity)));
    largest = hn::Max(largest, magnitude);
  }
  float lanes[kLanes], max = 0;
  hn::StoreU(largest, d, lanes);
  for (const float lane : lanes) max = lane > max ? lane : max;
  bool is_finite = hn::AllFalse(d, is_odd);
  for (; i < n; ++i) {
    is_finite = is_finite && std::isfinite(x[i]);
    max = std::fabs(x[i]) > max ? std::fabs(x[i]) : max;
  }
  return is_finite ? max : std::numeric_limits<float>::quiet_NaN();
}

int32_t round_to_int8_target(const float* x, int64_t n, float factor, int8_t* out) {
  const D d;
  const DI di;
  const DU du;
  const hn::Rebind<uint8_t, D> d8;
  const V f = hn::Set(d, factor);
  VI sum = hn::Zero(di);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const VI q = hn::NearestInt(hn::Mul(hn::LoadU(d, x + i), f));
    sum = hn::Add(sum, q);
    hn::StoreU(hn::U8FromU32(hn::And(hn::BitCast(du, q), hn::Set(du, 0xffu))), d8, reinterpret_cast<uint8_t*>(out) + i);
  }
  int32_t lanes[kLanes], total = 0;
  hn::StoreU(sum, di, lanes);
  for (const int32_t lane : lanes) total += lane;
  for (; i < n; ++i) {
    out[i] = static_cast<int8_t>(std::nearbyint(x[i] * factor));
    total += out[i];
  }
  return total;
}

// The low four bits of eight bytes.
HWY_INLINE uint32_t nibbles(const uint8_t* bytes) {
  uint64_t x = 0;
  for (int i = 0; i < 8; ++i) x |= uint64_t{bytes[i]} << (8 * i);
  x &= 0x0f0f0f0f0f0f0f0f;
  x = (x | x >> 4) & 0x00ff00ff00ff00ff;
  x = (x | x >> 8) & 0x0000ffff0000ffff;
  return static_cast<uint32_t>(x | x >> 16);
}

HWY_INLINE Int4Group quantize_group(const float* x) {
  const D d;
  const DU du;
  const hn::Rebind<uint8_t, D> d8;
  constexpr int kVecs = 32 / kLanes;
  const V infinity = hn::Set(d, HUGE_VALF);
  V values[kVecs], largest = hn::Zero(d);
  auto is_finite = hn::Eq(largest, largest);
  LLMB_UNROLL for (int i = 0; i < kVecs; ++i) {
    values[i] = hn::LoadU(d, x + i * kLanes);
    const V magnitude = hn::Abs(values[i]);
    is_finite = hn::And(is_finite, hn::Lt(magnitude, infinity));
    largest = hn::Max(largest, magnitude);
  }
  if (!hn::AllTrue(d, is_finite)) return {0x7fc0, {}};
  largest = hn::MaxOfLanes(d, largest);
  constexpr float kSmallest = 0x1p-100f;  // below, reciprocals of scales would overflow: such weights count as zero
  if (hn::GetLane(largest) < kSmallest) return {0, {}};
  float extreme = 0;
  for (int i = kVecs - 1; i >= 0; --i) {
    const intptr_t lane = hn::FindFirstTrue(d, hn::Eq(hn::Abs(values[i]), largest));
    if (lane >= 0) extreme = x[i * kLanes + lane];
  }
  Int4Group group{f32_to_bf16(extreme / -8), {}};
  const V inverse = hn::Set(d, 1 / bf16_to_f32(group.scale));
  uint8_t bytes[32];
  LLMB_UNROLL for (int i = 0; i < kVecs; ++i) {
    const V low = hn::Max(hn::Mul(values[i], inverse), hn::Set(d, -8.0f));
    const auto bits = hn::BitCast(du, hn::NearestInt(hn::Min(low, hn::Set(d, 7.0f))));
    hn::StoreU(hn::U8FromU32(hn::And(bits, hn::Set(du, 0xffu))), d8, bytes + i * kLanes);
  }
  LLMB_UNROLL for (int word = 0; word < 4; ++word) group.words[word] = nibbles(bytes + 8 * word);
  return group;
}

void quantize_int4_target(const float* x, int64_t num_groups, Int4Group* out) {
  for (int64_t i = 0; i < num_groups; ++i) out[i] = quantize_group(x + 32 * i);
}

// One group, of which n numbers count.
HWY_INLINE int32_t quantize_w4a8_group(const float* x, int n, float factor, W4A8Group* out) {
  const D d;
  const DI di;
  const DU du;
  const hn::Rebind<uint8_t, D> d8;
  constexpr int kVecs = 32 / kLanes;
  V values[kVecs];
  LLMB_UNROLL for (int i = 0; i < kVecs; ++i) values[i] = hn::Mul(hn::LoadU(d, x + i * kLanes), hn::Set(d, factor));
  V low = values[0], high = values[0];
  LLMB_UNROLL for (int i = 1; i < kVecs; ++i) low = hn::Min(low, values[i]), high = hn::Max(high, values[i]);
  const float least = hn::GetLane(hn::MinOfLanes(d, low)), most = hn::GetLane(hn::MaxOfLanes(d, high));
  const float scale = std::max(1.0f, std::nearbyint((most - least) * (1 / 15.0f)));
  const float zero = std::nearbyint((15 * scale - most - least) * 0.5f);
  const V inverse = hn::Set(d, 1 / scale);
  uint8_t codes[32];
  VI sum = hn::Zero(di);
  LLMB_UNROLL for (int i = 0; i < kVecs; ++i) {
    const V code = hn::Mul(hn::Add(values[i], hn::Set(d, zero)), inverse);
    const VI whole = hn::NearestInt(hn::Min(hn::Max(code, hn::Zero(d)), hn::Set(d, 15.0f)));
    sum = hn::Add(sum, whole);
    hn::StoreU(hn::U8FromU32(hn::BitCast(du, whole)), d8, codes + i * kLanes);
  }
  *out = {static_cast<uint8_t>(scale), static_cast<uint8_t>(static_cast<int>(zero)), {}};
  for (int i = 0; i < 32; ++i) out->words[i / 8] |= uint32_t{codes[i]} << (8 * (i % 4) + i % 8 / 4 * 4);
  int32_t lanes[kLanes], total = 0;
  hn::StoreU(sum, di, lanes);
  for (const int32_t lane : lanes) total += lane;
  for (int i = n; i < 32; ++i) total -= codes[i];
  return total * static_cast<int>(scale) - n * static_cast<int>(zero);
}

int32_t quantize_w4a8_target(const float* x, int64_t n, float factor, W4A8Group* out) {
  int32_t sum = 0;
  for (int64_t k = 0; k < n; k += 32)
    sum += quantize_w4a8_group(x + k, static_cast<int>(std::min<int64_t>(32, n - k)), factor, out + k / 32);
  return sum;
}

}  // namespace HWY_NAMESPACE
}  // namespace llmb::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace llmb::cpu {

HWY_EXPORT(widen_target);
HWY_EXPORT(max_magnitude_target);
HWY_EXPORT(round_to_int8_target);
HWY_EXPORT(quantize_int4_target);
HWY_EXPORT(quantize_w4a8_target);

void widen(const uint8_t* from, DType dtype, int64_t n, float* to) {
  HWY_DYNAMIC_DISPATCH(widen_target)(from, dtype, n, to);
}

float max_magnitude(const float* x, int64_t n) { return HWY_DYNAMIC_DISPATCH(max_magnitude_target)(x, n); }

int32_t round_to_int8(const float* x, int64_t n, float factor, int8_t* out) {
  return HWY_DYNAMIC_DISPATCH(round_to_int8_target)(x, n, factor, out);
}

void quantize_int4(const float* x, int64_t num_groups, Int4Group* out) {
  HWY_DYNAMIC_DISPATCH(quantize_int4_target)(x, num_groups, out);
}

int32_t quantize_w4a8(const float* x, int64_t n, float factor, W4A8Group* out) {
  return HWY_DYNAMIC_DISPATCH(quantize_w4a8_target)(x, n, factor, out);
}

}  // namespace llmb::cpu
#endif
