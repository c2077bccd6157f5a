// linear over int8 and w4a8 weights: rows of x are rounded to int8, sums of products are exact in 32 bits, so every
// instruction set gives the same bytes. Numbers of w4a8 become bytes in a cache, block by block.
//
// AMX multiplies tiles (linear_amx.h); VNNI (of AVX-512, or AVX-VNNI beside AVX2) multiplies unsigned by signed bytes, four at
// a time: activations are stored with 128 added, and 128 times the sum of a feature's weights is taken off at the end. AVX2
// multiplies the magnitudes of one factor by the other with the first one's signs; pairs fit 16 bits because neither is
// -128. NEON's forms: linear_int8_neon.h.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "kernels/cpu/cpu_target.h"
#include "kernels/cpu/linear_amx.h"
#include "kernels/cpu/linear_int8_neon.h"
#include "kernels/cpu/linear_task.h"
#include "kernels/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/linear_int8.cpp"
#include "hwy/foreach_target.h"  // must come before highway.h
#include "kernels/cpu/simd-inl.h"
#include "kernels/cpu/w4a8_row-inl.h"
#include "kernels/cpu/w4a8_words-inl.h"

#ifndef LLMB_KERNELS_CPU_LINEAR_INT8_ONCE_
#define LLMB_KERNELS_CPU_LINEAR_INT8_ONCE_
namespace llmb::cpu {

constexpr int64_t kInt8Width = PackedLinear::kPanelWidth;

}  // namespace llmb::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace llmb::cpu {
namespace HWY_NAMESPACE {

#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
#define LLMB_VNNI __attribute__((target("avx512vnni")))
bool has_vnni() { return extensions().vnni; }
#elif HWY_TARGET == HWY_AVX2
#define LLMB_AVX_VNNI __attribute__((target("avxvnni")))
bool has_vnni() { return extensions().avx_vnni; }
#else
bool has_vnni() { return false; }
#endif

// Words [0, num_words) of kRows rows of x by a block of a panel; is_first: there is nothing in sums yet.
struct Int8Block {
  const uint8_t* panel;  // [num_words][kInt8Width][4]
  int64_t num_words;
  bool is_first;
};

// Turns sums into outputs: out = sum · scale of the feature · scale of the row + bias. For one panel, from row 0 of
// a tile on.
struct Int8Out {
  const float* scales;    // [kInt8Width]
  const int32_t* sums;    // [kInt8Width]  of the weights
  const float* bias;      // [kInt8Width]  null: none
  const float* x_scales;  // [rows]
  float* to;              // [rows][to_stride]
  int64_t to_stride;
};

Int8Out int8_out(const LinearTask& t, int64_t row) {
  const int64_t first = t.panel * kInt8Width;
  return {t.weight->scales() + first,
          t.weight->sums() + first,
          t.weight->bias() == nullptr ? nullptr : t.weight->bias() + first,
          t.x_scales + t.row_begin + row,
          t.out + row * t.out_stride,
          t.out_stride};
}

#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
template <int kRows, int kVecs, int kNextLevel>
LLMB_VNNI HWY_INLINE void vnni_tile(const Int8Block& block, const uint8_t* x, int64_t x_stride, int64_t column,
                                    const Int8Out* out, FetchAhead& fetch, int32_t* sums) {
  FetchAhead ahead = fetch;
  __m512i acc[kRows * kVecs];
  LLMB_UNROLL for (int i = 0; i < kRows * kVecs; ++i) {
    acc[i] = block.is_first ? _mm512_setzero_si512()
                            : _mm512_loadu_si512(sums + i / kVecs * kInt8Width + column + i % kVecs * 16);
  }
  const uint8_t* panel = block.panel + column * 4;
  const uint8_t* x3 = x + 3 * x_stride;
  for (const uint8_t* end = x + block.num_words * 4; x < end; x += 4, x3 += 4, panel += kInt8Width * 4) {
    ahead.turn<kVecs * 64, false, kNextLevel>(panel);
    __m512i b[kVecs];
    LLMB_UNROLL for (int c = 0; c < kVecs; ++c) b[c] = _mm512_loadu_si512(panel + c * 64);
    LLMB_UNROLL for (int r = 0; r < kRows; ++r) {
      int32_t four;
      std::memcpy(&four, r < 3 ? x + r * x_stride : x3 + (r - 3) * x_stride, 4);
      const __m512i xv = _mm512_set1_epi32(four);
      LLMB_UNROLL for (int c = 0; c < kVecs; ++c) acc[r * kVecs + c] =
          _mm512_dpbusd_epi32(acc[r * kVecs + c], xv, b[c]);
    }
  }
  fetch = ahead;
  if (out == nullptr) {
    LLMB_UNROLL for (int i = 0; i < kRows * kVecs; ++i)
        _mm512_storeu_si512(sums + i / kVecs * kInt8Width + column + i % kVecs * 16, acc[i]);
    return;
  }
  LLMB_UNROLL for (int c = 0; c < kVecs; ++c) {
    const int64_t at = column + c * 16;
    const __m512i offset = _mm512_slli_epi32(_mm512_loadu_si512(out->sums + at), 7);
    const __m512 scale = _mm512_loadu_ps(out->scales + at);
    LLMB_UNROLL for (int r = 0; r < kRows; ++r) {
      const __m512 sum = _mm512_cvtepi32_ps(_mm512_sub_epi32(acc[r * kVecs + c], offset));
      __m512 value = _mm512_mul_ps(_mm512_mul_ps(sum, scale), _mm512_set1_ps(out->x_scales[r]));
      if (out->bias != nullptr) value = _mm512_add_ps(value, _mm512_loadu_ps(out->bias + at));
      _mm512_storeu_ps(out->to + r * out->to_stride + at, value);
    }
  }
}

// All columns of a task. kNextLevel: of the cache into which the next block comes.
template <int kRows, int kNextLevel>
LLMB_VNNI void vnni_rows(const LinearTask& t, const Int8Block& block, const uint8_t* x, int64_t x_stride,
                         const Int8Out* out, FetchAhead& ahead, int32_t* sums) {
  if (t.column_end - t.column_begin == 64) vnni_tile<kRows, 4, kNextLevel>(block, x, x_stride, 0, out, ahead, sums);
  else vnni_tile<kRows, 2, kNextLevel>(block, x, x_stride, t.column_begin, out, ahead, sums);
}
#endif

#if HWY_TARGET <= HWY_AVX2 && HWY_ARCH_X86
// Columns of a tile. One row takes them all, so that it reads its panel in order, line by line; more rows take as many as
// their sums leave registers for.
constexpr int plain_columns(int rows) { return rows == 1 ? 64 : rows <= 3 ? 32 : 16; }

#if HWY_TARGET == HWY_AVX2
// Activations with 128 added, as vnni_tile.
template <int kRows, int kColumns>
LLMB_AVX_VNNI HWY_NOINLINE void avx_vnni_tile(const Int8Block& block, const uint8_t* x, int64_t x_stride,
                                              int64_t column, FetchAhead& fetch, int32_t* sums) {
  constexpr int kVecs = kColumns / 8;
  FetchAhead ahead = fetch;
  auto* to = reinterpret_cast<__m256i*>(sums + column);
  constexpr int kRowVecs = kInt8Width / 8;
  __m256i acc[kRows * kVecs];
  LLMB_UNROLL for (int i = 0; i < kRows * kVecs; ++i) {
    acc[i] = block.is_first ? _mm256_setzero_si256() : _mm256_loadu_si256(to + i / kVecs * kRowVecs + i % kVecs);
  }
  const uint8_t* panel = block.panel + column * 4;
  const uint8_t* x3 = x + 3 * x_stride;
  for (const uint8_t* end = x + block.num_words * 4; x < end; x += 4, x3 += 4, panel += kInt8Width * 4) {
    ahead.turn<kVecs * 32, false>(panel);
    const auto* b = reinterpret_cast<const __m256i*>(panel);
    LLMB_UNROLL for (int r = 0; r < kRows; ++r) {
      int32_t four;
      std::memcpy(&four, r < 3 ? x + r * x_stride : x3 + (r - 3) * x_stride, 4);
      const __m256i xv = _mm256_set1_epi32(four);
      LLMB_UNROLL for (int c = 0; c < kVecs; ++c) acc[r * kVecs + c] =
          _mm256_dpbusd_avx_epi32(acc[r * kVecs + c], xv, _mm256_loadu_si256(b + c));
    }
  }
  fetch = ahead;
  LLMB_UNROLL for (int i = 0; i < kRows * kVecs; ++i)
      _mm256_storeu_si256(to + i / kVecs * kRowVecs + i % kVecs, acc[i]);
}
#endif

template <int kRows, int kColumns>
HWY_INLINE void plain_tile(const Int8Block& block, const uint8_t* x, int64_t x_stride, int64_t column,
                           FetchAhead& fetch, int32_t* sums) {
#if HWY_TARGET == HWY_AVX2
  if (has_vnni()) return avx_vnni_tile<kRows, kColumns>(block, x, x_stride, column, fetch, sums);
#endif
  constexpr int kVecs = kColumns / 8;
  const auto at = [&](int i) {
    return reinterpret_cast<__m256i*>(sums + i / kVecs * kInt8Width + column + i % kVecs * 8);
  };
  FetchAhead ahead = fetch;
  __m256i acc[kRows * kVecs];
  LLMB_UNROLL for (int i = 0; i < kRows * kVecs; ++i) {
    acc[i] = block.is_first ? _mm256_setzero_si256() : _mm256_loadu_si256(at(i));
  }
  const uint8_t* panel = block.panel + column * 4;
  const uint8_t* x3 = x + 3 * x_stride;
  const __m256i ones = _mm256_set1_epi16(1);
  for (const uint8_t* end = x + block.num_words * 4; x < end; x += 4, x3 += 4, panel += kInt8Width * 4) {
    ahead.turn<kVecs * 32, false>(panel);
    const auto weights = [&](int c) HWY_ATTR { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(panel) + c); };
    const auto four = [&](int r) HWY_ATTR {
      int32_t word;
      std::memcpy(&word, r < 3 ? x + r * x_stride : x3 + (r - 3) * x_stride, 4);
      return _mm256_set1_epi32(word);
    };
    const auto add = [&](int i, __m256i magnitudes, __m256i numbers) HWY_ATTR {
      acc[i] = _mm256_add_epi32(acc[i], _mm256_madd_epi16(_mm256_maddubs_epi16(magnitudes, numbers), ones));
    };
    // The factor with fewer vectors gives the magnitudes, which take an instruction each.
    if constexpr (kRows < kVecs) {
      LLMB_UNROLL for (int r = 0; r < kRows; ++r) {
        const __m256i xv = four(r), magnitude = _mm256_abs_epi8(xv);
        LLMB_UNROLL for (int c = 0; c < kVecs; ++c) add(r * kVecs + c, magnitude, _mm256_sign_epi8(weights(c), xv));
      }
    } else {
      LLMB_UNROLL for (int c = 0; c < kVecs; ++c) {
        const __m256i b = weights(c), magnitude = _mm256_abs_epi8(b);
        LLMB_UNROLL for (int r = 0; r < kRows; ++r) add(r * kVecs + c, magnitude, _mm256_sign_epi8(four(r), b));
      }
    }
  }
  fetch = ahead;
  LLMB_UNROLL for (int i = 0; i < kRows * kVecs; ++i) _mm256_storeu_si256(at(i), acc[i]);
}
#elif HWY_TARGET == HWY_NEON
constexpr int plain_columns(int) { return kNeonColumns; }

template <int kRows, int kColumns>
HWY_INLINE void plain_tile(const Int8Block& block, const uint8_t* x, int64_t x_stride, int64_t column,
                           FetchAhead& ahead, int32_t* sums) {
  const NeonBlock words{block.panel + column * 4, x, x_stride, block.num_words, block.is_first, sums + column};
  const Extensions& has = extensions();
  if (has.i8mm && kRows > 1) smmla_tile<kRows>(words, ahead);
  else if (has.dotprod) sdot_tile<kRows>(words, ahead);
  else smull_tile<kRows>(words, ahead);
}
#else
constexpr int plain_columns(int) { return kLanes; }

template <int kRows, int kColumns>
HWY_INLINE void plain_tile(const Int8Block& block, const uint8_t* x, int64_t x_stride, int64_t column,
                           FetchAhead& ahead, int32_t* sums) {
  const DI d;
  VI acc[kRows];
  for (int r = 0; r < kRows; ++r) acc[r] = block.is_first ? hn::Zero(d) : hn::LoadU(d, sums + r * kInt8Width + column);
  for (int64_t word = 0; word < block.num_words; ++word) {
    ahead.turn<kLanes * 4, false>(block.panel + word * kInt8Width * 4);
    const VI b = hn::LoadU(d, reinterpret_cast<const int32_t*>(block.panel) + word * kInt8Width + column);
    const VI b0 = hn::ShiftRight<24>(hn::ShiftLeft<24>(b)), b1 = hn::ShiftRight<24>(hn::ShiftLeft<16>(b));
    const VI b2 = hn::ShiftRight<24>(hn::ShiftLeft<8>(b)), b3 = hn::ShiftRight<24>(b);
    for (int r = 0; r < kRows; ++r) {
      const auto* four = reinterpret_cast<const int8_t*>(x + r * x_stride + word * 4);
      const auto times = [&](VI weights, int i) HWY_ATTR { return hn::Mul(weights, hn::Set(d, int32_t{four[i]})); };
      acc[r] = hn::Add(acc[r], hn::Add(hn::Add(times(b0, 0), times(b1, 1)), hn::Add(times(b2, 2), times(b3, 3))));
    }
  }
  for (int r = 0; r < kRows; ++r) hn::StoreU(acc[r], d, sums + r * kInt8Width + column);
}
#endif

// All columns of a task.
template <int kRows>
HWY_INLINE void plain_rows(const LinearTask& t, const Int8Block& block, const uint8_t* x, int64_t x_stride,
                           FetchAhead& ahead, int32_t* sums) {
  constexpr int kColumns = plain_columns(kRows), kHalf = std::min<int>(kColumns, kInt8Width / 2);
  if (t.column_end - t.column_begin < kColumns)
    return plain_tile<kRows, kHalf>(block, x, x_stride, t.column_begin, ahead, sums);
  for (int64_t c = t.column_begin; c < t.column_end; c += kColumns)
    plain_tile<kRows, kColumns>(block, x, x_stride, c, ahead, sums);
}

// Times that tiles of so many rows pass over a task's columns.
HWY_INLINE int64_t num_passes(const LinearTask& t, int64_t rows) {
  const int columns = HWY_TARGET <= HWY_AVX3 && has_vnni() ? 64 : plain_columns(static_cast<int>(rows));
  return std::max<int64_t>(1, (t.column_end - t.column_begin) / columns);
}

// Outputs of whole sums; a last panel may be narrower.
HWY_INLINE void write_int8_sums(const LinearTask& t, const int32_t* sums) {
  const D d;
  const DI di;
  const int64_t end = std::min(t.column_end, t.weight->out_features() - t.panel * kInt8Width);
  for (int64_t row = 0; row < t.row_end - t.row_begin; ++row, sums += kInt8Width) {
    const Int8Out out = int8_out(t, row);
    for (int64_t c = t.column_begin; c < end; c += kLanes) {
      VI sum = hn::LoadU(di, sums + c);
      if (has_vnni()) sum = hn::Sub(sum, hn::ShiftLeft<7>(hn::LoadU(di, out.sums + c)));
      V value = hn::Mul(hn::Mul(hn::ConvertTo(d, sum), hn::LoadU(d, out.scales + c)), hn::Set(d, *out.x_scales));
      if (out.bias != nullptr) value = hn::Add(value, hn::LoadU(d, out.bias + c));
      if (end - c >= kLanes) {
        hn::StoreU(value, d, out.to + c);
      } else {
        float lanes[kLanes];
        hn::StoreU(value, d, lanes);
        std::memcpy(out.to + c, lanes, static_cast<size_t>(end - c) * sizeof(float));
      }
    }
  }
}

void int8_linear_task_target(const LinearTask& t) {
  HWY_ALIGN int32_t sums[kLinearTaskRows * kInt8Width];
  const int64_t num_words = ceil_div(t.weight->in_features(), 4), stride = quantized_row_bytes(t.weight->in_features());
  const int64_t num_tiles = ceil_div(t.row_end - t.row_begin, kTileRows);
  const int64_t num_turns = num_tiles * num_passes(t, ceil_div(t.row_end - t.row_begin, num_tiles));  // for a word
  const uint8_t* panel = t.weight->panel(t.panel);
  constexpr int64_t kWordBytes = kInt8Width * 4, kGroupWords = kNumberGroup / 4;
  const bool is_w4a8 = t.weight->format() == PackedFormat::kW4A8;
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
  if (is_w4a8 && has_vnni() && t.row_end - t.row_begin == 1) {
    w4a8_row(panel, t.weight->in_features(), t.x_bytes + t.row_begin * stride, t.column_begin, t.column_end, sums);
    return write_int8_sums(t, sums);
  }
#endif
#if LLMB_HAS_AMX_CODE && HWY_TARGET <= HWY_AVX3
  if (num_tiles > 1 && has_amx()) {
    AmxProduct product = amx_product(t, num_words, stride);
    if (is_w4a8) product.panel = whole_w4a8_panel(t, num_words), product.next = nullptr;
    amx_sums<AmxTiles, AmxNumbers::kBytes>(product, sums);
    return write_int8_sums(t, sums);
  }
#endif
  const bool is_whole = t.panel * kInt8Width + t.column_end <= t.weight->out_features();
  const bool is_written_by_tiles = HWY_TARGET <= HWY_AVX3 && has_vnni() && is_whole;
  HWY_ALIGN uint32_t words[kMaxInt8BlockWords][kInt8Width];  // of w4a8
  const bool is_near = fetches_near() && HWY_TARGET <= HWY_AVX3 && has_vnni() && !is_w4a8;
  const int64_t most_words = (is_near && num_tiles == 2 ? int8_pair_words : int8_block_words)(cache_sizes());
  int64_t block_words = ceil_div(num_words, ceil_div(num_words, most_words));
  if (is_w4a8) block_words = num_tiles == 1 ? kLoneW4A8Words : ceil_div(block_words, kGroupWords) * kGroupWords;
  const int64_t word_bytes = is_w4a8 ? kNumberGroupBytes / kGroupWords : kWordBytes;
  for (int64_t word = 0; word < num_words; word += block_words) {
    const int64_t end = std::min(num_words, word + block_words);
    const uint8_t* const stored = panel + word * word_bytes;
    if (is_w4a8) w4a8_words(stored, ceil_div(end - word, kGroupWords), t.column_begin, t.column_end, words);
    const Int8Block block{is_w4a8 ? reinterpret_cast<const uint8_t*>(words) : stored, end - word, word == 0};
    const bool is_last = end == num_words;
    const uint8_t* next = is_last ? t.next : panel + end * word_bytes;
    const int64_t next_bytes = std::min(block_words, is_last ? num_words : num_words - end) * word_bytes;
    FetchAhead ahead = num_turns > 1 ? FetchAhead(next, next_bytes, num_turns * (end - word)) : FetchAhead();
    for_row_tiles<kTileRows>(t.row_end - t.row_begin, [&](int64_t row, auto tile_rows) HWY_ATTR {
      constexpr int kRows = decltype(tile_rows)::value;
      const uint8_t* x = t.x_bytes + (t.row_begin + row) * stride + word * 4;
      int32_t* to = sums + row * kInt8Width;
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
      if (has_vnni()) {
        const Int8Out out = int8_out(t, row);
        const Int8Out* const written = is_written_by_tiles && is_last ? &out : nullptr;
        if (is_near) vnni_rows<kRows, 1>(t, block, x, stride, written, ahead, to);
        else vnni_rows<kRows, 2>(t, block, x, stride, written, ahead, to);
        return;
      }
#endif
      plain_rows<kRows>(t, block, x, stride, ahead, to);
    });
  }
  if (!is_written_by_tiles) write_int8_sums(t, sums);
}

void quantize_row_target(const float* x, int64_t n, uint8_t* out, float* scale) {
  const D d;
  const DU du;
  const hn::Rebind<uint8_t, D> d8;
  // As numbers without a sign, bits are in the order of magnitudes, and infinity and NaN are the largest.
  const auto magnitude_bits = hn::Set(du, 0x7fffffffu);
  auto largest = hn::Zero(du);
  int64_t i = 0;
  const auto look = [&](V v) HWY_ATTR { largest = hn::Max(largest, hn::And(hn::BitCast(du, v), magnitude_bits)); };
  const auto load_tail = [&] {
    float lanes[kLanes] = {};
    std::memcpy(lanes, x + i, static_cast<size_t>(n - i) * sizeof(float));
    return hn::LoadU(d, lanes);
  };
  for (; i + kLanes <= n; i += kLanes) look(hn::LoadU(d, x + i));
  if (i < n) look(load_tail());
  uint32_t lanes[kLanes];
  hn::StoreU(largest, du, lanes);
  const float max = std::bit_cast<float>(*std::max_element(lanes, lanes + kLanes));
  const bool is_finite = std::isfinite(max);
  *scale = is_finite ? max / 127 : std::nanf("");
  const float inverse = is_finite && max > 0 ? 127 / max : 0;
  const V factor = hn::Set(d, std::isfinite(inverse) ? inverse : 0.0f);
  // Its last bits count ones: adding it rounds to whole numbers, which are in the lowest byte.
  const V shift = hn::Set(d, 0x1.8p23f + (has_vnni() ? 128 : 0));
  const auto round = [&](V v) HWY_ATTR {
    const auto bits = hn::BitCast(du, hn::Add(hn::Mul(v, factor), shift));
    return hn::U8FromU32(hn::And(bits, hn::Set(du, 0xffu)));
  };
  for (i = 0; i + kLanes <= n; i += kLanes) hn::StoreU(round(hn::LoadU(d, x + i)), d8, out + i);
  if (i < n) {
    uint8_t bytes[kLanes];
    hn::StoreU(round(load_tail()), d8, bytes);
    std::memcpy(out + i, bytes, static_cast<size_t>(n - i));
  }
  for (i = n; i % 4 != 0; ++i) out[i] = 0;  // the last word is read whole; its weights here are zeros
}

}  // namespace HWY_NAMESPACE
}  // namespace llmb::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace llmb::cpu {

HWY_EXPORT(int8_linear_task_target);
HWY_EXPORT(quantize_row_target);

void int8_linear_task(const LinearTask& task) { HWY_DYNAMIC_DISPATCH(int8_linear_task_target)(task); }

void quantize_row(const float* x, int64_t n, uint8_t* out, float* scale) {
  HWY_DYNAMIC_DISPATCH(quantize_row_target)(x, n, out, scale);
}

}  // namespace llmb::cpu
#endif
