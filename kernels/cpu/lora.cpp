// Bound by memory where rows have adapters of their own: each matrix is read once, in the form that its file has, from
// front to back and fetched ahead. Rows of one adapter are computed four at a time, so that these share what is read. With 64
// adapters of rank 16, shrink reads 16 to 18 GB/s, where two threads that only read the same pieces reach 22 (two cores of an
// AMD EPYC 7003, 2026-11-27).
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

constexpr int kTile = 4;  // rows of one adapter that are computed together
// As registers allow for sums: rows and ranks of a tile of shrink, panels of a tile of expand. Where they do not for both,
// a tile of several rows has one rank, so that the rows share what is widened.
constexpr int kShrinkRows = kParts <= 2 ? kTile : 1, kShrinkRanks = kParts == 1 ? kLoraRanks : 1;
constexpr int kExpandPanels = kParts == 1 ? 4 : 1;
constexpr int64_t kAheadBytes = 4096;

HWY_INLINE V16 widen16(const float* p) { return load16(p); }
HWY_INLINE V16 widen16(const uint16_t* p) {
  const hn::Rebind<uint16_t, D> d16;
  V16 r;
  LLMB_UNROLL for (int i = 0; i < kParts; ++i)
    r.part[i] = hn::BitCast(D(), hn::ShiftLeft<16>(hn::PromoteTo(DU(), hn::LoadU(d16, p + i * kLanes))));
  return r;
}

// Fetches an item's part of a matrix ahead of reading it, and at its end the beginning of a later item's.
struct ItemFetch {
  const uint8_t *at, *end, *next;

  template <int kBytes>
  HWY_INLINE void turn() {
    for (int64_t i = 0; i < kBytes; i += 64) __builtin_prefetch(at + i, 0, 2);
    at += kBytes;
    if (at >= end) at = next, end = at + kAheadBytes;
  }
};

// t[row][r] = scale * A[r] x[row] for rows and ranks of one tile, of kSide ranks that lie side by side.
template <int kRows, int kRanks, int kSide, typename T>
HWY_INLINE void shrink_tile(const float* const* x, const T* a, int64_t in, float scale, float* const* t,
                            ItemFetch& ahead) {
  const auto mul_add = [](V v, V w, V sum) HWY_ATTR { return hn::MulAdd(v, w, sum); };
  constexpr int64_t kStep = kSide * kLoraPanel;
  ItemFetch fetch = ahead;
  V16 sums[kRows][kRanks];
  LLMB_UNROLL for (int i = 0; i < kRows; ++i) {
    LLMB_UNROLL for (int r = 0; r < kRanks; ++r) sums[i][r] = set16(0);
  }
  const auto add = [&](const auto& values) HWY_ATTR __attribute__((always_inline)) {  // or sums lie in memory
    fetch.turn<kRanks * kLoraPanel * sizeof(T)>();
    LLMB_UNROLL for (int r = 0; r < kRanks; ++r) {
      const V16 w = widen16(a + r * kLoraPanel);
      LLMB_UNROLL for (int i = 0; i < kRows; ++i) sums[i][r] = map16(values(i), w, sums[i][r], mul_add);
    }
    a += kStep;
  };
  const int64_t full = in - in % kLogicalLanes, rest = in - full;
  for (int64_t c = 0; c < full; c += kLogicalLanes) add([&](int i) HWY_ATTR { return load16(x[i] + c); });
  if (rest > 0) add([&](int i) HWY_ATTR { return load16_partial(x[i] + full, rest); });
  ahead = fetch;
  LLMB_UNROLL for (int i = 0; i < kRows; ++i) {
    LLMB_UNROLL for (int r = 0; r < kRanks; ++r) t[i][r] = scale * sum16(sums[i][r]);
  }
}

template <int kRows, typename T>
void shrink_rows(const LoraItem& item, const float* const* x, float* const* t) {
  const LoraMatrices& m = *item.matrices;
  const T* const a = reinterpret_cast<const T*>(m.a);
  float* to[kRows];
  int64_t r = item.rank_begin;
  const auto address = [&](int64_t rank) { return reinterpret_cast<const uint8_t*>(a + rank * m.padded_k()); };
  ItemFetch ahead{address(r) + kAheadBytes, address(item.rank_end), item.next};
  const auto run = [&](auto ranks, auto side) HWY_ATTR {
    LLMB_UNROLL for (int i = 0; i < kRows; ++i) to[i] = t[i] + item.t_begin + r;
    const T* const from = a + m.a_index(r, 0);
    shrink_tile<kRows, decltype(ranks)::value, decltype(side)::value>(x, from, m.in_features, m.scale, to, ahead);
    r += ranks;
  };
  constexpr int kRanks = kRows == 1 ? kLoraRanks : kShrinkRanks;
  const std::integral_constant<int, kLoraRanks> side_by_side;
  const std::integral_constant<int, 1> one;
  while (r + kLoraRanks <= item.rank_end)
    for (int done = 0; done < kLoraRanks; done += kRanks) run(std::integral_constant<int, kRanks>(), side_by_side);
  while (r < item.rank_end) run(one, one);
}

template <typename T>
void shrink_item(const LoraItem& item, const float* const* x, float* const* t) {
  const int32_t num_rows = item.row_end - item.row_begin;
  int32_t i = 0;
  if constexpr (kShrinkRows > 1)
    for (; i + kShrinkRows <= num_rows; i += kShrinkRows) shrink_rows<kShrinkRows, T>(item, x + i, t + i);
  for (; i < num_rows; ++i) shrink_rows<1, T>(item, x + i, t + i);
}

void shrink_item_target(const LoraItem& item, const float* const* x, float* const* t) {
  if (item.matrices->is_bf16) shrink_item<uint16_t>(item, x, t);
  else shrink_item<float>(item, x, t);
}

// Rows of one adapter, and their places in t.
struct ExpandRows {
  const float* t[kTile];
  float* out[kTile];  // from the first column that is computed on
};

// out[row] += B t[row] for whole panels, one behind the other.
template <int kRows, int kPanels, typename T>
HWY_INLINE void expand_tile(const ExpandRows& rows, const T* b, int64_t rank, int64_t column) {
  V16 sums[kRows][kPanels];
  LLMB_UNROLL for (int i = 0; i < kRows; ++i) {
    LLMB_UNROLL for (int p = 0; p < kPanels; ++p) sums[i][p] = load16(rows.out[i] + column + p * kLoraPanel);
  }
  for (int64_t r = 0; r < rank; ++r) {
    LLMB_UNROLL for (int p = 0; p < kPanels; ++p) {
      const V16 column_values = widen16(b + (p * rank + r) * kLoraPanel);
      LLMB_UNROLL for (int i = 0; i < kRows; ++i) {
        const V factor = hn::Set(D(), rows.t[i][r]);
        sums[i][p] = map16(column_values, sums[i][p],
                           [factor](V value, V sum) HWY_ATTR { return hn::MulAdd(value, factor, sum); });
      }
    }
  }
  LLMB_UNROLL for (int i = 0; i < kRows; ++i) {
    LLMB_UNROLL for (int p = 0; p < kPanels; ++p) store16(sums[i][p], rows.out[i] + column + p * kLoraPanel);
  }
}

// A panel of which the matrices have the columns [begin, end).
template <typename T>
void expand_partial(const float* t, const T* b, int64_t rank, int64_t begin, int64_t end, float* out) {
  float lanes[kLoraPanel] = {};
  std::copy(out + begin, out + end, lanes + begin);
  V16 sum = load16(lanes);
  for (int64_t r = 0; r < rank; ++r) {
    const V factor = hn::Set(D(), t[r]);
    sum = map16(widen16(b + r * kLoraPanel), sum,
                [factor](V value, V before) HWY_ATTR { return hn::MulAdd(value, factor, before); });
  }
  store16(sum, lanes);
  std::copy(lanes + begin, lanes + end, out + begin);
}

// The columns [begin, end) of out that matrices have, whose first panel, which `begin` lies in, is at b.
template <int kRows, typename T>
void expand_columns(const ExpandRows& rows, const T* b, int64_t rank, int64_t begin, int64_t end) {
  constexpr int kPanels = kRows == 1 ? 4 : kExpandPanels;
  int64_t column = begin - begin % kLoraPanel;
  const auto step = [&](int64_t panels) { column += panels * kLoraPanel, b += panels * rank * kLoraPanel; };
  const auto partial = [&](int64_t to) {
    for (int i = 0; i < kRows; ++i)
      expand_partial(rows.t[i], b, rank, std::max(begin - column, int64_t{0}), to - column, rows.out[i] + column);
    step(1);
  };
  if (column < begin) partial(std::min(end, column + kLoraPanel));
  for (; column + kPanels * kLoraPanel <= end; step(kPanels)) expand_tile<kRows, kPanels>(rows, b, rank, column);
  for (; column + kLoraPanel <= end; step(1)) expand_tile<kRows, 1>(rows, b, rank, column);
  if (column < end) partial(end);
}

template <int kRows>
void expand_matrices(std::span<const LoraMatrices> matrices, ExpandRows rows, int64_t column_begin, int64_t column_end) {
  for (const LoraMatrices& m : matrices) {
    const int64_t begin = std::max(column_begin, m.out_column), end = std::min(column_end, m.out_column + m.num_columns);
    if (begin < end) {
      const int64_t at = (begin / kLoraPanel - m.first_panel()) * m.rank * kLoraPanel;
      const int64_t from = begin - column_begin, to = end - column_begin;
      if (m.is_bf16) expand_columns<kRows>(rows, reinterpret_cast<const uint16_t*>(m.b) + at, m.rank, from, to);
      else expand_columns<kRows>(rows, reinterpret_cast<const float*>(m.b) + at, m.rank, from, to);
    }
    for (int i = 0; i < kRows; ++i) rows.t[i] += m.rank;
  }
}

// Calls f(segment, begin, end) for the segments of which row_ids[begin … end) are in [row_begin, row_end).
template <typename Function>
HWY_INLINE void for_segments(const LoraWork& work, int64_t row_begin, int64_t row_end, const Function& f) {
  const int32_t* const ids = work.row_ids;
  for (const LoraSegment& segment : work.segments) {
    if (segment.matrices.empty() || segment.row_begin == segment.row_end) continue;
    int32_t begin = segment.row_begin, end = segment.row_end;
    if (ids[begin] < row_begin) begin = static_cast<int32_t>(std::lower_bound(ids + begin, ids + end, row_begin) - ids);
    if (ids[end - 1] >= row_end) end = static_cast<int32_t>(std::lower_bound(ids + begin, ids + end, row_end) - ids);
    if (begin < end) f(segment, begin, end);
  }
}

// lora_expand()
void expand_target(const LoraWork& work, int64_t row_begin, int64_t row_end, int64_t column_begin, int64_t column_end,
                   float* out, int64_t out_stride) {
  const auto rows_at = [&](int32_t first, int32_t count) {
    ExpandRows rows;
    for (int32_t i = 0; i < count; ++i) {
      rows.t[i] = work.t.data() + (first + i) * work.t_stride;
      rows.out[i] = out + (work.row_ids[first + i] - row_begin) * out_stride;
    }
    return rows;
  };
  for_segments(work, row_begin, row_end, [&](const LoraSegment& segment, int32_t begin, int32_t end) HWY_ATTR {
    for (; begin + kTile <= end; begin += kTile)
      expand_matrices<kTile>(segment.matrices, rows_at(begin, kTile), column_begin, column_end);
    for (; begin < end; ++begin) expand_matrices<1>(segment.matrices, rows_at(begin, 1), column_begin, column_end);
  });
}

// add_lora_ranges()
void add_ranges_target(const LoraWork& work, int64_t row_begin, int64_t row_end, int64_t column_begin, int64_t column_end,
                       std::vector<ByteRange>* ranges) {
  for_segments(work, row_begin, row_end, [&](const LoraSegment& segment, int32_t, int32_t) HWY_ATTR {
    for (const LoraMatrices& m : segment.matrices) {
      const int64_t begin = std::max(column_begin, m.out_column);
      const int64_t end = std::min(column_end, m.out_column + m.num_columns);
      if (begin >= end) continue;
      const int64_t panel_bytes = m.rank * kLoraPanel * m.element_bytes();
      const int64_t first = begin / kLoraPanel, panels = ceil_div(end, kLoraPanel) - first;
      ranges->push_back({m.b + (first - m.first_panel()) * panel_bytes, panels * panel_bytes});
    }
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace llmb::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace llmb::cpu {

HWY_EXPORT(shrink_item_target);
HWY_EXPORT(expand_target);
HWY_EXPORT(add_ranges_target);

namespace {

constexpr int32_t kItemRows = 8, kItemRanks = 16;  // a few microseconds of work, so that threads finish together

const uint8_t* beginning(const LoraItem& item) {
  return item.matrices->a + item.rank_begin * item.matrices->padded_k() * item.matrices->element_bytes();
}

void make_items(int64_t in_features, size_t num_threads, LoraWork* work) {
  work->items.clear();
  work->t_stride = 0;
  int32_t num_ids = 0;
  for (const LoraSegment& segment : work->segments) {
    int32_t t_begin = 0;
    num_ids = std::max(num_ids, segment.row_end);
    for (const LoraMatrices& m : segment.matrices) {
      LLMB_CHECK(m.in_features == in_features);
      const auto rank = static_cast<int32_t>(m.rank);
      for (int32_t row = segment.row_begin; row < segment.row_end; row += kItemRows)
        for (int32_t r = 0; r < rank; r += kItemRanks)
          work->items.push_back({&m, row, std::min(row + kItemRows, segment.row_end), r, std::min(r + kItemRanks, rank),
                                 t_begin, nullptr});
      t_begin += rank;
    }
    work->t_stride = std::max<int64_t>(work->t_stride, t_begin);
  }
  for (size_t i = 0; i < work->items.size(); ++i)
    work->items[i].next = beginning(work->items[std::min(i + num_threads, work->items.size() - 1)]);
  if (const auto size = static_cast<size_t>(num_ids * work->t_stride); work->t.size() < size) work->t.resize(size);
}

}  // namespace

void lora_shrink(const float* x, int64_t in_features, LoraWork* work, ThreadPool& pool) {
  make_items(in_features, static_cast<size_t>(pool.num_threads()), work);
  pool.parallel_for(static_cast<int64_t>(work->items.size()), [&](int64_t i, int) {
    const LoraItem& item = work->items[i];
    const float* from[kItemRows];
    float* to[kItemRows];
    for (int32_t at = item.row_begin; at < item.row_end; ++at) {
      from[at - item.row_begin] = x + work->row_ids[at] * in_features;
      to[at - item.row_begin] = work->t.data() + at * work->t_stride;
    }
    HWY_DYNAMIC_DISPATCH(shrink_item_target)(item, from, to);
  });
}

void lora_expand(const LoraWork& work, int64_t row_begin, int64_t row_end, int64_t column_begin, int64_t column_end,
                 float* out, int64_t out_stride) {
  HWY_DYNAMIC_DISPATCH(expand_target)(work, row_begin, row_end, column_begin, column_end, out, out_stride);
}

void add_lora_ranges(const LoraWork& work, int64_t row_begin, int64_t row_end, int64_t column_begin, int64_t column_end,
                     std::vector<ByteRange>* ranges) {
  HWY_DYNAMIC_DISPATCH(add_ranges_target)(work, row_begin, row_end, column_begin, column_end, ranges);
}

}  // namespace llmb::cpu
#endif
