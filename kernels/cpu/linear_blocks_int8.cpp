// linear over blocks of few bits, x rounded to int8 by blocks (block_row.h). For each part of k, 16 or 32, whose
// weights share a scale: S = sum of x's numbers times codes, T = sum of x's numbers, both exact. In the order of k
//   formats with blocks of 32:    sum = sum + (S · scale of x) · scale + (T · scale of x) · minimum
//   formats with blocks of 256:   b = b + S · scale + T · minimum, from 0 for each block; sum = sum + b · scale of x
// where each addition is fused with its last product. So every instruction set gives the same bytes.
//
// 256 k of a panel at a time become bytes and fp32 scales in a cache; tiles of rows multiply from there. On x86 these
// bytes are unsigned: an offset is added to codes, and offset · T is taken off by what sums begin with. VNNI multiplies
// unsigned by signed bytes, four at a time; so does AVX2, but in 16 bits (block_int8_avx2-inl.h). AVX-512 without VNNI
// multiplies the magnitudes of codes of eight bits by numbers with their signs. Elsewhere the bytes are signed. A lone
// row meets them in registers (block_int8_row-inl.h; AVX2's block_int8_avx2-inl.h), but for AVX-512 without VNNI.
#include <cmath>
#include <cstring>

#include "kernels/cpu/block_row.h"
#include "kernels/cpu/cpu_target.h"
#include "kernels/cpu/linear_int8_neon.h"
#include "kernels/cpu/linear_task.h"
#include "kernels/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/linear_blocks_int8.cpp"
#include "hwy/foreach_target.h"  // must come before highway.h
#include "kernels/cpu/block_int8_avx2-inl.h"
#include "kernels/cpu/block_int8_row-inl.h"
#include "kernels/cpu/block_stretch-inl.h"

HWY_BEFORE_NAMESPACE();
namespace llmb::cpu {
namespace HWY_NAMESPACE {

#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
#define LLMB_BLOCK_VNNI __attribute__((target("avx512vnni")))
HWY_INLINE bool has_byte_dots() { return extensions().vnni; }
#elif HWY_TARGET == HWY_AVX2
#define LLMB_BLOCK_AVX_VNNI __attribute__((target("avxvnni")))
HWY_INLINE bool has_byte_dots() { return extensions().avx_vnni; }
#else
HWY_INLINE bool has_byte_dots() { return false; }
#endif

// a · b + c, rounded once, where Highway's would round twice.
HWY_INLINE V fused(V a, V b, V c) {
#if HWY_TARGET == HWY_SCALAR
  return hn::Set(D(), std::fma(hn::GetLane(a), hn::GetLane(b), hn::GetLane(c)));
#elif HWY_TARGET == HWY_EMU128
  HWY_ALIGN float x[kLanes], y[kLanes], z[kLanes];
  hn::Store(a, D(), x), hn::Store(b, D(), y), hn::Store(c, D(), z);
  for (int i = 0; i < kLanes; ++i) z[i] = std::fma(x[i], y[i], z[i]);
  return hn::Load(D(), z);
#else
  return hn::MulAdd(a, b, c);
#endif
}

void fill_row(const uint8_t* row, const BlockRow& at, int64_t k, const Stretch& w, int offset, RowStretch* to) {
  const auto* const sums =
      reinterpret_cast<const int32_t*>(row + (w.part_words == 4 ? at.sums16 : at.sums32)) + k / (4 * w.part_words);
  const auto* const scales = reinterpret_cast<const float*>(row + at.scales) + k / (w.is_large ? kMaxBlockSize : kRun);
  for (int i = 0; i < w.num_parts; i += kLanes) {
    const VI sum = hn::LoadU(DI(), sums + i);
    hn::Store(hn::Mul(sum, hn::Set(DI(), -offset)), DI(), to->start + i);
    V t = hn::ConvertTo(D(), sum);
    if (!w.is_large) {
      const V scale = hn::LoadU(D(), scales + i);
      hn::Store(scale, D(), to->scales + i);
      t = hn::Mul(t, scale);
    }
    hn::Store(t, D(), to->sums + i);
  }
  if (w.is_large) to->scales[0] = *scales;
}

// ---- tiles: sums[rows][kColumns] of columns from `column` on
// ---------------------------------------------------------

#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
template <int kRows, int kVecs, bool kIsLarge>
LLMB_BLOCK_VNNI HWY_NOINLINE void vnni_tile(const Stretch& w, const TileOfX& x, int64_t column, float* sums) {
  HWY_ALIGN float block[kIsLarge ? kRows * kColumns : 1];
  float* const at = kIsLarge ? block : sums + column;
  if (kIsLarge) {
    LLMB_UNROLL for (int i = 0; i < kRows * kVecs; ++i)
        _mm512_store_ps(at + i / kVecs * kColumns + i % kVecs * 16, _mm512_setzero_ps());
  }
  const uint8_t *x0 = x.numbers, *x3 = x0 + 3 * x.stride, *x6 = x0 + 6 * x.stride, *x9 = x0 + 9 * x.stride;
  const uint32_t* codes = &w.codes[0][column];
  for (int part = 0; part < w.num_parts; ++part) {
    __m512i acc[kRows * kVecs];
    LLMB_UNROLL for (int i = 0; i < kRows * kVecs; ++i) acc[i] = _mm512_set1_epi32(x.rows[i / kVecs].start[part]);
    for (int word = 0; word < w.part_words; word += 4, x0 += 16, x3 += 16, x6 += 16, x9 += 16) {
      LLMB_UNROLL for (int i = 0; i < 4; ++i, codes += kColumns) {
        __m512i b[kVecs];
        LLMB_UNROLL for (int c = 0; c < kVecs; ++c) b[c] = _mm512_load_si512(codes + c * 16);
        LLMB_UNROLL for (int r = 0; r < kRows; ++r) {
          int32_t four;
          std::memcpy(&four, (r < 3 ? x0 : r < 6 ? x3 : r < 9 ? x6 : x9) + r % 3 * x.stride + 4 * i, 4);
          const __m512i xv = _mm512_set1_epi32(four);
          LLMB_UNROLL for (int c = 0; c < kVecs; ++c) acc[r * kVecs + c] =
              _mm512_dpbusd_epi32(acc[r * kVecs + c], b[c], xv);
        }
      }
    }
    const auto add = [&](auto has_minima) LLMB_BLOCK_VNNI {
      LLMB_UNROLL for (int c = 0; c < kVecs; ++c) {
        const __m512 scale = _mm512_load_ps(&w.scales[part][column + c * 16]);
        __m512 minimum = scale;
        if constexpr (has_minima) minimum = _mm512_load_ps(&w.minima[part][column + c * 16]);
        LLMB_UNROLL for (int r = 0; r < kRows; ++r) {
          float* const to = at + r * kColumns + c * 16;
          __m512 s = _mm512_cvtepi32_ps(acc[r * kVecs + c]);
          if (!kIsLarge) s = _mm512_mul_ps(s, _mm512_set1_ps(x.rows[r].scales[part]));
          s = _mm512_fmadd_ps(s, scale, _mm512_load_ps(to));
          if constexpr (has_minima) s = _mm512_fmadd_ps(_mm512_set1_ps(x.rows[r].sums[part]), minimum, s);
          _mm512_store_ps(to, s);
        }
      }
    };
    if (w.has_minima) add(std::true_type());
    else add(std::false_type());
  }
  if (!kIsLarge) return;
  LLMB_UNROLL for (int i = 0; i < kRows * kVecs; ++i) {
    const int row = i / kVecs, c = i % kVecs * 16;
    float* const to = sums + row * kColumns + column + c;
    const __m512 scale = _mm512_set1_ps(x.rows[row].scales[0]);
    _mm512_store_ps(to, _mm512_fmadd_ps(_mm512_load_ps(at + row * kColumns + c), scale, _mm512_load_ps(to)));
  }
}

template <int kRows>
HWY_INLINE void vnni_rows(const Stretch& w, const TileOfX& x, int64_t begin, int64_t end, float* sums) {
  constexpr int kVecs = kRows <= 6 ? 4 : 2;
  const int64_t width = std::min<int64_t>(end - begin, kVecs * 16);
  for (int64_t column = begin; column < end; column += width) {
    if (width == kVecs * 16 && w.is_large) vnni_tile<kRows, kVecs, true>(w, x, column, sums);
    else if (width == kVecs * 16) vnni_tile<kRows, kVecs, false>(w, x, column, sums);
    else if (w.is_large) vnni_tile<kRows, 2, true>(w, x, column, sums);
    else vnni_tile<kRows, 2, false>(w, x, column, sums);
  }
}
#endif

// dots[kRows][kColumns], 16 columns from `column` on, of one part. is_wide: codes of eight bits.
#if HWY_TARGET == HWY_NEON
template <int kRows>
HWY_INLINE void dot_tile(const Stretch& w, const TileOfX& x, int part, int64_t column, bool, int32_t* dots) {
  const int word = part * w.part_words;
  const NeonBlock words{reinterpret_cast<const uint8_t*>(&w.codes[word][column]),
                        x.numbers + 4 * word,
                        x.stride,
                        w.part_words,
                        true,
                        dots + column};
  FetchAhead none(nullptr, 0, 1);
  const Extensions& has = extensions();
  if (has.i8mm && kRows > 1) smmla_tile<kRows>(words, none);
  else if (has.dotprod) sdot_tile<kRows>(words, none);
  else smull_tile<kRows>(words, none);
}
#elif HWY_TARGET == HWY_AVX2
template <int kRows>
LLMB_BLOCK_AVX_VNNI HWY_NOINLINE void dot_tile(const Stretch& w, const TileOfX& x, int part, int64_t column, bool,
                                               int32_t* dots) {
  __m256i acc[kRows * 2];
  LLMB_UNROLL for (int i = 0; i < kRows * 2; ++i) acc[i] = _mm256_set1_epi32(x.rows[i / 2].start[part]);
  for (int word = part * w.part_words; word < (part + 1) * w.part_words; ++word) {
    const auto* const b = reinterpret_cast<const __m256i*>(&w.codes[word][column]);
    LLMB_UNROLL for (int r = 0; r < kRows; ++r) {
      int32_t four;
      std::memcpy(&four, x.numbers + r * x.stride + 4 * word, 4);
      const __m256i xv = _mm256_set1_epi32(four);
      LLMB_UNROLL for (int c = 0; c < 2; ++c) acc[r * 2 + c] = _mm256_dpbusd_avx_epi32(acc[r * 2 + c], b[c], xv);
    }
  }
  LLMB_UNROLL for (int i = 0; i < kRows * 2; ++i)
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(dots + i / 2 * kColumns + column + i % 2 * 8), acc[i]);
}
#else
// acc + the products of four bytes of codes by the four of x.
HWY_INLINE VI add_products(VI acc, U codes, uint32_t four, [[maybe_unused]] bool is_wide) {
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
  __m512i b = codes.raw, x = _mm512_set1_epi32(static_cast<int32_t>(four));
  if (is_wide) {
    b = _mm512_xor_si512(b, _mm512_set1_epi8(-128));
    x = _mm512_mask_sub_epi8(x, _mm512_movepi8_mask(b), _mm512_setzero_si512(), x);
    b = _mm512_abs_epi8(b);
  }
  return VI{_mm512_add_epi32(acc.raw, _mm512_madd_epi16(_mm512_maddubs_epi16(b, x), _mm512_set1_epi16(1)))};
#else
  const DI d;
  const VI b = hn::BitCast(d, codes);
  const auto times = [&](VI weights, int i)
                         HWY_ATTR { return hn::Mul(weights, hn::Set(d, int32_t{static_cast<int8_t>(four >> 8 * i)})); };
  acc = hn::Add(acc, times(hn::ShiftRight<24>(hn::ShiftLeft<24>(b)), 0));
  acc = hn::Add(acc, times(hn::ShiftRight<24>(hn::ShiftLeft<16>(b)), 1));
  acc = hn::Add(acc, times(hn::ShiftRight<24>(hn::ShiftLeft<8>(b)), 2));
  return hn::Add(acc, times(hn::ShiftRight<24>(b), 3));
#endif
}

template <int kRows>
HWY_INLINE void dot_tile(const Stretch& w, const TileOfX& x, int part, int64_t column, bool is_wide, int32_t* dots) {
  constexpr int kVecs = kLanes == 1 ? 1 : 16 / kLanes;
  for (int64_t c = column; c < column + 16; c += kVecs * kLanes) {
    VI acc[kRows * kVecs];
    LLMB_UNROLL for (int i = 0; i < kRows * kVecs; ++i) acc[i] = hn::Set(DI(), x.rows[i / kVecs].start[part]);
    for (int word = part * w.part_words; word < (part + 1) * w.part_words; ++word) {
      U b[kVecs];
      LLMB_UNROLL for (int v = 0; v < kVecs; ++v) b[v] = hn::LoadU(DU(), &w.codes[word][c + v * kLanes]);
      LLMB_UNROLL for (int r = 0; r < kRows; ++r) {
        uint32_t four;
        std::memcpy(&four, x.numbers + r * x.stride + 4 * word, 4);
        LLMB_UNROLL for (int v = 0; v < kVecs; ++v) acc[r * kVecs + v] =
            add_products(acc[r * kVecs + v], b[v], four, is_wide);
      }
    }
    LLMB_UNROLL for (int i = 0; i < kRows * kVecs; ++i)
        hn::StoreU(acc[i], DI(), dots + i / kVecs * kColumns + c + i % kVecs * kLanes);
  }
}
#endif

template <int kRows>
HWY_NOINLINE void plain_rows(const Stretch& w, const TileOfX& x, int64_t begin, int64_t end, float* sums) {
  HWY_ALIGN int32_t dots[kRows * kColumns];
  HWY_ALIGN float block[kRows * kColumns] = {};
  const D d;
  float* const at = w.is_large ? block : sums;
  for (int part = 0; part < w.num_parts; ++part) {
    for (int64_t c = begin; c < end; c += 16) dot_tile<kRows>(w, x, part, c, w.offset == 128, dots);
    for (int r = 0; r < kRows; ++r) {
      const V x_scale = hn::Set(d, x.rows[r].scales[w.is_large ? 0 : part]), t = hn::Set(d, x.rows[r].sums[part]);
      for (int64_t c = begin; c < end; c += kLanes) {
        V s = hn::ConvertTo(d, hn::LoadU(DI(), dots + r * kColumns + c));
        if (!w.is_large) s = hn::Mul(s, x_scale);
        s = fused(s, hn::LoadU(d, &w.scales[part][c]), hn::LoadU(d, at + r * kColumns + c));
        if (w.has_minima) s = fused(t, hn::LoadU(d, &w.minima[part][c]), s);
        hn::StoreU(s, d, at + r * kColumns + c);
      }
    }
  }
  if (!w.is_large) return;
  for (int r = 0; r < kRows; ++r)
    for (int64_t i = r * kColumns + begin; i < r * kColumns + end; i += kLanes)
      hn::StoreU(fused(hn::LoadU(d, block + i), hn::Set(d, x.rows[r].scales[0]), hn::LoadU(d, sums + i)), d, sums + i);
}

// ---- a task ------------------------------------------------------------------------------------------------------

// Outputs of whole sums.
HWY_INLINE void write_sums(const LinearTask& t, float* sums) {
  for (int64_t row = 0; row < t.row_end - t.row_begin; ++row) {
    const TileSums to = tile_sums(t, row, true, true, sums);
    for (int64_t c = t.column_begin; c < t.column_end; c += kLanes) {
      V sum = hn::LoadU(D(), sums + row * kColumns + c);
      if (to.bias != nullptr) sum = hn::Add(sum, hn::LoadU(D(), to.bias + c));
      hn::StoreU(sum, D(), to.to + c);
    }
  }
  copy_narrow_panel(t, sums);
}

#if HWY_TARGET == HWY_AVX2
// Asks for what is read behind the stretch w of a panel, which begins at k, over the turns of the tiles of all rows.
StretchFetch fetch_behind(const LinearTask& t, BlockFormat format, int64_t k, const Stretch& w, bool is_wanted) {
  const int64_t num_k = t.weight->in_features(), next_k = k + kMaxBlockSize;
  const uint8_t* const next = next_k < num_k ? t.weight->panel(t.panel) + block_panel_bytes(format, next_k) : t.next;
  if (!is_wanted || next == nullptr) return StretchFetch(t.weight->panel(t.panel), 0, 1);
  const int64_t num_rows = t.row_end - t.row_begin, num_tiles = ceil_div(num_rows, kTallTileRows);
  const int64_t tile_columns = byte_vecs(static_cast<int>(num_rows / num_tiles), w.code_bits) * 8;
  return StretchFetch(next, block_panel_bytes(format, std::min(next_k < num_k ? num_k - next_k : num_k, kMaxBlockSize)),
                      num_tiles * (kColumns / tile_columns) * w.num_parts * w.part_words);
}
#endif

void block_int8_linear_task_target(const LinearTask& t) {
  HWY_ALIGN float sums[kLinearTaskRows * kColumns];
  RowStretch rows[kLinearTaskRows];
  Stretch w;
  const BlockFormat format = t.weight->panel_blocks(t.panel);
  const int64_t num_k = t.weight->in_features(), num_rows = t.row_end - t.row_begin;
  const int64_t block = block_size(format).size, stride = block_row_bytes(*t.weight);
  const BlockRow at(num_k, block);
  const uint8_t* const x = t.x_bytes + t.row_begin * stride + block_row_begin(*t.weight, block);
  std::memset(sums, 0, static_cast<size_t>(num_rows * kColumns) * sizeof(float));
#if HWY_TARGET <= HWY_AVX2 && HWY_ARCH_X86
  if (num_rows == 1 && (HWY_TARGET == HWY_AVX2 || has_byte_dots())) {
    with_ggml_format(format, [&](auto f) HWY_ATTR { multiply_row<decltype(f)>(t, x, sums); });
    return write_sums(t, sums);
  }
#endif
  // A stretch of all columns, and what lies behind it, is one range.
  const bool fetches_stretches = HWY_TARGET == HWY_AVX2 && !has_byte_dots() && t.column_end - t.column_begin == kColumns;
  for (int64_t k = 0; k < num_k; k += kMaxBlockSize) {
    const int64_t num_runs = std::min(num_k - k, kMaxBlockSize) / kRun;
    with_ggml_format(format, [&](auto f) HWY_ATTR {
      unpack<decltype(f)>(block_section(format), t.weight->panel(t.panel), k, num_runs, t.column_begin, t.column_end,
                          fetches_stretches && k > 0, &w);
    });
    // Codes of eight bits are multiplied as signed ones where there are no dot products.
    const int offset = w.offset == 128 && !has_byte_dots() ? 0 : w.offset;
    for (int64_t row = 0; row < num_rows; ++row) fill_row(x + row * stride, at, k, w, offset, &rows[row]);
#if HWY_TARGET == HWY_AVX2
    StretchFetch ahead = fetch_behind(t, format, k, w, fetches_stretches);
#endif
    for_row_tiles<kTallTileRows>(num_rows, [&](int64_t row, auto tile_rows) HWY_ATTR {
      constexpr int kRows = decltype(tile_rows)::value;
      const TileOfX tile{x + row * stride + k, stride, rows + row};
      float* const to = sums + row * kColumns;
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
      if (has_byte_dots()) return vnni_rows<kRows>(w, tile, t.column_begin, t.column_end, to);
#elif HWY_TARGET == HWY_AVX2
      if (!has_byte_dots()) return byte_tile<kRows>(w, tile, t.column_begin, t.column_end, &ahead, to);
#endif
      plain_rows<kRows>(w, tile, t.column_begin, t.column_end, to);
    });
  }
  write_sums(t, sums);
}

}  // namespace HWY_NAMESPACE
}  // namespace llmb::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace llmb::cpu {

HWY_EXPORT(block_int8_linear_task_target);

void block_int8_linear_task(const LinearTask& task) {
  const BlockFormat format = task.weight->panel_blocks(task.panel);
  if (format == BlockFormat::kNone || rounds_numbers(format)) return block_linear_task(task);
  HWY_DYNAMIC_DISPATCH(block_int8_linear_task_target)(task);
}

}  // namespace llmb::cpu
#endif
