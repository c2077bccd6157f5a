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

void add_rms_norm_row(float* HWY_RESTRICT residual, const float* HWY_RESTRICT delta, const float* HWY_RESTRICT weight,
                      float eps, int64_t hidden, float* HWY_RESTRICT out) {
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

}  // namespace HWY_NAMESPACE
}  // namespace llmb::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace llmb::cpu {

HWY_EXPORT(add_rms_norm_row);

void add_rms_norm(float* residual, const float* delta, const float* weight, float eps, int64_t rows, int64_t hidden,
                  float* out, ThreadPool& pool) {
  for_each_row(pool, rows, hidden, [&](int64_t row, int) {
    const int64_t at = row * hidden;
    HWY_DYNAMIC_DISPATCH(add_rms_norm_row)
    (residual + at, delta != nullptr ? delta + at : nullptr, weight, eps, hidden, out + at);
  });
}

}  // namespace llmb::cpu
#endif
