// The register tiles of linear over float, int4 and block weights, in fp32. Compiled once for each SIMD target; include after
// hwy/foreach_target.h.
//
// A task walks its panel in blocks of k that stay in the second-level cache, a register tile of rows after the other.
// The first tile widens the stored form in registers and keeps it widened for the others: stores cost nothing beside
// multiply-adds, where shifts, masks and lookups take turns with them. Partial sums go through memory as fp32, so the
// chain over k is the same as in registers. While a block is multiplied, the next one is fetched.

#if defined(LLMB_KERNELS_CPU_LINEAR_TILES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LLMB_KERNELS_CPU_LINEAR_TILES_INL_H_
#undef LLMB_KERNELS_CPU_LINEAR_TILES_INL_H_
#else
#define LLMB_KERNELS_CPU_LINEAR_TILES_INL_H_
#endif

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/cpu/linear_task.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace llmb::cpu {
namespace HWY_NAMESPACE {

using U = hn::Vec<DU>;

constexpr int64_t kWidth = PackedLinear::kPanelWidth;
constexpr int64_t kGroup = PackedLinear::kInt4Group;

struct NoConstants {};

// Base of the readers of a panel's stored form, which have:
//   words(): where the words of step k begin; those of the next step are kStepBytes further on, within a block, or
//   within a group where chains end with each group (kHasScales). load(): the words of kStep steps of k in kLanes
//   columns. value<step>(): the fp32 weights of one of them; constants<step, rows>(): what it takes for that, made once
//   for all columns. bytes(): of so many k. Wide: the reader of what KeepPanel kept. kWidens: value() computes.
struct PanelReader {
  template <int kIndex, int kRows>
  static NoConstants constants(const uint8_t*) {
    return {};
  }
  static constexpr bool kHasScales = false, kIsOddFirst = false, kKeeps = false, kWidens = true;
};

// A panel whose fp32 weights are kept as they are asked for.
template <typename Panel>
struct KeepPanel : Panel {
  static constexpr bool kKeeps = true;
  float* wide;      // [k][kWidth]  of a block
  int64_t k_begin;  // of that block
  float* wide_at(int64_t k, int64_t column) const { return wide + (k - k_begin) * kWidth + column; }
};

// Reads what was kept.
struct WidePanel : PanelReader {
  static constexpr int kStep = 2, kStepBytes = kStep * kWidth * 4, kWordBytes = 4;
  static constexpr bool kWidens = false;
  const float* wide;
  int64_t k_begin;

  WidePanel(const float* numbers, int64_t first_k) : wide(numbers), k_begin(first_k) {}
  template <typename Panel>
  explicit WidePanel(const KeepPanel<Panel>& kept) : wide(kept.wide), k_begin(kept.k_begin) {}
  const uint8_t* words(int64_t k, int64_t column) const {
    return reinterpret_cast<const uint8_t*>(wide + (k - k_begin) * kWidth + column);
  }
  HWY_INLINE const float* load(const uint8_t* at) const { return reinterpret_cast<const float*>(at); }
  template <int kIndex>
  HWY_INLINE V value(const float* at, NoConstants) const {
    return hn::LoadU(D(), at + kIndex * kWidth);
  }
};

// Steps that a turn of multiply() takes. AVX2's small tiles have few multiply-adds beside what a turn costs, so they take
// four k: 1.07 times as fast with four rows of bf16. Of twelve sums GCC would keep some in memory then.
template <typename Panel>
constexpr int steps_of_turn(int64_t rows, int vecs) {
  return HWY_TARGET == HWY_AVX2 && vecs <= 2 && rows * vecs <= 10 ? std::max(1, 4 / Panel::kStep) : 1;
}

// acc += x[k_begin … k_end) · panel, kRows rows by kVecs vectors of columns; x is of row 0, a row x_stride after the
// other. Addresses are kept in few registers: three rows by one pointer.
template <int kRows, int kVecs, typename Panel>
HWY_INLINE void multiply(const Panel& panel, const float* x, int64_t x_stride, int64_t k_begin, int64_t k_end,
                         int64_t column, FetchAhead& fetch, V (&acc)[kRows * kVecs]) {
  const D d;
  FetchAhead ahead = fetch;
  const uint8_t* words = panel.words(k_begin, column);
  const float* x0 = x + k_begin;
  const float *x3 = x0 + 3 * x_stride, *x6 = x0 + 6 * x_stride, *x9 = x0 + 9 * x_stride;
  decltype(panel.load(words)) word[kVecs];
  [[maybe_unused]] float* wide = nullptr;
  if constexpr (Panel::kKeeps) wide = panel.wide_at(k_begin, column);
  const auto load = [&](int64_t step) HWY_ATTR {
    LLMB_UNROLL for (int c = 0; c < kVecs; ++c)
        word[c] = panel.load(words + step * Panel::kStepBytes + c * kLanes * Panel::kWordBytes);
  };
  const auto step = [&](auto index, int64_t before) HWY_ATTR {
    constexpr int kIndex = decltype(index)::value;
    const int64_t k = before * Panel::kStep + kIndex;
    V b[kVecs];
    const auto constants = panel.template constants<kIndex, kRows>(words + before * Panel::kStepBytes);
    LLMB_UNROLL for (int c = 0; c < kVecs; ++c) b[c] = panel.template value<kIndex>(word[c], constants);
    if constexpr (Panel::kKeeps) {
      LLMB_UNROLL for (int c = 0; c < kVecs; ++c) hn::StoreU(b[c], d, wide + k * kWidth + c * kLanes);
    }
    LLMB_UNROLL for (int r = 0; r < kRows; ++r) {
      const float* row = (r < 3 ? x0 : r < 6 ? x3 : r < 9 ? x6 : x9) + r % 3 * x_stride;
      const V xv = hn::Set(d, row[k]);
      LLMB_UNROLL for (int c = 0; c < kVecs; ++c) acc[r * kVecs + c] = hn::MulAdd(xv, b[c], acc[r * kVecs + c]);
    }
  };
  const auto all_steps = [&]<int... kIndex>(int64_t before, std::integer_sequence<int, kIndex...>) HWY_ATTR {
    (step(std::integral_constant<int, kIndex>(), before), ...);
  };
  const auto some_steps = [&]<int... kIndex>(int64_t count, std::integer_sequence<int, kIndex...>) HWY_ATTR {
    ((kIndex < count ? step(std::integral_constant<int, kIndex>(), 0) : void()), ...);
  };
  constexpr auto kSteps = [] {
    if constexpr (Panel::kIsOddFirst) return std::integer_sequence<int, 1, 0>();
    else return std::make_integer_sequence<int, Panel::kStep>();
  }();
  const auto turns = [&](auto steps) HWY_ATTR {
    constexpr int kTurn = decltype(steps)::value, kTurnK = kTurn * Panel::kStep;
    for (const float* end = x + k_end - (kTurnK - 1); x0 < end;
         x0 += kTurnK, x3 += kTurnK, x6 += kTurnK, x9 += kTurnK, words += kTurn * Panel::kStepBytes) {
      ahead.turn<kVecs * kLanes * Panel::kWordBytes, /*kFar=*/true>(words);
      LLMB_UNROLL for (int i = 0; i < kTurn; ++i) {
        load(i);
        all_steps(i, kSteps);
      }
      if constexpr (Panel::kKeeps) wide += kTurnK * kWidth;
    }
  };
  constexpr int kTurn = steps_of_turn<Panel>(kRows, kVecs);
  turns(std::integral_constant<int, kTurn>());
  if constexpr (kTurn > 1) turns(std::integral_constant<int, 1>());
  fetch = ahead;
  if (Panel::kStep == 1 || x0 == x + k_end) return;
  load(0);
  some_steps(x + k_end - x0, kSteps);
}

template <int kRows, int kVecs, typename Panel>
HWY_INLINE void tile(const Panel& panel, const float* x, int64_t x_stride, int64_t k_begin, int64_t k_end,
                     int64_t column, const TileSums& sums, FetchAhead& ahead) {
  const D d;
  V acc[kRows * kVecs];
  const auto before = [&](int r, int c) HWY_ATTR {
    return sums.from == nullptr ? hn::Zero(d) : hn::LoadU(d, sums.from + r * kWidth + column + c * kLanes);
  };
  if constexpr (Panel::kHasScales) {
    HWY_ALIGN float partial[kRows * kVecs * kLanes];
    LLMB_UNROLL for (int r = 0; r < kRows; ++r) {
      LLMB_UNROLL for (int c = 0; c < kVecs; ++c) hn::Store(before(r, c), d, partial + (r * kVecs + c) * kLanes);
    }
    for (int64_t k = k_begin; k < k_end; k += kGroup) {
      LLMB_UNROLL for (int i = 0; i < kRows * kVecs; ++i) acc[i] = hn::Zero(d);
      multiply<kRows, kVecs>(panel, x, x_stride, k, std::min(k_end, k + kGroup), column, ahead, acc);
      LLMB_UNROLL for (int c = 0; c < kVecs; ++c) {
        const V scale = panel.scale(k, column + c * kLanes);
        LLMB_UNROLL for (int r = 0; r < kRows; ++r) {
          float* at = partial + (r * kVecs + c) * kLanes;
          hn::Store(hn::MulAdd(scale, acc[r * kVecs + c], hn::Load(d, at)), d, at);
        }
      }
    }
    LLMB_UNROLL for (int i = 0; i < kRows * kVecs; ++i) acc[i] = hn::Load(d, partial + i * kLanes);
  } else {
    LLMB_UNROLL for (int i = 0; i < kRows * kVecs; ++i) acc[i] = before(i / kVecs, i % kVecs);
    multiply<kRows, kVecs>(panel, x, x_stride, k_begin, k_end, column, ahead, acc);
  }
  LLMB_UNROLL for (int c = 0; c < kVecs; ++c) {
    const V bias = sums.bias == nullptr ? hn::Zero(d) : hn::LoadU(d, sums.bias + column + c * kLanes);
    LLMB_UNROLL for (int r = 0; r < kRows; ++r) {
      V sum = acc[r * kVecs + c];
      if (sums.bias != nullptr) sum = hn::Add(sum, bias);
      hn::StoreU(sum, d, sums.to + r * sums.to_stride + column + c * kLanes);
    }
  }
}

// As many vectors of columns as registers allow with this many rows, within so many columns.
template <int kRows, typename Panel>
constexpr int tile_vecs(int columns) {
  // Where vectors are one lane wide, more than 16 give the compiler work and the program nothing.
  constexpr int kMaxVecs = std::min(16, kTileRows * kTileColumns / kLanes / kRows);
#if HWY_TARGET == HWY_AVX2
  // Twelve sums, what widens, and a number of x need more than 16 registers, and sums in memory wait for each other.
  if (kRows == 3 && Panel::kWidens) return std::min(2, columns / kLanes);
#endif
  for (int vecs = columns / kLanes; vecs > 1; vecs /= 2)
    if (vecs <= kMaxVecs) return vecs;
  return 1;
}

// Blocks that fit the caches, nearly equal, that begin where a group of int4 weights may begin.
inline int64_t even_block(int64_t num_k) {
  static_assert(kLinearBlockStep % kGroup == 0);
  return ceil_div(ceil_div(num_k, ceil_div(num_k, linear_block_k(cache_sizes()))), kGroup) * kGroup;
}

// One block of k of a task.
struct Block {
  int64_t k_begin, k_end;
  float* sums;  // [rows][kWidth]  as tile_sums() has them
};

// The tiles of kRows rows from `row` on, over the task's columns. Not inline, so that each is compiled once.
template <int kRows, int kVecs, typename Panel>
HWY_NOINLINE void run_columns(const LinearTask& t, const Panel& panel, const Block& block, int64_t row,
                              FetchAhead& ahead) {
  const TileSums sums = tile_sums(t, row, block.k_begin == 0, block.k_end == t.weight->in_features(), block.sums);
  const float* x = t.x + (t.row_begin + row) * t.weight->in_features();
  for (int64_t column = t.column_begin; column < t.column_end; column += kVecs * kLanes)
    tile<kRows, kVecs>(panel, x, t.weight->in_features(), block.k_begin, block.k_end, column, sums, ahead);
}

template <int kRows, typename Panel>
HWY_INLINE void run_rows(const LinearTask& t, const Panel& panel, const Block& block, int64_t row, FetchAhead& ahead) {
  constexpr int kVecs = tile_vecs<kRows, Panel>(kWidth), kHalfVecs = tile_vecs<kRows, Panel>(kWidth / 2);
  if (t.column_end - t.column_begin == kWidth) run_columns<kRows, kVecs>(t, panel, block, row, ahead);
  else run_columns<kRows, kHalfVecs>(t, panel, block, row, ahead);
}

template <typename Panel>
HWY_INLINE void run_block(const LinearTask& t, const Panel& panel, const Block& block, FetchAhead& ahead) {
  // Weights are kept where there are several tiles.
  constexpr int kLeast = Panel::kKeeps ? least_of_several(kTallTileRows) : 1;
  for_row_tiles<kTallTileRows, kLeast>(t.row_end - t.row_begin, [&](int64_t row, auto rows) HWY_ATTR {
    constexpr int kRows = decltype(rows)::value;
    if constexpr (Panel::kKeeps) {
      if (row > 0) return run_rows<kRows>(t, typename Panel::Wide(panel), block, row, ahead);
    }
    run_rows<kRows>(t, panel, block, row, ahead);
  });
}

// Turns of the loop of a tile over num_k.
template <typename Panel>
constexpr int64_t tile_turns(int64_t num_k, int64_t rows, int vecs) {
  return num_k / (Panel::kStep * steps_of_turn<Panel>(rows, vecs));
}

// Turns of all loops over num_k of a block; 0: a lone tile, not a tall one, takes all columns at once.
template <typename Panel>
HWY_INLINE int64_t block_turns(const LinearTask& t, int64_t num_k) {
  const auto columns = static_cast<int>(t.column_end - t.column_begin);
  const int64_t num_rows = t.row_end - t.row_begin, num_tiles = ceil_div(num_rows, kTallTileRows);
  if (num_tiles > 1) {
    constexpr int kColumns = tile_columns(kTallTileRows), kVecs = kColumns / kLanes;
    const int64_t height = ceil_div(num_rows, num_tiles), first = tile_turns<Panel>(num_k, height, kVecs);
    int64_t later = first;
    if constexpr (Panel::kKeeps) later = tile_turns<typename Panel::Wide>(num_k, height, kVecs);
    return columns / kColumns * (first + (num_tiles - 1) * later);
  }
  int64_t turns = 0;
  with_rows<1, kTallTileRows>(num_rows, [&](auto rows) HWY_ATTR {
    const int vecs = tile_vecs<decltype(rows)::value, Panel>(columns), passes = columns / (vecs * kLanes);
    if (passes > 1 || num_rows > kTileRows) turns = passes * tile_turns<Panel>(num_k, num_rows, vecs);
  });
  return turns;
}

template <typename Panel>
HWY_INLINE void run_blocks(const LinearTask& t, Panel panel) {
  HWY_ALIGN float sums[kLinearTaskRows * kWidth];
  const int64_t num_k = t.weight->in_features();
  const int64_t block_k = even_block(num_k);
  for (int64_t k = 0; k < num_k; k += block_k) {
    const Block block{k, std::min(num_k, k + block_k), sums};
    const bool is_last = block.k_end == num_k;
    const uint8_t* next = is_last ? t.next : t.weight->panel(t.panel) + Panel::bytes(block.k_end);
    const int64_t next_bytes = Panel::bytes(std::min(block_k, is_last ? num_k : num_k - block.k_end));
    FetchAhead ahead;
    if (const int64_t turns = block_turns<Panel>(t, block.k_end - k))
      ahead = FetchAhead(next, next_bytes, turns, t.also, ceil_div(num_k, block_k));
    if constexpr (Panel::kKeeps) panel.k_begin = k;
    run_block(t, panel, block, ahead);
    if (t.also != nullptr && ahead.rest() != nullptr) t.also->at = std::min(ahead.rest(), t.also->last);
  }
  copy_narrow_panel(t, sums);
}

// A task over weights whose stored form has to be widened.
template <typename Panel>
HWY_INLINE void run_widened(const LinearTask& t, const Panel& panel) {
  if (t.row_end - t.row_begin <= kTallTileRows) return run_blocks(t, panel);  // there is one tile
  HWY_ALIGN float wide[kMaxLinearBlockK * kWidth];
  run_blocks(t, KeepPanel<Panel>{panel, wide, 0});
}

}  // namespace HWY_NAMESPACE
}  // namespace llmb::cpu
HWY_AFTER_NAMESPACE();

#endif
