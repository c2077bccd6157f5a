// linear over bf16 weights with x rounded to bf16, too: pairs of k at a time, as AVX-512-BF16's dot product has them,
// or the same multiply-adds in fp32; or AMX tiles (linear_amx.h) or ARM's BFMMLA (linear_bf16_neon.h), whose sums are
// others.
#include <algorithm>
#include <cstring>

#include "base/float_formats.h"
#include "kernels/cpu/arithmetic.h"
#include "kernels/cpu/cpu_target.h"
#include "kernels/cpu/linear_amx.h"
#include "kernels/cpu/linear_bf16_neon.h"
#include "kernels/cpu/linear_task.h"
#include "kernels/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/linear_bf16.cpp"
#include "hwy/foreach_target.h"  // must come before highway.h
#include "kernels/cpu/simd-inl.h"

#ifndef LLMB_KERNELS_CPU_LINEAR_BF16_ONCE_
#define LLMB_KERNELS_CPU_LINEAR_BF16_ONCE_
namespace llmb::cpu {

constexpr int64_t kBf16Width = PackedLinear::kPanelWidth;
enum class Bf16Unit { kNone, kDots, kTiles };

}  // namespace llmb::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace llmb::cpu {
namespace HWY_NAMESPACE {

#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
#define LLMB_BF16_DOTS __attribute__((target("avx512bf16")))

Bf16Unit bf16_unit_target() {
  const Arithmetic chosen = arithmetic();
  return chosen == Arithmetic::kBf16Amx   ? Bf16Unit::kTiles
         : chosen == Arithmetic::kBf16Dot ? Bf16Unit::kDots
                                          : Bf16Unit::kNone;
}

// Words [0, num_words) of kRows rows of x by kVecs vectors of columns, added to what `sums` begins with. Intrinsics
// throughout: with Clang, a function with a target of its own cannot call Highway's.
template <int kRows, int kVecs>
LLMB_BF16_DOTS HWY_INLINE void dot_tile(const uint8_t* panel, int64_t num_words, const uint8_t* x, int64_t x_stride,
                                        int64_t column, const TileSums& sums, FetchAhead& fetch) {
  FetchAhead ahead = fetch;
  __m512 acc[kRows * kVecs];
  LLMB_UNROLL for (int i = 0; i < kRows * kVecs; ++i) {
    acc[i] = sums.from == nullptr ? _mm512_setzero_ps()
                                  : _mm512_loadu_ps(sums.from + i / kVecs * kBf16Width + column + i % kVecs * 16);
  }
  panel += column * 4;
  const uint8_t* x3 = x + 3 * x_stride;
  for (const uint8_t* end = x + num_words * 4; x < end; x += 4, x3 += 4, panel += kBf16Width * 4) {
    ahead.turn<kVecs * 64, false, 1>(panel);
    __m512i b[kVecs];
    LLMB_UNROLL for (int c = 0; c < kVecs; ++c) b[c] = _mm512_loadu_si512(panel + c * 64);
    LLMB_UNROLL for (int r = 0; r < kRows; ++r) {
      int32_t pair;
      std::memcpy(&pair, r < 3 ? x + r * x_stride : x3 + (r - 3) * x_stride, 4);
      const __m512i xv = _mm512_set1_epi32(pair);
      LLMB_UNROLL for (int c = 0; c < kVecs; ++c) acc[r * kVecs + c] =
          _mm512_dpbf16_ps(acc[r * kVecs + c], (__m512bh)xv, (__m512bh)b[c]);
    }
  }
  fetch = ahead;
  LLMB_UNROLL for (int c = 0; c < kVecs; ++c) {
    const int64_t at = column + c * 16;
    LLMB_UNROLL for (int r = 0; r < kRows; ++r) {
      __m512 sum = acc[r * kVecs + c];
      if (sums.bias != nullptr) sum = _mm512_add_ps(sum, _mm512_loadu_ps(sums.bias + at));
      _mm512_storeu_ps(sums.to + r * sums.to_stride + at, sum);
    }
  }
}

// All columns of a task.
template <int kRows>
LLMB_BF16_DOTS void dot_rows(const LinearTask& t, const uint8_t* panel, int64_t num_words, const uint8_t* x,
                             int64_t x_stride, const TileSums& sums, FetchAhead& ahead) {
  if (t.column_end - t.column_begin == kBf16Width) dot_tile<kRows, 4>(panel, num_words, x, x_stride, 0, sums, ahead);
  else dot_tile<kRows, 2>(panel, num_words, x, x_stride, t.column_begin, sums, ahead);
}

bool has_dots() { return extensions().bf16_dots; }
constexpr int64_t kWordsAtOnce = 1, kPasses = 1;  // of a tile over the columns of a block
#elif HWY_TARGET == HWY_NEON
Bf16Unit bf16_unit_target() { return arithmetic() == Arithmetic::kBf16Mmla ? Bf16Unit::kDots : Bf16Unit::kNone; }

template <int kRows>
void dot_rows(const LinearTask& t, const uint8_t* panel, int64_t num_words, const uint8_t* x, int64_t x_stride,
              const TileSums& sums, FetchAhead& ahead) {
  mmla_rows<kRows>(t, panel, num_words, x, x_stride, sums, ahead);
}

bool has_dots() { return extensions().bf16_mmla; }
constexpr int64_t kWordsAtOnce = 2, kPasses = 4;
#else
Bf16Unit bf16_unit_target() { return Bf16Unit::kNone; }
#endif

#if (HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86) || HWY_TARGET == HWY_NEON
bool bf16_dot_task_target(const LinearTask& t) {
  if (!has_dots()) return false;
  HWY_ALIGN float sums[kLinearTaskRows * kBf16Width];
  const int64_t num_words = ceil_div(t.weight->in_features(), 2), stride = bf16_row_bytes(t.weight->in_features());
  const int64_t num_tiles = ceil_div(t.row_end - t.row_begin, kTileRows);
  constexpr int64_t kWordBytes = kBf16Width * 4;
  const int64_t most_words = num_tiles == 1 ? num_words : bf16_block_words(cache_sizes(), num_tiles);
  const int64_t even_words = ceil_div(num_words, ceil_div(num_words, most_words));
  const int64_t block_words = ceil_div(even_words, kWordsAtOnce) * kWordsAtOnce;
  for (int64_t word = 0; word < num_words; word += block_words) {
    const int64_t end = std::min(num_words, word + block_words);
    const bool is_last = end == num_words;
    const uint8_t* panel = t.weight->panel(t.panel) + word * kWordBytes;
    const uint8_t* next = is_last ? t.next : panel + (end - word) * kWordBytes;
    const int64_t next_bytes = std::min(block_words, is_last ? num_words : num_words - end) * kWordBytes;
    FetchAhead ahead;
    if (num_tiles > 1) ahead = FetchAhead(next, next_bytes, num_tiles * kPasses * (end - word));
    for_row_tiles<kTileRows>(t.row_end - t.row_begin, [&](int64_t row, auto tile_rows) HWY_ATTR {
      constexpr int kRows = decltype(tile_rows)::value;
      dot_rows<kRows>(t, panel, end - word, t.x_bytes + (t.row_begin + row) * stride + word * 4, stride,
                      tile_sums(t, row, word == 0, is_last, sums), ahead);
    });
  }
  copy_narrow_panel(t, sums);
  return true;
}
#else
bool bf16_dot_task_target(const LinearTask&) { return false; }
#endif

// Rounded to bf16, to nearest even, and widened again.
HWY_INLINE V round_to_bf16(V x) {
  const D d;
  const DU du;
  const auto bits = hn::BitCast(du, x);
  const auto half = hn::Add(hn::Set(du, 0x7fffu), hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1u)));
  const V rounded = hn::BitCast(d, hn::And(hn::Add(bits, half), hn::Set(du, 0xffff0000u)));
  return hn::IfThenElse(hn::Eq(x, x), rounded, hn::BitCast(d, hn::Set(du, 0x7fc00000u)));
}

void round_row_target(const float* x, int64_t n, float* out) {
  const D d;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) hn::StoreU(round_to_bf16(hn::LoadU(d, x + i)), d, out + i);
  for (; i < n; ++i) out[i] = bf16_to_f32(f32_to_bf16(x[i]));
}

void bf16_row_target(const float* x, int64_t n, uint8_t* out) {
  const D d;
  const DU du;
  const hn::Rebind<uint16_t, D> d16;
  auto* const halves = reinterpret_cast<uint16_t*>(out);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    hn::StoreU(hn::TruncateTo(d16, hn::ShiftRight<16>(hn::BitCast(du, round_to_bf16(hn::LoadU(d, x + i))))), d16,
               halves + i);
  for (; i < n; ++i) halves[i] = f32_to_bf16(x[i]);
  std::memset(halves + n, 0, static_cast<size_t>(bf16_row_bytes(n) - n * 2));
}

}  // namespace HWY_NAMESPACE
}  // namespace llmb::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace llmb::cpu {

HWY_EXPORT(bf16_unit_target);
HWY_EXPORT(bf16_dot_task_target);
HWY_EXPORT(round_row_target);
HWY_EXPORT(bf16_row_target);

namespace {

Bf16Unit bf16_unit() { return HWY_DYNAMIC_DISPATCH(bf16_unit_target)(); }

void bf16_tile_task([[maybe_unused]] const LinearTask& t) {
#if LLMB_HAS_AMX_CODE
  alignas(64) float sums[kLinearTaskRows * kBf16Width];
  const int64_t k = t.weight->in_features();
  amx_sums<AmxTiles, AmxNumbers::kBf16>(amx_product(t, ceil_div(k, 2), bf16_row_bytes(k)), sums);
  write_sums(t, sums);
#endif
}

}  // namespace

bool has_fast_bf16() { return bf16_unit() != Bf16Unit::kNone; }

int64_t rounded_row_bytes(int64_t n) { return has_fast_bf16() ? bf16_row_bytes(n) : n * int64_t{sizeof(float)}; }

void bf16_row(const float* x, int64_t n, uint8_t* out) { HWY_DYNAMIC_DISPATCH(bf16_row_target)(x, n, out); }

void round_row(const float* x, int64_t n, uint8_t* out) {
  if (has_fast_bf16()) bf16_row(x, n, out);
  else HWY_DYNAMIC_DISPATCH(round_row_target)(x, n, reinterpret_cast<float*>(out));
}

bool bf16_dot_task(const LinearTask& task) { return HWY_DYNAMIC_DISPATCH(bf16_dot_task_target)(task); }

void bf16_linear_task(const LinearTask& task) {
  const Bf16Unit unit = bf16_unit();
  if (unit == Bf16Unit::kTiles) return bf16_tile_task(task);
  if (unit == Bf16Unit::kDots && bf16_dot_task(task)) return;
  LinearTask rounded = task;
  rounded.x = reinterpret_cast<const float*>(task.x_bytes);
  float_linear_task(rounded);
}

}  // namespace llmb::cpu
#endif
