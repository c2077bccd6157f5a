// Bound by memory: 3 or 4 floats moved for each element. One task is a few rows.
#include "kernels/cpu/norm.h"

#include <cmath>

#include "kernels/cpu/row_chunks.h"
#include "kernels/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/norm.cpp"
#include "hwy/foreach_target.h"  // must come before highway.h
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace llmb::cpu {
namespace HWY_NAMESPACE {

// `out` may be `residual`.
void add_rms_norm_row(float* residual, const float* HWY_RESTRICT delta, const float* HWY_RESTRICT weight, float eps,
                      int64_t hidden, float* out) {
  const auto add = [](V a, V b) HWY_ATTR { return hn::Add(a, b); };
  const auto mul_add = [](V a, V b, V c) HWY_ATTR { return hn::MulAdd(a, b, c); };
  V16 squares = set16(0);
  const int64_t full = hidden - hidden % kLogicalLanes, rest = hidden - full;
  for (int64_t i = 0; i < full; i += kLogicalLanes) {
    V16 r = load16(residual + i);
    if (delta != nullptr) store16(r = map16(r, load16(delta + i), add), residual + i);
    squares = map16(r, r, squares, mul_add);
  }
  if (rest > 0) {
    V16 r = load16_partial(residual + full, rest);
    if (delta != nullptr) store16_partial(r = map16(r, load16_partial(delta + full, rest), add), residual + full, rest);
    squares = map16(r, r, squares, mul_add);
  }
  const float scale = 1.0f / std::sqrt(sum16(squares) / static_cast<float>(hidden) + eps);
  const V s = hn::Set(D(), scale);
  const auto scaled = [s](V r, V w) HWY_ATTR { return hn::Mul(hn::Mul(r, s), w); };
  for (int64_t i = 0; i < full; i += kLogicalLanes)
    store16(map16(load16(residual + i), load16(weight + i), scaled), out + i);
  if (rest > 0)
    store16_partial(map16(load16_partial(residual + full, rest), load16_partial(weight + full, rest), scaled),
                    out + full, rest);
}

// The lanes below n (< 16) of v, zeros above.
HWY_INLINE V16 first_lanes(const V16& v, int64_t n) {
  float lanes[kLogicalLanes];
  store16(v, lanes);
  return load16_partial(lanes, n);
}

void add_layer_norm_row(float* residual, const float* HWY_RESTRICT delta, const float* HWY_RESTRICT weight,
                        const float* HWY_RESTRICT bias, float eps, int64_t hidden, float* out) {
  const auto add = [](V a, V b) HWY_ATTR { return hn::Add(a, b); };
  const auto mul_add = [](V a, V b, V c) HWY_ATTR { return hn::MulAdd(a, b, c); };
  const int64_t full = hidden - hidden % kLogicalLanes, rest = hidden - full;
  V16 sum = set16(0);
  for (int64_t i = 0; i < full; i += kLogicalLanes) {
    V16 r = load16(residual + i);
    if (delta != nullptr) store16(r = map16(r, load16(delta + i), add), residual + i);
    sum = map16(sum, r, add);
  }
  if (rest > 0) {
    V16 r = load16_partial(residual + full, rest);
    if (delta != nullptr) store16_partial(r = map16(r, load16_partial(delta + full, rest), add), residual + full, rest);
    sum = map16(sum, r, add);
  }
  const auto size = static_cast<float>(hidden);
  const V mean = hn::Set(D(), sum16(sum) / size);
  const auto centre = [mean](V r) HWY_ATTR { return hn::Sub(r, mean); };
  V16 squares = set16(0);
  for (int64_t i = 0; i < full; i += kLogicalLanes) {
    const V16 c = map16(load16(residual + i), centre);
    squares = map16(c, c, squares, mul_add);
  }
  if (rest > 0) {
    const V16 c = first_lanes(map16(load16_partial(residual + full, rest), centre), rest);
    squares = map16(c, c, squares, mul_add);
  }
  const V scale = hn::Set(D(), 1.0f / std::sqrt(sum16(squares) / size + eps));
  const auto normed = [mean, scale](V r, V w) HWY_ATTR { return hn::Mul(hn::Mul(hn::Sub(r, mean), scale), w); };
  for (int64_t i = 0; i < full; i += kLogicalLanes) {
    V16 y = map16(load16(residual + i), load16(weight + i), normed);
    if (bias != nullptr) y = map16(y, load16(bias + i), add);
    store16(y, out + i);
  }
  if (rest > 0) {
    V16 y = map16(load16_partial(residual + full, rest), load16_partial(weight + full, rest), normed);
    if (bias != nullptr) y = map16(y, load16_partial(bias + full, rest), add);
    store16_partial(y, out + full, rest);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace llmb::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace llmb::cpu {

HWY_EXPORT(add_rms_norm_row);
HWY_EXPORT(add_layer_norm_row);

void add_rms_norm(float* residual, const float* delta, const float* weight, float eps, int64_t rows, int64_t hidden,
                  float* out, ThreadPool& pool) {
  for_each_row(pool, rows, hidden, [&](int64_t row, int) {
    const int64_t at = row * hidden;
    HWY_DYNAMIC_DISPATCH(add_rms_norm_row)
    (residual + at, delta != nullptr ? delta + at : nullptr, weight, eps, hidden, out + at);
  });
}

void add_layer_norm(float* residual, const float* delta, const float* weight, const float* bias, float eps,
                    int64_t rows, int64_t hidden, float* out, ThreadPool& pool) {
  for_each_row(pool, rows, hidden, [&](int64_t row, int) {
    const int64_t at = row * hidden;
    HWY_DYNAMIC_DISPATCH(add_layer_norm_row)
    (residual + at, delta != nullptr ? delta + at : nullptr, weight, bias, eps, hidden, out + at);
  });
}

void rms_norm_groups(float* x, int64_t stride, int64_t num_groups, const float* weight, int64_t width, float eps,
                     int64_t rows, ThreadPool& pool) {
  for_each_row(pool, rows, num_groups * width, [&](int64_t row, int) {
    float* group = x + row * stride;
    for (int64_t g = 0; g < num_groups; ++g, group += width)
      HWY_DYNAMIC_DISPATCH(add_rms_norm_row)(group, nullptr, weight, eps, width, group);
  });
}

void layer_norm_groups(float* x, int64_t stride, int64_t num_groups, const float* weight, const float* bias,
                       int64_t width, float eps, int64_t rows, ThreadPool& pool) {
  for_each_row(pool, rows, num_groups * width, [&](int64_t row, int) {
    for (int64_t g = 0; g < num_groups; ++g) {
      float* group = x + row * stride + g * width;
      HWY_DYNAMIC_DISPATCH(add_layer_norm_row)
      (group, nullptr, weight + g * width, bias != nullptr ? bias + g * width : nullptr, eps, width, group);
    }
  });
}

}  // namespace llmb::cpu
#endif
