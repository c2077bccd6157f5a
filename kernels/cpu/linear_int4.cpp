// linear over int4 weights: arithmetic in fp32, a chain for each group of k that shares a scale.
#include "kernels/cpu/linear_task.h"
#include "kernels/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/linear_int4.cpp"
#include "hwy/foreach_target.h"  // must come before highway.h
#include "kernels/cpu/linear_tiles-inl.h"

HWY_BEFORE_NAMESPACE();
namespace llmb::cpu {
namespace HWY_NAMESPACE {

// A group's weights, then its scales, a bf16 each.
constexpr int64_t kWordsBytes = kGroup * kWidth / 2, kGroupBytes = kWordsBytes + kWidth * 2;

HWY_INLINE V group_scale(const uint8_t* panel, int64_t k, int64_t column) {
  const hn::Rebind<uint16_t, D> d16;
  const auto* scales = reinterpret_cast<const uint16_t*>(panel + k / kGroup * kGroupBytes + kWordsBytes);
  return hn::BitCast(D(), hn::ShiftLeft<16>(hn::PromoteTo(DU(), hn::LoadU(d16, scales + column))));
}

struct WideInt4Panel : WidePanel {
  static constexpr bool kHasScales = true;
  const uint8_t* data;

  template <typename Panel>
  explicit WideInt4Panel(const KeepPanel<Panel>& kept) : WidePanel(kept), data(kept.data) {}
  HWY_INLINE V scale(int64_t k, int64_t column) const { return group_scale(data, k, column); }
};

struct Int4Panel : PanelReader {
  using Wide = WideInt4Panel;
  static constexpr int kStep = 8, kStepBytes = kWidth * 4, kWordBytes = 4;
  static constexpr bool kHasScales = true;
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
#if HWY_TARGET == HWY_AVX2
  // Four bits become a number without shifts and conversions, which wait for the multiply-adds' ports: an exponent that
  // gives the lowest of them the value 1 makes the number plus 8 a float's fraction where they stand; what was added is
  // subtracted. The last four bits of a word have no place in a fraction.
  static constexpr int byte_of(int index) { return index < 5 ? 0 : 1; }
  static constexpr int bit_of(int index) { return 4 * index - 8 * byte_of(index); }
  struct Constants {
    U mask, flip;
    V added;
  };
  template <int kIndex, int kRows>
  static HWY_INLINE auto constants([[maybe_unused]] const uint8_t* words) {
    if constexpr (kIndex == 7) {
      return NoConstants();
    } else {
      constexpr int kBit = bit_of(kIndex);
      static_assert(kBit + 4 <= 23);
      Constants c = {hn::Set(DU(), 15u << kBit), hn::Set(DU(), (150u - kBit) << 23 | 8u << kBit),
                     hn::Set(D(), static_cast<float>((1 << (23 - kBit)) + 8))};
      // With few rows most is unpacking. A compiler that knows the constants keeps those of all steps in memory, and
      // every number loads three.
      if constexpr (kRows <= 2) {
        asm("" : "+x"(c.mask.raw) : "r"(words));
        asm("" : "+x"(c.flip.raw) : "r"(words));
        asm("" : "+x"(c.added.raw) : "r"(words));
      }
      return c;
    }
  }
  template <int kIndex, typename C>
  HWY_INLINE V value(const uint8_t* at, const C& constants) const {
    const auto words_from = [&](int byte) HWY_ATTR {
      return U{_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at + byte))};
    };
    if constexpr (kIndex == 7) {
      return hn::ConvertTo(D(), hn::ShiftRight<28>(hn::BitCast(DI(), words_from(0))));
    } else {
      const U bits = hn::Xor(hn::And(words_from(byte_of(kIndex)), constants.mask), constants.flip);
      return hn::Sub(hn::BitCast(D(), bits), constants.added);
    }
  }
#else
  template <int kIndex>
  HWY_INLINE V value(const uint8_t* at, NoConstants) const {
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
#endif
  HWY_INLINE V scale(int64_t k, int64_t column) const { return group_scale(data, k, column); }
  static int64_t bytes(int64_t num_k) { return ceil_div(num_k, kGroup) * kGroupBytes; }
};

#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
// A lone row, two groups at a time: eight chains side by side, as four wait for each multiply-add; words are shifted,
// as loads that cross a line take a cycle each. On an EPYC of family 26 one thread reads 41 GB/s from caches (33 by
// tile()), 38 from memory that gives 41 (29; 2026-11-28). The order of sums is tile()'s. num_k: a multiple of 64; sums:
// of vectors of columns from `column` on.
template <int kVecs>
HWY_NOINLINE void multiply_row(const Int4Panel& panel, const float* x, int64_t num_k, int64_t column, V* sums) {
  constexpr int kStep = Int4Panel::kStep;
  const D d;
  RowFetch fetch(panel.words(0, 0));
  V total[kVecs];
  LLMB_UNROLL for (int v = 0; v < kVecs; ++v) total[v] = hn::Zero(d);
  for (int64_t k = 0; k < num_k; k += 2 * kGroup) {
    V acc[2][kVecs];
    LLMB_UNROLL for (int i = 0; i < 2 * kVecs; ++i) acc[i / kVecs][i % kVecs] = hn::Zero(d);
    _Pragma("GCC unroll 1") for (int64_t at = k; at < k + kGroup; at += kStep) {
      const uint8_t* const words = panel.words(at, column);
      fetch.turn(panel.words(k, 0) + (at - k + kStep) * 2 * kGroupBytes / kGroup);
      LLMB_UNROLL for (int g = 0; g < 2; ++g) {
        U word[kVecs];
        LLMB_UNROLL for (int v = 0; v < kVecs; ++v) word[v] =
            U{_mm512_loadu_si512(words + g * kGroupBytes + v * kLanes * Int4Panel::kWordBytes)};
        LLMB_UNROLL for (int i = 0; i < kStep; ++i) {
          const V xv = hn::Set(d, x[at + g * kGroup + i]);
          LLMB_UNROLL for (int v = 0; v < kVecs; ++v) {
            acc[g][v] = hn::MulAdd(xv, V{_mm512_permutexvar_ps(word[v].raw, panel.numbers.raw)}, acc[g][v]);
            word[v] = hn::ShiftRight<4>(word[v]);
          }
        }
      }
    }
    LLMB_UNROLL for (int g = 0; g < 2; ++g) {
      LLMB_UNROLL for (int v = 0; v < kVecs; ++v) total[v] =
          hn::MulAdd(panel.scale(k + g * kGroup, column + v * kLanes), acc[g][v], total[v]);
    }
  }
  LLMB_UNROLL for (int v = 0; v < kVecs; ++v) sums[v] = total[v];
}

// A task of one row of whole pairs of groups.
void int4_row(const LinearTask& t) {
  HWY_ALIGN float sums[kWidth];
  const Int4Panel panel(t.weight->panel(t.panel));
  const int64_t num_k = t.weight->in_features();
  const TileSums to = tile_sums(t, 0, true, true, sums);
  const auto multiply = [&](auto vecs, int64_t column) HWY_ATTR {
    constexpr int kVecs = decltype(vecs)::value;
    V columns[kVecs];
    multiply_row<kVecs>(panel, t.x + t.row_begin * num_k, num_k, column, columns);
    LLMB_UNROLL for (int v = 0; v < kVecs; ++v) {
      const int64_t at = column + v * kLanes;
      if (to.bias != nullptr) columns[v] = hn::Add(columns[v], hn::LoadU(D(), to.bias + at));
      hn::StoreU(columns[v], D(), to.to + at);
    }
  };
  constexpr int kVecs = kWidth / kLanes;
  if (t.column_end - t.column_begin == kWidth) multiply(std::integral_constant<int, kVecs>(), 0);
  else multiply(std::integral_constant<int, kVecs / 2>(), t.column_begin);
  copy_narrow_panel(t, sums);
}
#endif

void int4_linear_task_target(const LinearTask& t) {
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
  if (t.row_end - t.row_begin == 1 && t.weight->in_features() % (2 * kGroup) == 0) return int4_row(t);
#endif
  run_widened(t, Int4Panel(t.weight->panel(t.panel)));
}

}  // namespace HWY_NAMESPACE
}  // namespace llmb::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace llmb::cpu {

HWY_EXPORT(int4_linear_task_target);

void int4_linear_task(const LinearTask& task) { HWY_DYNAMIC_DISPATCH(int4_linear_task_target)(task); }

}  // namespace llmb::cpu
#endif
