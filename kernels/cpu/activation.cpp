// Bound by memory: 3 floats moved for each gated output, one exp. One task is a few thousand outputs.
#include "kernels/cpu/activation.h"

#include <algorithm>

#include "core/types.h"
#include "kernels/cpu/simd_targets.h"
#include "kernels/cpu/tuning.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/activation.cpp"
#include "hwy/foreach_target.h"  // must come before highway.h
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace llmb::cpu {
namespace HWY_NAMESPACE {

// x / (1 + e^(-alpha x))
HWY_INLINE V sigmoid_mul(V x, V minus_alpha) {
  return hn::Div(x, hn::Add(hn::Set(D(), 1.0f), exp_v(hn::Mul(x, minus_alpha))));
}

HWY_INLINE V silu(V x) { return hn::Div(x, hn::Add(hn::Set(D(), 1.0f), exp_v(hn::Neg(x)))); }

// 1 + tanh u is 2 / (1 + e^(-2 u)), which loses nothing where u is far below 0. Here u = √(2/π) (x + 0.044715 x³).
HWY_INLINE V gelu_tanh(V x) {
  const D d;
  const V square = hn::Mul(x, x);
  const V scaled = hn::MulAdd(square, hn::Set(d, -2 * 0.79788456f * 0.044715f), hn::Set(d, -2 * 0.79788456f));
  return hn::Div(x, hn::Add(hn::Set(d, 1.0f), exp_v(hn::Mul(x, scaled))));
}

// x Φ(x), Φ(-|x|) = erfc(z) / 2 with z = |x| / √2, and erfc(z) = t e^(P(t) - z²) with t = 1 / (1 + z / 2). P is fitted
// at Chebyshev nodes over the range in which erfc is a normal number; its error is below 5e-8.
HWY_INLINE V gelu(V x) {
  const D d;
  const V one = hn::Set(d, 1.0f), half = hn::Set(d, 0.5f);
  const V z = hn::Mul(hn::Abs(x), hn::Set(d, 0.70710678f));
  const V t = hn::Div(one, hn::MulAdd(half, z, one));
  V p = hn::Set(d, 0.14322467148303986f);
  p = hn::MulAdd(p, t, hn::Set(d, -0.67131108045578f));
  p = hn::MulAdd(p, t, hn::Set(d, 1.1336978673934937f));
  p = hn::MulAdd(p, t, hn::Set(d, -0.6645712852478027f));
  p = hn::MulAdd(p, t, hn::Set(d, -0.10748659074306488f));
  p = hn::MulAdd(p, t, hn::Set(d, 0.016350997611880302f));
  p = hn::MulAdd(p, t, hn::Set(d, 0.029222682118415833f));
  p = hn::MulAdd(p, t, hn::Set(d, 0.38782641291618347f));
  p = hn::MulAdd(p, t, hn::Set(d, 0.9984867572784424f));
  p = hn::MulAdd(p, t, hn::Set(d, -1.2654403448104858f));
  const V tail = hn::Mul(hn::Mul(half, t), exp_v(hn::NegMulAdd(z, z, p)));
  return hn::Mul(x, hn::IfThenElse(hn::Lt(x, hn::Zero(d)), tail, hn::Sub(one, tail)));
}

// By comparison, not Max, which drops NaN on some targets.
HWY_INLINE V relu(V x) { return hn::IfThenElse(hn::Lt(x, hn::Zero(D())), hn::Zero(D()), x); }

struct ClampedSwiglu {
  V minus_alpha, limit;
  explicit ClampedSwiglu(const ActivationSpec& spec)
      : minus_alpha(hn::Set(D(), -spec.alpha)), limit(hn::Set(D(), spec.limit)) {}
  HWY_INLINE V operator()(V gate, V up) const {
    const V low = hn::Neg(limit);
    gate = hn::IfThenElse(hn::Gt(gate, limit), limit, gate);
    up = hn::IfThenElse(hn::Gt(up, limit), limit, up);
    up = hn::IfThenElse(hn::Lt(up, low), low, up);
    return hn::Mul(hn::Add(up, hn::Set(D(), 1.0f)), sigmoid_mul(gate, minus_alpha));
  }
};

template <typename F>
HWY_INLINE void gated_span(const F& f, const float* HWY_RESTRICT gate, const float* HWY_RESTRICT up, int64_t n,
                           float* HWY_RESTRICT out) {
  const int64_t full = n - n % kLogicalLanes, rest = n - full;
  for (int64_t i = 0; i < full; i += kLogicalLanes) store16(map16(load16(gate + i), load16(up + i), f), out + i);
  if (rest > 0)
    store16_partial(map16(load16_partial(gate + full, rest), load16_partial(up + full, rest), f), out + full, rest);
}

template <typename F>
HWY_INLINE void plain_span(const F& f, const float* HWY_RESTRICT x, int64_t n, float* HWY_RESTRICT out) {
  const int64_t full = n - n % kLogicalLanes, rest = n - full;
  for (int64_t i = 0; i < full; i += kLogicalLanes) store16(map16(load16(x + i), f), out + i);
  if (rest > 0) store16_partial(map16(load16_partial(x + full, rest), f), out + full, rest);
}

void activate_rows_target(const ActivationSpec& spec, const float* x, const float* up, int64_t x_stride, int64_t rows,
                          int64_t n, float* out, int64_t out_stride) {
  const auto run_gated = [&](const auto& f) HWY_ATTR {
    for (int64_t r = 0; r < rows; ++r) gated_span(f, x + r * x_stride, up + r * x_stride, n, out + r * out_stride);
  };
  const auto run = [&](const auto& f) HWY_ATTR {
    if (up != nullptr) return run_gated([&f](V g, V u) HWY_ATTR { return hn::Mul(f(g), u); });
    for (int64_t r = 0; r < rows; ++r) plain_span(f, x + r * x_stride, n, out + r * out_stride);
  };
  switch (spec.kind) {
    case Activation::kSilu:
      return run([](V v) HWY_ATTR { return silu(v); });
    case Activation::kGelu:
      return run([](V v) HWY_ATTR { return gelu(v); });
    case Activation::kGeluTanh:
      return run([](V v) HWY_ATTR { return gelu_tanh(v); });
    case Activation::kRelu:
      return run([](V v) HWY_ATTR { return relu(v); });
    case Activation::kRelu2:
      return run([](V v) HWY_ATTR {
        const V positive = relu(v);
        return hn::Mul(positive, positive);
      });
    case Activation::kTanh:
      return run([](V v) HWY_ATTR { return tanh_v(v); });
    case Activation::kClampedSwiglu:
      return run_gated(ClampedSwiglu(spec));
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace llmb::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "base/check.h"

namespace llmb::cpu {

HWY_EXPORT(activate_rows_target);

void activate_rows(const ActivationSpec& spec, const float* x, const float* up, int64_t x_stride, int64_t rows,
                   int64_t columns, float* out, int64_t out_stride) {
  HWY_DYNAMIC_DISPATCH(activate_rows_target)(spec, x, up, x_stride, rows, columns, out, out_stride);
}

void activate(const ActivationSpec& spec, const float* x, int64_t rows, int64_t intermediate, float* out,
              ThreadPool& pool) {
  LLMB_CHECK(spec.gated || spec.kind != Activation::kClampedSwiglu);
  constexpr int64_t kSpan = kActivationSpan;
  const int64_t spans = ceil_div(intermediate, kSpan), rows_per_task = std::max<int64_t>(1, kSpan / (intermediate + 1));
  const int64_t width = (spec.gated ? 2 : 1) * intermediate;
  pool.parallel_for(ceil_div(rows, rows_per_task) * spans, [&](int64_t task, int) {
    const int64_t first_row = task / spans * rows_per_task, begin = task % spans * kSpan;
    const float* from = x + first_row * width + begin;
    activate_rows(spec, from, spec.gated ? from + intermediate : nullptr, width,
                  std::min(rows_per_task, rows - first_row), std::min(kSpan, intermediate - begin),
                  out + first_row * intermediate + begin, intermediate);
  });
}

void activate_times(Activation kind, const float* x, const float* y, int64_t y_stride, int64_t rows, int64_t width,
                    float* out, ThreadPool& pool) {
  LLMB_CHECK(kind != Activation::kClampedSwiglu);
  const int64_t rows_per_task = std::max<int64_t>(1, kActivationSpan / (width + 1));
  pool.parallel_for(ceil_div(rows, rows_per_task), [&](int64_t task, int) {
    const int64_t end = std::min(rows, (task + 1) * rows_per_task);
    for (int64_t r = task * rows_per_task; r < end; ++r)
      activate_rows({kind}, x + r * width, y + r * y_stride, width, 1, width, out + r * width, width);
  });
}

}  // namespace llmb::cpu
#endif
