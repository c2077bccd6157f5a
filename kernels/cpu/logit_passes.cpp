// Bound by memory (mostly the second-level cache: a row is 0.2 to 0.6 MB).
#include "kernels/cpu/logit_passes.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/logit_passes.cpp"
#include "hwy/foreach_target.h"  // must come before highway.h
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace llmb::cpu {
namespace HWY_NAMESPACE {

// Calls f(first index, vector of 16) for all of values; the last vector is filled up with `fill`.
template <typename F>
HWY_INLINE void for_each16(const float* values, int64_t n, float fill, const F& f) {
  int64_t i = 0;
  for (; i + kLogicalLanes <= n; i += kLogicalLanes) f(i, load16(values + i));
  if (i == n) return;
  float lanes[kLogicalLanes];
  for (int64_t j = 0; j < kLogicalLanes; ++j) lanes[j] = i + j < n ? values[i + j] : fill;
  f(i, load16(lanes));
}

// for_each16, writing what f returns back to `to`.
template <typename F>
HWY_INLINE void transform16(const float* from, int64_t n, float* to, const F& f) {
  const int64_t full = n - n % kLogicalLanes;
  for (int64_t i = 0; i < full; i += kLogicalLanes) store16(map16(load16(from + i), f), to + i);
  if (full < n) store16_partial(map16(load16_partial(from + full, n - full), f), to + full, n - full);
}

struct RunningScan {
  V16 max, poison;

  HWY_INLINE void add(const V16& x) {
    max = map16(max, x, [](V a, V b) HWY_ATTR { return hn::Max(a, b); });
    // NaN and +Inf times 0 are NaN, which stays; -Inf is replaced first.
    poison = map16(x, poison, [](V a, V p) HWY_ATTR {
      const V lowest = hn::Set(D(), std::numeric_limits<float>::lowest());
      return hn::MulAdd(hn::IfThenElse(hn::Lt(a, lowest), lowest, a), hn::Zero(D()), p);
    });
  }
  HWY_INLINE void join(const RunningScan& other) {
    max = map16(max, other.max, [](V a, V b) HWY_ATTR { return hn::Max(a, b); });
    poison = map16(poison, other.poison, [](V a, V b) HWY_ATTR { return hn::Add(a, b); });
  }
  HWY_INLINE LogitScan result() const {
    LogitScan scan;
    scan.is_finite = sum16(poison) == 0;
    scan.max = scan.is_finite ? max16(max) : 0;
    return scan;
  }
};

LogitScan scan_logits_impl(const float* logits, int64_t n) {
  // Two at a time, so that one's multiply-adds do not wait for the other's.
  RunningScan scan{set16(-HUGE_VALF), set16(0)}, other = scan;
  const int64_t pairs = n - n % (2 * kLogicalLanes);
  for (int64_t i = 0; i < pairs; i += 2 * kLogicalLanes) {
    scan.add(load16(logits + i));
    other.add(load16(logits + i + kLogicalLanes));
  }
  for_each16(logits + pairs, n - pairs, -HUGE_VALF, [&](int64_t, const V16& x) HWY_ATTR { scan.add(x); });
  scan.join(other);
  return scan.result();
}

// x where bit i of `bits` is set, -Inf in the other lanes.
HWY_INLINE V16 keep16(const V16& x, uint32_t bits) {
  V16 kept;
  LLMB_UNROLL for (int i = 0; i < kParts; ++i) {
    alignas(8) uint8_t bytes[8] = {};  // LoadMaskBits reads so many
    const uint32_t part = bits >> (i * kLanes);
    bytes[0] = static_cast<uint8_t>(part);
    bytes[1] = static_cast<uint8_t>(part >> 8);
    kept.part[i] = hn::IfThenElse(hn::LoadMaskBits(D(), bytes), x.part[i], hn::Set(D(), -HUGE_VALF));
  }
  return kept;
}

LogitScan scan_masked_logits_impl(const float* logits, const uint32_t* mask, int64_t n, float* allowed,
                                  float* max_allowed) {
  constexpr uint32_t kAll = 0xffff;
  RunningScan scan{set16(-HUGE_VALF), set16(0)};
  V16 max = set16(-HUGE_VALF);
  for (int64_t i = 0; i < n; i += kLogicalLanes) {
    const int64_t count = std::min<int64_t>(kLogicalLanes, n - i);
    const uint32_t bits = mask[i / 32] >> (i % 32) & kAll;
    if (count == kLogicalLanes) {
      const V16 x = load16(logits + i);
      scan.add(x);
      const V16 kept = bits == kAll ? x : keep16(x, bits);
      max = map16(max, kept, [](V a, V b) HWY_ATTR { return hn::Max(a, b); });
      store16(kept, allowed + i);
      continue;
    }
    float lanes[kLogicalLanes];
    for (int64_t j = 0; j < kLogicalLanes; ++j) lanes[j] = j < count ? logits[i + j] : -HUGE_VALF;
    scan.add(load16(lanes));
    const V16 kept = keep16(load16(lanes), bits);
    max = map16(max, kept, [](V a, V b) HWY_ATTR { return hn::Max(a, b); });
    store16_partial(kept, allowed + i, count);
  }
  *max_allowed = max16(max);
  return scan.result();
}

int64_t find_in_range_impl(const float* values, int64_t begin, int64_t n, float low, float high) {
  const D d;
  const V at_least = hn::Set(d, low), below = hn::Set(d, high);
  int64_t i = begin;
  for (; i + kLanes <= n; i += kLanes) {
    const V x = hn::LoadU(d, values + i);
    const intptr_t lane = hn::FindFirstTrue(d, hn::And(hn::Ge(x, at_least), hn::Lt(x, below)));
    if (lane >= 0) return i + lane;
  }
  for (; i < n; ++i)
    if (values[i] >= low && values[i] < high) return i;
  return n;
}

void block_maxima_impl(const float* values, int64_t n, float* maxima) {
  for (int64_t begin = 0; begin < n; begin += kMaxBlock) {
    V16 max = set16(-HUGE_VALF);
    for_each16(values + begin, std::min(kMaxBlock, n - begin), -HUGE_VALF, [&](int64_t, const V16& x) HWY_ATTR {
      max = map16(max, x, [](V a, V b) HWY_ATTR { return hn::Max(a, b); });
    });
    *maxima++ = max16(max);
  }
}

void exp_weights_impl(const float* logits, int64_t n, float max, float temperature, float* weights) {
  const V m = hn::Set(D(), max), t = hn::Set(D(), temperature);
  // Divisions take longer than all else. By a power of two, a product with its inverse is the same.
  const float inverse = 1 / temperature;
  int exponent;
  if (std::frexp(temperature, &exponent) == 0.5f && std::isfinite(inverse)) {
    const V factor = hn::Set(D(), inverse);
    return transform16(logits, n, weights, [=](V x) HWY_ATTR { return exp_v(hn::Mul(hn::Sub(x, m), factor)); });
  }
  transform16(logits, n, weights, [m, t](V x) HWY_ATTR { return exp_v(hn::Div(hn::Sub(x, m), t)); });
}

void replace_after_impl(const Cut& cut, float replacement, int64_t n, float* values) {
  const V limit = hn::Set(D(), cut.value), other = hn::Set(D(), replacement);
  const int64_t tie_end = std::min<int64_t>(n, int64_t{cut.id} + 1);  // ids up to here keep values equal to the cut's
  transform16(values, tie_end, values, [=](V x) HWY_ATTR { return hn::IfThenElse(hn::Lt(x, limit), other, x); });
  transform16(values + tie_end, n - tie_end, values + tie_end,
              [=](V x) HWY_ATTR { return hn::IfThenElse(hn::Le(x, limit), other, x); });
}

UpperTail upper_tail_impl(const float* values, int64_t n, float threshold) {
  const hn::CappedTag<double, 8> d64;
  const hn::Rebind<float, decltype(d64)> d32;
  constexpr int kWide = static_cast<int>(hn::MaxLanes(d64)), kWideParts = kLogicalLanes / kWide;
  const auto limit = hn::Set(d32, threshold);
  hn::Vec<decltype(d64)> acc[kWideParts];
  LLMB_UNROLL for (int j = 0; j < kWideParts; ++j) acc[j] = hn::Zero(d64);
  UpperTail tail;
  const int64_t full = n - n % kLogicalLanes;
  for (int64_t i = 0; i < full; i += kLogicalLanes) {
    LLMB_UNROLL for (int j = 0; j < kWideParts; ++j) {
      const auto x = hn::LoadU(d32, values + i + j * kWide);
      const auto kept = hn::Ge(x, limit);
      acc[j] = hn::Add(acc[j], hn::PromoteTo(d64, hn::IfThenElseZero(kept, x)));
      tail.count += static_cast<int64_t>(hn::CountTrue(d32, kept));
    }
  }
  double lanes[kLogicalLanes];
  LLMB_UNROLL for (int j = 0; j < kWideParts; ++j) hn::StoreU(acc[j], d64, lanes + j * kWide);
  for (const double lane : lanes) tail.sum += lane;
  for (int64_t i = full; i < n; ++i) {
    if (!(values[i] >= threshold)) continue;
    tail.sum += values[i];
    ++tail.count;
  }
  return tail;
}

void list_at_least_impl(const float* values, int64_t n, float threshold, float* listed, int32_t* ids) {
  const D d;
  const DI di;
  const V limit = hn::Set(d, threshold);
  static_assert(kLanes <= kListSlack);
  int64_t i = 0;
  size_t count = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const V x = hn::LoadU(d, values + i);
    const auto kept = hn::Ge(x, limit);
    hn::StoreU(hn::Compress(hn::Iota(di, static_cast<int32_t>(i)), hn::RebindMask(di, kept)), di, ids + count);
    hn::StoreU(hn::Compress(x, kept), d, listed + count);
    count += hn::CountTrue(d, kept);
  }
  for (; i < n; ++i) {
    if (!(values[i] >= threshold)) continue;
    listed[count] = values[i];
    ids[count++] = static_cast<int32_t>(i);
  }
}

double block_sums_impl(const float* values, int64_t n, double* sums) {
  const hn::CappedTag<double, 8> d64;
  const hn::Rebind<float, decltype(d64)> d32;
  constexpr int kWide = static_cast<int>(hn::MaxLanes(d64)), kWideParts = kLogicalLanes / kWide;
  double total = 0;
  for (int64_t begin = 0; begin < n; begin += kSumBlock) {
    const int64_t count = std::min(kSumBlock, n - begin), full = count - count % kLogicalLanes;
    hn::Vec<decltype(d64)> acc[kWideParts];
    LLMB_UNROLL for (int j = 0; j < kWideParts; ++j) acc[j] = hn::Zero(d64);
    for (int64_t i = 0; i < full; i += kLogicalLanes) {
      LLMB_UNROLL for (int j = 0; j < kWideParts; ++j) acc[j] =
          hn::Add(acc[j], hn::PromoteTo(d64, hn::LoadU(d32, values + begin + i + j * kWide)));
    }
    double lanes[kLogicalLanes];
    LLMB_UNROLL for (int j = 0; j < kWideParts; ++j) hn::StoreU(acc[j], d64, lanes + j * kWide);
    double sum = 0;
    for (const double lane : lanes) sum += lane;
    for (int64_t i = full; i < count; ++i) sum += values[begin + i];
    *sums++ = sum;
    total += sum;
  }
  return total;
}

}  // namespace HWY_NAMESPACE
}  // namespace llmb::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace llmb::cpu {

HWY_EXPORT(scan_logits_impl);
HWY_EXPORT(scan_masked_logits_impl);
HWY_EXPORT(find_in_range_impl);
HWY_EXPORT(block_maxima_impl);
HWY_EXPORT(exp_weights_impl);
HWY_EXPORT(replace_after_impl);
HWY_EXPORT(upper_tail_impl);
HWY_EXPORT(list_at_least_impl);
HWY_EXPORT(block_sums_impl);

LogitScan scan_logits(const float* logits, int64_t n) { return HWY_DYNAMIC_DISPATCH(scan_logits_impl)(logits, n); }
LogitScan scan_masked_logits(const float* logits, const uint32_t* mask, int64_t n, float* allowed, float* max_allowed) {
  return HWY_DYNAMIC_DISPATCH(scan_masked_logits_impl)(logits, mask, n, allowed, max_allowed);
}
int64_t find_in_range(const float* values, int64_t begin, int64_t n, float low, float high) {
  return HWY_DYNAMIC_DISPATCH(find_in_range_impl)(values, begin, n, low, high);
}
void block_maxima(const float* values, int64_t n, float* maxima) {
  HWY_DYNAMIC_DISPATCH(block_maxima_impl)(values, n, maxima);
}
void exp_weights(const float* logits, int64_t n, float max, float temperature, float* weights) {
  HWY_DYNAMIC_DISPATCH(exp_weights_impl)(logits, n, max, temperature, weights);
}
void replace_after(const Cut& cut, float replacement, int64_t n, float* values) {
  HWY_DYNAMIC_DISPATCH(replace_after_impl)(cut, replacement, n, values);
}
UpperTail upper_tail(const float* values, int64_t n, float threshold) {
  return HWY_DYNAMIC_DISPATCH(upper_tail_impl)(values, n, threshold);
}
void list_at_least(const float* values, int64_t n, float threshold, float* listed, int32_t* ids) {
  HWY_DYNAMIC_DISPATCH(list_at_least_impl)(values, n, threshold, listed, ids);
}
double block_sums(const float* values, int64_t n, double* sums) {
  return HWY_DYNAMIC_DISPATCH(block_sums_impl)(values, n, sums);
}

}  // namespace llmb::cpu
#endif
