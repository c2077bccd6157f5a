// linear over float and int4 weights: arithmetic in fp32.
//
// A task walks its panel in blocks of k that stay in the second-level cache, a register tile of rows after the other.
// The first tile widens the stored form in registers and keeps it widened for the others: stores cost nothing beside
// multiply-adds, where shifts, masks and lookups take turns with them. Partial sums go through memory as fp32, so the
// chain over k is the same as in registers. While a block is multiplied, the next one is fetched.
//
// Of a pair of bf16 weights the odd one comes first where x was rounded to bf16, too: the order, and so the bytes, of
// AVX-512-BF16's dot product.
#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/cpu/linear_task.h"
#include "kernels/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/linear_float.cpp"
#include "hwy/foreach_target.h"  // must come before highway.h
#include "kernels/cpu/simd-inl.h"

#ifndef LLMB_KERNELS_CPU_LINEAR_FLOAT_ONCE_
#define LLMB_KERNELS_CPU_LINEAR_FLOAT_ONCE_
namespace llmb::cpu {

constexpr int64_t kWidth = PackedLinear::kPanelWidth;
constexpr int64_t kGroup = PackedLinear::kInt4Group;
constexpr int64_t kBlockK = 640;  // at most: 160 KiB widened

}  // namespace llmb::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace llmb::cpu {
namespace HWY_NAMESPACE {

using U = hn::Vec<DU>;

// Readers of a panel's stored form. words(): where the words of step k begin, those of the next step kStepBytes later,
// within a block, or within a group where chains end with each group (kHasScales). load() gives the words of kStep
// steps of k in kLanes columns, value<step>() the fp32 weights of one of them.
struct F32Panel {
  static constexpr int kStep = 1, kStepBytes = kWidth * 4, kWordBytes = 4;
  static constexpr bool kHasScales = false;
  const uint8_t* data;
  const uint8_t* words(int64_t k, int64_t column) const { return data + k * kStepBytes + column * kWordBytes; }
  HWY_INLINE V load(const uint8_t* at) const { return hn::LoadU(D(), reinterpret_cast<const float*>(at)); }
  template <int kIndex>
  HWY_INLINE V value(V word) const {
    return word;
  }
  static int64_t bytes(int64_t num_k) { return num_k * kStepBytes; }
};

struct F16Panel {
  static constexpr int kStep = 1, kStepBytes = kWidth * 2, kWordBytes = 2;
  static constexpr bool kHasScales = false;
  const uint8_t* data;
  const uint8_t* words(int64_t k, int64_t column) const { return data + k * kStepBytes + column * kWordBytes; }
  HWY_INLINE V load(const uint8_t* at) const {
    const hn::Rebind<hwy::float16_t, D> d16;
    return hn::PromoteTo(D(), hn::LoadU(d16, reinterpret_cast<const hwy::float16_t*>(at)));
  }
  template <int kIndex>
  HWY_INLINE V value(V word) const {
    return word;
  }
  static int64_t bytes(int64_t num_k) { return num_k * kStepBytes; }
};

struct BF16Panel {
  static constexpr int kStep = 2, kStepBytes = kWidth * 4, kWordBytes = 4;
  static constexpr bool kHasScales = false;
  const uint8_t* data;  // pairs of k
  const uint8_t* words(int64_t k, int64_t column) const { return data + k / 2 * kStepBytes + column * kWordBytes; }
  HWY_INLINE U load(const uint8_t* at) const { return hn::LoadU(DU(), reinterpret_cast<const uint32_t*>(at)); }
  template <int kIndex>
  HWY_INLINE V value(U word) const {
    if constexpr (kIndex == 0) return hn::BitCast(D(), hn::ShiftLeft<16>(word));
    else return hn::BitCast(D(), hn::And(word, hn::Set(DU(), 0xffff0000u)));
  }
  static int64_t bytes(int64_t num_k) { return ceil_div(num_k, 2) * kStepBytes; }
};

struct BF16PairPanel : BF16Panel {};

struct Int4Panel {
  static constexpr int kStep = 8, kStepBytes = kWidth * 4, kWordBytes = 4;
  static constexpr bool kHasScales = true;
  static constexpr int64_t kWordsBytes = kGroup * kWidth / 2, kGroupBytes = kWordsBytes + kWidth * 2;
  const uint8_t* data;
  V numbers;  // what the sixteen values of four bits mean, where a lane can look them up

  explicit HWY_INLINE Int4Panel(const uint8_t* panel) : data(panel) {
    HWY_ALIGN static constexpr float kNumbers[16] = {0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1};
    numbers = hn::Load(D(), kNumbers);
  }
  const uint8_t* words(int64_t k, int64_t column) const {
    return data + k / kGroup * kGroupBytes + k % kGroup / kStep * kStepBytes + column * kWordBytes;
  }
  HWY_INLINE const uint8_t* load(const uint8_t* at) const { return at; }
  template <int kIndex>
  HWY_INLINE V value(const uint8_t* at) const {
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
    // Loading from a byte further on shifts by eight bits; the lookup looks at four bits only.
    const U words{_mm512_loadu_si512(at + kIndex / 2)};
    return V{_mm512_permutexvar_ps(hn::ShiftRight<kIndex % 2 * 4>(words).raw, numbers.raw)};
#else
    const U words = hn::LoadU(DU(), reinterpret_cast<const uint32_t*>(at));
    const VI top = hn::BitCast(DI(), hn::ShiftLeft<28 - 4 * kIndex>(words));
    return hn::ConvertTo(D(), hn::ShiftRight<28>(top));
#endif
  }
  HWY_INLINE V scale(int64_t k, int64_t column) const {
    const hn::Rebind<uint16_t, D> d16;
    const auto* scales = reinterpret_cast<const uint16_t*>(data + k / kGroup * kGroupBytes + kWordsBytes);
    return hn::BitCast(D(), hn::ShiftLeft<16>(hn::PromoteTo(DU(), hn::LoadU(d16, scales + column))));
  }
  static int64_t bytes(int64_t num_k) { return ceil_div(num_k, kGroup) * kGroupBytes; }
};

// A panel whose fp32 weights are kept as they are asked for, and what was kept of it.
template <typename Panel>
struct KeepPanel : Panel {
  using Stored = Panel;
  float* wide;      // [k][kWidth]  of a block
  int64_t k_begin;  // of that block
  float* wide_at(int64_t k, int64_t column) const { return wide + (k - k_begin) * kWidth + column; }
};

template <typename Panel>
struct KeptPanel {
  static constexpr int kStep = 2, kStepBytes = kStep * kWidth * 4, kWordBytes = 4;
  static constexpr bool kHasScales = Panel::kHasScales;
  KeepPanel<Panel> panel;
  const uint8_t* words(int64_t k, int64_t column) const {
    return reinterpret_cast<const uint8_t*>(panel.wide_at(k, column));
  }
  HWY_INLINE const float* load(const uint8_t* at) const { return reinterpret_cast<const float*>(at); }
  template <int kIndex>
  HWY_INLINE V value(const float* at) const {
    return hn::LoadU(D(), at + kIndex * kWidth);
  }
  HWY_INLINE V scale(int64_t k, int64_t column) const { return panel.scale(k, column); }
};

template <typename Panel>
constexpr bool keeps = false;
template <typename Panel>
constexpr bool keeps<KeepPanel<Panel>> = true;

// Steps of k of a turn of the loop over the tiles behind the first.
template <typename Panel>
constexpr int later_step = Panel::kStep;
template <typename Panel>
constexpr int later_step<KeepPanel<Panel>> = KeptPanel<Panel>::kStep;

template <typename Panel>
constexpr bool is_odd_first = false;
template <>
constexpr bool is_odd_first<BF16PairPanel> = true;
template <typename Panel>
constexpr bool is_odd_first<KeepPanel<Panel>> = is_odd_first<Panel>;
template <typename Panel>
constexpr bool is_odd_first<KeptPanel<Panel>> = is_odd_first<Panel>;

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
  if constexpr (keeps<Panel>) wide = panel.wide_at(k_begin, column);
  const auto load = [&]() HWY_ATTR {
    LLMB_UNROLL for (int c = 0; c < kVecs; ++c) word[c] = panel.load(words + c * kLanes * Panel::kWordBytes);
  };
  const auto step = [&](auto index) HWY_ATTR {
    constexpr int kIndex = decltype(index)::value;
    V b[kVecs];
    LLMB_UNROLL for (int c = 0; c < kVecs; ++c) b[c] = panel.template value<kIndex>(word[c]);
    if constexpr (keeps<Panel>) {
      LLMB_UNROLL for (int c = 0; c < kVecs; ++c) hn::StoreU(b[c], d, wide + kIndex * kWidth + c * kLanes);
    }
    LLMB_UNROLL for (int r = 0; r < kRows; ++r) {
      const float* row = (r < 3 ? x0 : r < 6 ? x3 : r < 9 ? x6 : x9) + r % 3 * x_stride;
      const V xv = hn::Set(d, row[kIndex]);
      LLMB_UNROLL for (int c = 0; c < kVecs; ++c) acc[r * kVecs + c] = hn::MulAdd(xv, b[c], acc[r * kVecs + c]);
    }
  };
  const auto all_steps = [&]<int... kIndex>(std::integer_sequence<int, kIndex...>) HWY_ATTR {
    (step(std::integral_constant<int, kIndex>()), ...);
  };
  const auto some_steps = [&]<int... kIndex>(int64_t count, std::integer_sequence<int, kIndex...>) HWY_ATTR {
    ((kIndex < count ? step(std::integral_constant<int, kIndex>()) : void()), ...);
  };
  constexpr auto kSteps = [] {
    if constexpr (is_odd_first<Panel>) return std::integer_sequence<int, 1, 0>();
    else return std::make_integer_sequence<int, Panel::kStep>();
  }();
  const float* end = x + k_end - (Panel::kStep - 1);
  for (; x0 < end;
       x0 += Panel::kStep, x3 += Panel::kStep, x6 += Panel::kStep, x9 += Panel::kStep, words += Panel::kStepBytes) {
    ahead.turn<kVecs * kLanes * Panel::kWordBytes, /*kFar=*/true>(words);
    load();
    all_steps(kSteps);
    if constexpr (keeps<Panel>) wide += Panel::kStep * kWidth;
  }
  fetch = ahead;
  if (Panel::kStep == 1 || x0 == x + k_end) return;
  load();
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

// As many vectors of columns as registers allow with this many rows, within a range of columns.
template <int kRows, int kColumns>
constexpr int tile_vecs() {
  constexpr int kMaxVecs = kTileRows * kTileColumns / kLanes / kRows;
  for (int vecs = kColumns / kLanes; vecs > 1; vecs /= 2)
    if (vecs <= kMaxVecs) return vecs;
  return 1;
}

// Blocks of at most kBlockK, nearly equal, that begin where a group of int4 weights may begin.
int64_t even_block(int64_t num_k) {
  static_assert(kBlockK % kGroup == 0);
  return ceil_div(ceil_div(num_k, ceil_div(num_k, kBlockK)), kGroup) * kGroup;
}

// One block of k of a task.
struct Block {
  int64_t k_begin, k_end;
  float* sums;  // [rows][kWidth]  as tile_sums() has them
};

const float* block_x(const LinearTask& t, int64_t row) { return t.x + (t.row_begin + row) * t.weight->in_features(); }

template <int kColumns, typename Panel>
HWY_INLINE void run_block(const LinearTask& t, const Panel& panel, const Block& block, FetchAhead& ahead) {
  for_row_tiles<kTallTileRows>(t.row_end - t.row_begin, [&](int64_t row, auto rows) HWY_ATTR {
    constexpr int kRows = decltype(rows)::value, kVecs = tile_vecs<kRows, kColumns>();
    const TileSums sums = tile_sums(t, row, block.k_begin == 0, block.k_end == t.weight->in_features(), block.sums);
    const auto run = [&](const auto& p) HWY_ATTR {
      for (int64_t column = t.column_begin; column < t.column_end; column += kVecs * kLanes)
        tile<kRows, kVecs>(p, block_x(t, row), t.weight->in_features(), block.k_begin, block.k_end, column, sums,
                           ahead);
    };
    if constexpr (keeps<Panel>) {
      if (row > 0) return run(KeptPanel<typename Panel::Stored>{panel});
    }
    run(panel);
  });
}

template <int kColumns, typename Panel>
HWY_INLINE void run_task(const LinearTask& t, Panel panel) {
  HWY_ALIGN float sums[kLinearTaskRows * kWidth];
  const int64_t num_k = t.weight->in_features(), num_tiles = ceil_div(t.row_end - t.row_begin, kTallTileRows);
  const int64_t block_k = even_block(num_k);
  for (int64_t k = 0; k < num_k; k += block_k) {
    const Block block{k, std::min(num_k, k + block_k), sums};
    const bool is_last = block.k_end == num_k;
    const uint8_t* next = is_last ? t.next : t.weight->panel(t.panel) + Panel::bytes(block.k_end);
    const int64_t next_bytes = Panel::bytes(std::min(block_k, is_last ? num_k : num_k - block.k_end));
    FetchAhead ahead;
    if (t.row_end - t.row_begin > kTileRows) {  // else a lone tile takes all columns
      const int64_t num_steps =
          (block.k_end - k) / Panel::kStep + (num_tiles - 1) * (block.k_end - k) / later_step<Panel>;
      ahead = FetchAhead(next, next_bytes, kColumns / tile_columns(kTallTileRows) * num_steps);
    }
    if constexpr (keeps<Panel>) panel.k_begin = k;
    run_block<kColumns>(t, panel, block, ahead);
  }
  copy_narrow_panel(t, sums);
}

void float_linear_task_target(const LinearTask& t) {
  const uint8_t* data = t.weight->panel(t.panel);
  const auto run = [&t](const auto& panel) HWY_ATTR {
    if (t.column_end - t.column_begin == kWidth) run_task<kWidth>(t, panel);
    else run_task<kWidth / 2>(t, panel);
  };
  const auto run_widened = [&](const auto& panel) HWY_ATTR {
    if (t.row_end - t.row_begin <= kTallTileRows) return run(panel);  // there is one tile
    HWY_ALIGN float wide[kBlockK * kWidth];
    run(KeepPanel<std::decay_t<decltype(panel)>>{panel, wide, 0});
  };
  switch (t.weight->format()) {
    case PackedFormat::kF32:
      return run(F32Panel{data});
    case PackedFormat::kF16:
      return run_widened(F16Panel{data});
    case PackedFormat::kBF16:
      if (t.weight->rounds_x()) return run_widened(BF16PairPanel{{data}});
      return run_widened(BF16Panel{data});
    case PackedFormat::kInt4:
      return run_widened(Int4Panel(data));
    case PackedFormat::kInt8:
      return;  // linear_int8.cpp
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace llmb::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace llmb::cpu {

HWY_EXPORT(float_linear_task_target);

void float_linear_task(const LinearTask& task) { HWY_DYNAMIC_DISPATCH(float_linear_task_target)(task); }

}  // namespace llmb::cpu
#endif
