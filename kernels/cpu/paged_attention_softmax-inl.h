// Softmax of an item's rows over one segment: scores become weights. Compiled once for each SIMD target; include after
// hwy/foreach_target.h.

#if defined(LLMB_KERNELS_CPU_PAGED_ATTENTION_SOFTMAX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LLMB_KERNELS_CPU_PAGED_ATTENTION_SOFTMAX_INL_H_
#undef LLMB_KERNELS_CPU_PAGED_ATTENTION_SOFTMAX_INL_H_
#else
#define LLMB_KERNELS_CPU_PAGED_ATTENTION_SOFTMAX_INL_H_
#endif

#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels/cpu/paged_attention_rows-inl.h"
#include "kernels/cpu/paged_attention_segment.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace llmb::cpu {
namespace HWY_NAMESPACE {

// As reduce16, in registers: upper half onto lower half, four times.
template <class DV, class Op>
HWY_INLINE float fold(DV, hn::Vec<DV> v, [[maybe_unused]] const Op& op) {
#if HWY_TARGET != HWY_SCALAR
  if constexpr (hn::MaxLanes(DV()) > 1) {
    const hn::Half<DV> half;
    return fold(half, op(hn::LowerHalf(half, v), hn::UpperHalf(half, v)), op);
  }
#endif
  return hn::GetLane(v);
}
template <class Op>
HWY_INLINE float fold16(V16 v, const Op& op) {
  LLMB_UNROLL for (int half = kParts / 2; half >= 1; half /= 2) {
    LLMB_UNROLL for (int i = 0; i < half; ++i) v.part[i] = op(v.part[i], v.part[i + half]);
  }
  return fold(D(), v.part[0], op);
}

HWY_INLINE void multiply(float* x, const float* by, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; i += kLanes)
    hn::StoreU(hn::Mul(hn::LoadU(D(), x + i), hn::LoadU(D(), by + i)), D(), x + i);
}

// Dot products of a row of `head` become scores. distance: from the query's position to the segment's begin.
HWY_INLINE void transform_scores(const AttentionParams& p, int64_t head, int64_t distance, Span span, float* scores) {
  const D d;
  const V scale = hn::Set(d, p.scale), cap = hn::Set(d, p.softcap);
  const V slope = hn::Set(d, p.alibi_slopes != nullptr ? p.alibi_slopes[head] : 0.0f);
  for (int64_t i = span.begin; i < span.end; i += kLanes) {
    V x = hn::Mul(hn::LoadU(d, scores + i), scale);
    if (p.softcap > 0) x = hn::Mul(tanh_v(hn::Div(x, cap)), cap);
    if (p.alibi_slopes != nullptr) x = hn::MulAdd(slope, hn::Iota(d, static_cast<float>(distance + i)), x);
    hn::StoreU(x, d, scores + i);
  }
}

// Rows that go side by side through softmax_numerators, as each is one chain. With one lane, a row is 16 chains.
constexpr int kSoftmaxRows = kLanes > 1 ? 4 : 1;

// Turns the scores of kRows rows of positions [first, end), whole 16 lanes, into exp(factor * score - max); writes each
// row's max of factor * score, and its sum. factor > 0.
template <int kRows, class Fetch>
HWY_INLINE void softmax_numerators(float* scores, int64_t first, int64_t end, float factor, float* max_out,
                                   float* norm_out, Fetch& fetch) {
  V16 max[kRows], norm[kRows];
  LLMB_UNROLL for (int r = 0; r < kRows; ++r) max[r] = set16(-HUGE_VALF);
  for (int64_t i = first; i < end; i += kLogicalLanes) {
    LLMB_UNROLL for (int r = 0; r < kRows; ++r) max[r] =
        map16(max[r], load16(scores + r * kSegment + i), [](V a, V b) HWY_ATTR { return hn::Max(a, b); });
  }
  const V f = hn::Set(D(), factor);
  V m[kRows];
  LLMB_UNROLL for (int r = 0; r < kRows; ++r) {
    max_out[r] = fold16(max[r], [](auto a, auto b) HWY_ATTR { return hn::Max(a, b); }) * factor;
    m[r] = hn::Set(D(), max_out[r]);
    norm[r] = set16(0);
  }
  for (int64_t i = first; i < end; i += kLogicalLanes) {
    LLMB_UNROLL for (int r = 0; r < kRows; ++r) {
      float* at = scores + r * kSegment + i;
      const V16 p = map16(load16(at), [&f, &m, r](V a) HWY_ATTR { return exp_bounded(hn::MulSub(a, f, m[r])); });
      store16(p, at);
      norm[r] = map16(norm[r], p, [](V a, V b) HWY_ATTR { return hn::Add(a, b); });
    }
    fetch.step();
  }
  LLMB_UNROLL for (int r = 0; r < kRows; ++r) norm_out[r] =
      fold16(norm[r], [](auto a, auto b) HWY_ATTR { return hn::Add(a, b); });
}

// The scores of all rows, [rows][kSegment], become weights; their values' sums start at zero.
template <class Format, class Fetch>
HWY_INLINE void weigh(const AttentionCall& c, const SegmentRows& s, const AttentionScratch& scratch,
                      const AttentionState& state, Fetch& fetch) {
  const bool is_plain = c.params.softcap == 0 && c.params.alibi_slopes == nullptr && c.params.scale > 0;
  const float factor = is_plain ? c.params.scale : 1.0f;
  const int64_t padded = c.padded_dim();
  // The positions that a row sees, from and to whole 16 lanes.
  const auto lanes = [&](int64_t row) {
    const Span span = s.visible(row, 0, kSegment);
    return Span{span.begin / kLogicalLanes * kLogicalLanes, ceil_div(span.end, kLogicalLanes) * kLogicalLanes};
  };
  for (int64_t row = s.first_row; row < s.end_row;) {
    const Span common = lanes(row);
    int64_t n = 0;
    for (; n < kSoftmaxRows && row + n < s.end_row; ++n) {
      const Span own = lanes(row + n), span = s.visible(row + n, 0, kSegment);
      if (own.begin != common.begin || own.end != common.end) break;
      float* scores = scratch.scores + (row + n - s.first_row) * kSegment;
      if constexpr (kHasScales<Format>) multiply(scores, scratch.k_scales, own.begin, own.end);
      if (!is_plain)
        transform_scores(c.params, s.rows[row + n].head, s.begin - (s.rows[row + n].limit - 1), own, scores);
      for (int64_t i = own.begin; i < span.begin; ++i) scores[i] = -HUGE_VALF;
      for (int64_t i = span.end; i < own.end; ++i) scores[i] = -HUGE_VALF;
    }
    float* scores = scratch.scores + (row - s.first_row) * kSegment;
    with_rows<1, kSoftmaxRows>(n, [&](auto rows) HWY_ATTR {
      constexpr int kRows = decltype(rows)::value;
      softmax_numerators<kRows>(scores, common.begin, common.end, factor, state.max + row, state.norm + row, fetch);
    });
    if constexpr (kHasScales<Format>)
      for (int64_t i = 0; i < n; ++i) multiply(scores + i * kSegment, scratch.v_scales, common.begin, common.end);
    row += n;
  }
  std::memset(state.values + s.first_row * padded, 0,
              static_cast<size_t>((s.end_row - s.first_row) * padded) * sizeof(float));
}

}  // namespace HWY_NAMESPACE
}  // namespace llmb::cpu
HWY_AFTER_NAMESPACE();

#endif
