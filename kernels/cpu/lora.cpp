// Bound by memory for single rows, which read both matrices once; rows of one adapter are computed four at a time, so
// that these share what is read. One task is up to four rows of a segment: t = scale * A x stays on the stack.
#include "kernels/cpu/lora.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/lora.cpp"
#include "hwy/foreach_target.h"  // must come before highway.h
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace llmb::cpu {
namespace HWY_NAMESPACE {

constexpr int kMaxRows = 4;

// t[row][r] = scale * A[r] x[row] for rows and ranks of one tile.
template <int kRows, int kRanks>
HWY_INLINE void shrink_tile(const float* const* x, const float* a, int64_t in, float scale, float (*t)[kMaxLoraKernelRank],
                            int64_t first_rank) {
  const auto mul_add = [](V v, V w, V sum) HWY_ATTR { return hn::MulAdd(v, w, sum); };
  V16 sums[kRows][kRanks];
  LLMB_UNROLL for (int i = 0; i < kRows; ++i) {
    LLMB_UNROLL for (int r = 0; r < kRanks; ++r) sums[i][r] = set16(0);
  }
  const int64_t full = in - in % kLogicalLanes, rest = in - full;
  for (int64_t c = 0; c < full; c += kLogicalLanes) {
    LLMB_UNROLL for (int i = 0; i < kRows; ++i) {
      const V16 values = load16(x[i] + c);
      LLMB_UNROLL for (int r = 0; r < kRanks; ++r)
        sums[i][r] = map16(values, load16(a + r * in + c), sums[i][r], mul_add);
    }
  }
  if (rest > 0) {
    LLMB_UNROLL for (int i = 0; i < kRows; ++i) {
      const V16 values = load16_partial(x[i] + full, rest);
      LLMB_UNROLL for (int r = 0; r < kRanks; ++r)
        sums[i][r] = map16(values, load16_partial(a + r * in + full, rest), sums[i][r], mul_add);
    }
  }
  LLMB_UNROLL for (int i = 0; i < kRows; ++i) {
    LLMB_UNROLL for (int r = 0; r < kRanks; ++r) t[i][first_rank + r] = scale * sum16(sums[i][r]);
  }
}

template <int kRows>
HWY_INLINE void shrink(const float* const* x, const LoraMatrices& m, int64_t in, float (*t)[kMaxLoraKernelRank]) {
  constexpr int kRanks = kRows == 1 ? 4 : 2;
  int64_t r = 0;
  for (; r + kRanks <= m.rank; r += kRanks)
    shrink_tile<kRows, kRanks>(x, m.a.data() + r * in, in, m.scale, t, r);
  for (; r < m.rank; ++r) shrink_tile<kRows, 1>(x, m.a.data() + r * in, in, m.scale, t, r);
}

// out[row] += B t[row] for panels of one tile. `rest` > 0: columns of the last one.
template <int kRows, int kPanels>
HWY_INLINE void expand_tile(float (*t)[kMaxLoraKernelRank], const float* b, int64_t rank, float* const* out,
                            int64_t column, int64_t rest) {
  V16 sums[kRows][kPanels];
  LLMB_UNROLL for (int i = 0; i < kRows; ++i) {
    LLMB_UNROLL for (int p = 0; p < kPanels; ++p) {
      const float* const from = out[i] + column + p * kLoraPanel;
      sums[i][p] = rest > 0 ? load16_partial(from, rest) : load16(from);
    }
  }
  for (int64_t r = 0; r < rank; ++r) {
    LLMB_UNROLL for (int p = 0; p < kPanels; ++p) {
      const V16 column_values = load16(b + (p * rank + r) * kLoraPanel);
      LLMB_UNROLL for (int i = 0; i < kRows; ++i) {
        const V factor = hn::Set(D(), t[i][r]);
        sums[i][p] = map16(column_values, sums[i][p],
                           [factor](V value, V sum) HWY_ATTR { return hn::MulAdd(value, factor, sum); });
      }
    }
  }
  LLMB_UNROLL for (int i = 0; i < kRows; ++i) {
    LLMB_UNROLL for (int p = 0; p < kPanels; ++p) {
      float* const to = out[i] + column + p * kLoraPanel;
      if (rest > 0) store16_partial(sums[i][p], to, rest);
      else store16(sums[i][p], to);
    }
  }
}

template <int kRows>
HWY_INLINE void expand(float (*t)[kMaxLoraKernelRank], const LoraMatrices& m, float* const* out) {
  constexpr int kPanels = kRows == 1 ? 4 : 2;
  const int64_t full = m.num_columns / kLoraPanel, rest = m.num_columns % kLoraPanel;
  const auto panel = [&](int64_t p) { return m.b.data() + p * m.rank * kLoraPanel; };
  int64_t p = 0;
  for (; p + kPanels <= full; p += kPanels)
    expand_tile<kRows, kPanels>(t, panel(p), m.rank, out, m.out_column + p * kLoraPanel, 0);
  for (; p < full; ++p) expand_tile<kRows, 1>(t, panel(p), m.rank, out, m.out_column + p * kLoraPanel, 0);
  if (rest > 0) expand_tile<kRows, 1>(t, panel(p), m.rank, out, m.out_column + p * kLoraPanel, rest);
}

template <int kRows>
HWY_INLINE void add_rows(const float* const* x, const LoraMatrices& m, int64_t in, float* const* out) {
  float t[kMaxRows][kMaxLoraKernelRank];
  shrink<kRows>(x, m, in, t);
  expand<kRows>(t, m, out);
}

void add_lora_rows(const float* const* x, int64_t num_rows, const LoraMatrices* m, int64_t in, float* const* out) {
  if (num_rows == kMaxRows) return add_rows<kMaxRows>(x, *m, in, out);
  for (int64_t i = 0; i < num_rows; ++i) add_rows<1>(x + i, *m, in, out + i);
}

}  // namespace HWY_NAMESPACE
}  // namespace llmb::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace llmb::cpu {

HWY_EXPORT(add_lora_rows);

namespace {
constexpr int32_t kRowsPerTask = 4;  // what add_lora_rows() takes at once
}  // namespace

void lora(const float* x, int64_t in_features, std::span<const LoraSegment> segments, const int32_t* row_ids, float* out,
          int64_t out_features, ThreadPool& pool) {
  struct Task {
    const LoraSegment* segment;
    int32_t begin, end;
  };
  std::vector<Task> tasks;
  for (const LoraSegment& segment : segments) {
    if (segment.matrices.empty()) continue;
    for (const LoraMatrices& m : segment.matrices) LLMB_CHECK(m.rank <= kMaxLoraKernelRank);
    for (int32_t begin = segment.row_begin; begin < segment.row_end; begin += kRowsPerTask)
      tasks.push_back({&segment, begin, std::min(begin + kRowsPerTask, segment.row_end)});
  }
  pool.parallel_for(static_cast<int64_t>(tasks.size()), [&](int64_t i, int) {
    const Task& task = tasks[i];
    const float* from[kRowsPerTask];
    float* to[kRowsPerTask];
    const int32_t num_rows = task.end - task.begin;
    for (int32_t row = 0; row < num_rows; ++row) {
      from[row] = x + row_ids[task.begin + row] * in_features;
      to[row] = out + row_ids[task.begin + row] * out_features;
    }
    for (const LoraMatrices& m : task.segment->matrices)
      HWY_DYNAMIC_DISPATCH(add_lora_rows)(from, num_rows, &m, in_features, to);
  });
}

}  // namespace llmb::cpu
#endif
