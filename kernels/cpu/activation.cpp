// Bound by memory: 3 floats moved for each output, one exp. One task is a few thousand outputs.
#include "kernels/cpu/activation.h"

#include <algorithm>

#include "core/types.h"
#include "kernels/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/activation.cpp"
#include "hwy/foreach_target.h"  // must come before highway.h
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace llmb::cpu {
namespace HWY_NAMESPACE {

HWY_INLINE V16 silu_mul16(const V16& gate, const V16& up) {
  return map16(gate, up, [](V g, V u) HWY_ATTR {
    const D d;
    const V one = hn::Set(d, 1.0f);
    return hn::Mul(hn::Div(g, hn::Add(one, exp_v(hn::Neg(g)))), u);
  });
}

void silu_mul_span(const float* HWY_RESTRICT gate, const float* HWY_RESTRICT up, int64_t n, float* HWY_RESTRICT out) {
  const int64_t full = n - n % kLogicalLanes, rest = n - full;
  for (int64_t i = 0; i < full; i += kLogicalLanes) store16(silu_mul16(load16(gate + i), load16(up + i)), out + i);
  if (rest > 0)
    store16_partial(silu_mul16(load16_partial(gate + full, rest), load16_partial(up + full, rest)), out + full, rest);
}

}  // namespace HWY_NAMESPACE
}  // namespace llmb::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace llmb::cpu {

HWY_EXPORT(silu_mul_span);

void silu_mul(const float* gate_up, int64_t rows, int64_t intermediate, float* out, ThreadPool& pool) {
  constexpr int64_t kSpan = 4096;  // outputs of one task, about a microsecond
  const int64_t spans = ceil_div(intermediate, kSpan), rows_per_task = std::max<int64_t>(1, kSpan / (intermediate + 1));
  pool.parallel_for(ceil_div(rows, rows_per_task) * spans, [&](int64_t task, int) {
    const int64_t first_row = task / spans * rows_per_task, begin = task % spans * kSpan;
    const int64_t n = std::min(kSpan, intermediate - begin);
    for (int64_t row = first_row; row < std::min(rows, first_row + rows_per_task); ++row) {
      const float* gate = gate_up + row * 2 * intermediate + begin;
      HWY_DYNAMIC_DISPATCH(silu_mul_span)(gate, gate + intermediate, n, out + row * intermediate + begin);
    }
  });
}

}  // namespace llmb::cpu
#endif
