// How the segments of paged_attention come together (paged_attention_segment.h).
#include <algorithm>
#include <cstring>

#include "kernels/cpu/paged_attention_segment.h"
#include "kernels/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/paged_attention_merge.cpp"
#include "hwy/foreach_target.h"  // must come before highway.h
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace llmb::cpu {
namespace HWY_NAMESPACE {

void merge_segment_target(const AttentionCall& c, std::span<const AttentionRow> rows, int64_t segment,
                          const AttentionState& from, const AttentionState& into) {
  const int64_t padded = c.padded_dim();
  for (size_t row = 0; row < rows.size(); ++row) {
    if (!rows[row].sees(segment)) continue;
    if (rows[row].begin >= segment * kSegment) {  // there is nothing before
      const auto offset = static_cast<int64_t>(row) * padded;
      std::memcpy(into.values + offset, from.values + offset, static_cast<size_t>(padded) * sizeof(float));
      into.max[row] = from.max[row];
      into.norm[row] = from.norm[row];
      continue;
    }
    const float max = std::max(into.max[row], from.max[row]);
    const V keep = exp_v(hn::Set(D(), into.max[row] - max)), add = exp_v(hn::Set(D(), from.max[row] - max));
    const V norm = hn::Set(D(), into.norm[row]), more = hn::Set(D(), from.norm[row]);
    into.max[row] = max;
    into.norm[row] = hn::GetLane(hn::MulAdd(norm, keep, hn::Mul(more, add)));
    float* at = into.values + static_cast<int64_t>(row) * padded;
    const float* values = from.values + static_cast<int64_t>(row) * padded;
    for (int64_t i = 0; i < padded; i += kLogicalLanes)
      store16(map16(load16(at + i), load16(values + i),
                    [keep, add](V a, V b) HWY_ATTR { return hn::MulAdd(a, keep, hn::Mul(b, add)); }),
              at + i);
  }
}

void write_rows_target(const AttentionCall& c, std::span<const AttentionRow> rows, const AttentionState& state) {
  const int64_t dim = c.kv.value_dim(), padded = c.padded_dim();
  for (size_t row = 0; row < rows.size(); ++row) {
    float inverse_norm = 1.0f / state.norm[row];
    if (c.params.sinks != nullptr) {
      const float sink = c.params.sinks[rows[row].head], max = std::max(state.max[row], sink);
      const float keep = hn::GetLane(exp_v(hn::Set(D(), state.max[row] - max)));
      const float extra = hn::GetLane(exp_v(hn::Set(D(), sink - max)));
      inverse_norm = keep / (state.norm[row] * keep + extra);
    }
    const V inverse = hn::Set(D(), inverse_norm);
    const float* values = state.values + static_cast<int64_t>(row) * padded;
    float* const out = c.out + rows[row].index * dim;
    for (int64_t i = 0; i < dim; i += kLogicalLanes) {
      const V16 x = map16(load16(values + i), [inverse](V a) HWY_ATTR { return hn::Mul(a, inverse); });
      if (dim - i >= kLogicalLanes) {
        store16(x, out + i);
      } else {
        store16_partial(x, out + i, dim - i);
      }
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace llmb::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace llmb::cpu {

HWY_EXPORT(merge_segment_target);
HWY_EXPORT(write_rows_target);

void merge_segment(const AttentionCall& c, std::span<const AttentionRow> rows, int64_t segment,
                   const AttentionState& from, const AttentionState& into) {
  HWY_DYNAMIC_DISPATCH(merge_segment_target)(c, rows, segment, from, into);
}

void write_rows(const AttentionCall& c, std::span<const AttentionRow> rows, const AttentionState& state) {
  HWY_DYNAMIC_DISPATCH(write_rows_target)(c, rows, state);
}

void save_rows(const AttentionCall& c, std::span<const AttentionRow> rows, const AttentionState& state) {
  const int64_t dim = c.kv.value_dim();
  for (size_t row = 0; row < rows.size(); ++row) {
    std::memcpy(c.out + rows[row].index * dim, state.values + static_cast<int64_t>(row) * c.padded_dim(),
                static_cast<size_t>(dim) * sizeof(float));
    c.max[rows[row].index] = state.max[row];
    c.norm[rows[row].index] = state.norm[row];
  }
}

void load_rows(const AttentionCall& c, std::span<const AttentionRow> rows, const AttentionState& state) {
  const int64_t dim = c.kv.value_dim(), padded = c.padded_dim();
  for (size_t row = 0; row < rows.size(); ++row) {
    float* const values = state.values + static_cast<int64_t>(row) * padded;
    std::memcpy(values, c.out + rows[row].index * dim, static_cast<size_t>(dim) * sizeof(float));
    std::fill(values + dim, values + padded, 0.0f);
    state.max[row] = c.max[rows[row].index];
    state.norm[row] = c.norm[rows[row].index];
  }
}

}  // namespace llmb::cpu
#endif
