// Bound by memory: each float is read and written once. One task is a few thousand floats.
#include "kernels/cpu/elementwise.h"

#include <algorithm>
#include <cmath>

#include "core/types.h"
#include "kernels/cpu/row_chunks.h"
#include "kernels/cpu/simd_targets.h"
#include "kernels/cpu/tuning.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/elementwise.cpp"
#include "hwy/foreach_target.h"  // must come before highway.h
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace llmb::cpu {
namespace HWY_NAMESPACE {

template <typename F>
HWY_INLINE void update_span(float* HWY_RESTRICT x, int64_t n, const F& f) {
  const int64_t full = n - n % kLogicalLanes, rest = n - full;
  for (int64_t i = 0; i < full; i += kLogicalLanes) store16(map16(load16(x + i), f), x + i);
  if (rest > 0) store16_partial(map16(load16_partial(x + full, rest), f), x + full, rest);
}

void add_span(float* HWY_RESTRICT residual, const float* HWY_RESTRICT delta, float factor, int64_t n) {
  const V by = hn::Set(D(), factor);
  // A factor of 1 is exact, so this is the plain sum then.
  const auto f = [by](V r, V d) HWY_ATTR { return hn::Add(r, hn::Mul(d, by)); };
  const int64_t full = n - n % kLogicalLanes, rest = n - full;
  for (int64_t i = 0; i < full; i += kLogicalLanes)
    store16(map16(load16(residual + i), load16(delta + i), f), residual + i);
  if (rest > 0)
    store16_partial(map16(load16_partial(residual + full, rest), load16_partial(delta + full, rest), f),
                    residual + full, rest);
}

// All parts from `begin` on.
void sum_span(std::span<const void* const> parts, int64_t begin, int64_t n, float* HWY_RESTRICT out) {
  const auto add = [](V a, V b) HWY_ATTR { return hn::Add(a, b); };
  const auto part = [&](size_t i) { return static_cast<const float*>(parts[i]) + begin; };
  const int64_t full = n - n % kLogicalLanes, rest = n - full;
  for (int64_t i = 0; i < full; i += kLogicalLanes) {
    V16 all = load16(part(0) + i);
    for (size_t p = 1; p < parts.size(); ++p) all = map16(all, load16(part(p) + i), add);
    store16(all, out + i);
  }
  if (rest == 0) return;
  V16 all = load16_partial(part(0) + full, rest);
  for (size_t p = 1; p < parts.size(); ++p) all = map16(all, load16_partial(part(p) + full, rest), add);
  store16_partial(all, out + full, rest);
}

void scale_span(float* x, float factor, int64_t n) {
  const V by = hn::Set(D(), factor);
  update_span(x, n, [by](V v) HWY_ATTR { return hn::Mul(v, by); });
}

void softcap_span(float* x, float cap, int64_t n) {
  const V by = hn::Set(D(), cap);
  update_span(x, n, [by](V v) HWY_ATTR { return hn::Mul(tanh_v(hn::Div(v, by)), by); });
}

// By comparison, not Min and Max, which drop NaN on some targets.
void clamp_span(float* x, float limit, int64_t n) {
  const V high = hn::Set(D(), limit), low = hn::Neg(high);
  update_span(x, n, [high, low](V v) HWY_ATTR {
    v = hn::IfThenElse(hn::Gt(v, high), high, v);
    return hn::IfThenElse(hn::Lt(v, low), low, v);
  });
}

template <typename F>
HWY_INLINE void multiply_span(float* HWY_RESTRICT x, const float* HWY_RESTRICT gate, int64_t n, const F& f) {
  const auto multiply = [&f](V v, V g) HWY_ATTR { return hn::Mul(v, f(g)); };
  const int64_t full = n - n % kLogicalLanes, rest = n - full;
  for (int64_t i = 0; i < full; i += kLogicalLanes) store16(map16(load16(x + i), load16(gate + i), multiply), x + i);
  if (rest > 0)
    store16_partial(map16(load16_partial(x + full, rest), load16_partial(gate + full, rest), multiply), x + full, rest);
}

void gate_span(GateKind kind, float* x, const float* gate, int64_t n) {
  const V one = hn::Set(D(), 1.0f);
  const auto below = [one](V g) HWY_ATTR { return hn::Add(one, exp_v(hn::Neg(g))); };
  switch (kind) {
    case GateKind::kIdentity:
      return multiply_span(x, gate, n, [](V g) HWY_ATTR { return g; });
    case GateKind::kLogistic:
      return multiply_span(x, gate, n, [&](V g) HWY_ATTR { return hn::Div(one, below(g)); });
    case GateKind::kSilu:
      return multiply_span(x, gate, n, [&](V g) HWY_ATTR { return hn::Div(g, below(g)); });
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace llmb::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace llmb::cpu {

HWY_EXPORT(add_span);
HWY_EXPORT(sum_span);
HWY_EXPORT(scale_span);
HWY_EXPORT(softcap_span);
HWY_EXPORT(clamp_span);
HWY_EXPORT(gate_span);

namespace {

// Calls body(begin, n) for spans that cover [0, size).
template <typename Body>
void for_each_span(ThreadPool& pool, int64_t size, const Body& body) {
  constexpr int64_t kSpan = kSpanFloats;
  pool.parallel_for(ceil_div(size, kSpan), [&](int64_t i, int) { body(i * kSpan, std::min(kSpan, size - i * kSpan)); });
}

}  // namespace

void add(float* residual, const float* delta, float factor, int64_t size, ThreadPool& pool) {
  for_each_span(pool, size, [&](int64_t begin, int64_t n) {
    HWY_DYNAMIC_DISPATCH(add_span)(residual + begin, delta + begin, factor, n);
  });
}

void add_columns(float* x, const float* y, int64_t stride, float factor, int64_t rows, int64_t width,
                 ThreadPool& pool) {
  for_each_row(pool, rows, width, [&](int64_t row, int) {
    HWY_DYNAMIC_DISPATCH(add_span)(x + row * width, y + row * stride, factor, width);
  });
}

void sum(std::span<const void* const> parts, int64_t size, float* out, ThreadPool& pool) {
  for_each_span(pool, size,
                [&](int64_t begin, int64_t n) { HWY_DYNAMIC_DISPATCH(sum_span)(parts, begin, n, out + begin); });
}

void scale(float* x, float factor, int64_t size, ThreadPool& pool) {
  for_each_span(pool, size, [&](int64_t begin, int64_t n) { HWY_DYNAMIC_DISPATCH(scale_span)(x + begin, factor, n); });
}

void softcap(float* x, float cap, int64_t size, ThreadPool& pool) {
  for_each_span(pool, size, [&](int64_t begin, int64_t n) { HWY_DYNAMIC_DISPATCH(softcap_span)(x + begin, cap, n); });
}

void clamp(float* x, float limit, int64_t size, ThreadPool& pool) {
  for_each_span(pool, size, [&](int64_t begin, int64_t n) { HWY_DYNAMIC_DISPATCH(clamp_span)(x + begin, limit, n); });
}

void add_gated(float* x, const float* y, const float* gate, int64_t rows, int64_t width, ThreadPool& pool) {
  for_each_row(pool, rows, width, [&](int64_t row, int) {
    const float weight = gate == nullptr ? 1 : static_cast<float>(1 / (1 + std::exp(-static_cast<double>(gate[row]))));
    HWY_DYNAMIC_DISPATCH(add_span)(x + row * width, y + row * width, weight, width);
  });
}

void multiply_by_gate(GateKind kind, float* x, const float* gate, int64_t size, ThreadPool& pool) {
  for_each_span(pool, size, [&](int64_t begin, int64_t n) {
    HWY_DYNAMIC_DISPATCH(gate_span)(kind, x + begin, gate + begin, n);
  });
}

void grow_queries(float* qkv, const int32_t* positions, const QueryGrowth& growth, int64_t rows, int64_t q_size,
                  int64_t stride, ThreadPool& pool) {
  for_each_row(pool, rows, q_size, [&](int64_t row, int) {
    const double factor = 1 + growth.scale * std::log1p((int64_t{positions[row]} + 1) / growth.step);
    HWY_DYNAMIC_DISPATCH(scale_span)(qkv + row * stride, static_cast<float>(factor), q_size);
  });
}

}  // namespace llmb::cpu
#endif
