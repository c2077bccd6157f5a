// Shared by the CPU kernels, compiled once for each SIMD target: 16 logical lanes on any vector width, exp, and the
// register tile of multiply-adds under linear and paged_attention. Include after hwy/foreach_target.h.
//
// 1. Results do not depend on the vector width: every sum is over 16 logical lanes combined in one fixed tree. Targets
//    with fused multiply-add (AVX2, AVX-512, NEON) agree bit for bit, as do those without (scalar, SSE4).
// 2. NaN inputs give NaN outputs.

#if defined(LLMB_KERNELS_CPU_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LLMB_KERNELS_CPU_SIMD_INL_H_
#undef LLMB_KERNELS_CPU_SIMD_INL_H_
#else
#define LLMB_KERNELS_CPU_SIMD_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "hwy/highway.h"

// Not with address sanitizers, whose checks it would multiply: one file of kernels would take Clang six minutes.
#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define LLMB_UNROLL
#endif
#elif defined(__SANITIZE_ADDRESS__)
#define LLMB_UNROLL
#endif
#if !defined(LLMB_UNROLL)
#define LLMB_UNROLL _Pragma("GCC unroll 64")
#endif

// A function with instructions beyond those of its SIMD target, which can use Highway and intrinsics of the target: Clang
// takes the attribute in place of Highway's target, GCC beside it.
#define LLMB_TARGET_WITH(features) __attribute__((target(HWY_TARGET_STR "," features)))

HWY_BEFORE_NAMESPACE();
namespace llmb::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using D = hn::CappedTag<float, 16>;
using DI = hn::RebindToSigned<D>;
using DU = hn::RebindToUnsigned<D>;
using V = hn::Vec<D>;
using VI = hn::Vec<DI>;

constexpr int kLogicalLanes = 16;
constexpr int kLanes = static_cast<int>(hn::MaxLanes(D()));
constexpr int kParts = kLogicalLanes / kLanes;  // vectors that make up 16 logical lanes
static_assert(kLanes * kParts == kLogicalLanes);

// A register tile of the multiply-add kernel: rows of a by columns of b, so that its sums, one row of b and a broadcast
// fill the registers; where there are many, also one of twice the rows and half the columns.
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
constexpr int kTileRows = 6, kTileColumns = 64, kTallTileRows = 12;
#elif HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_NEON
constexpr int kTileRows = 6, kTileColumns = 16, kTallTileRows = kTileRows;
#else
constexpr int kTileRows = 3, kTileColumns = 16, kTallTileRows = kTileRows;
#endif
// Columns of a tile of so many rows.
constexpr int tile_columns(int rows) { return rows > kTileRows ? kTileColumns / 2 : kTileColumns; }

// 16 logical lanes.
struct V16 {
  V part[kParts];
};

HWY_INLINE V16 set16(float x) {
  V16 r;
  LLMB_UNROLL for (int i = 0; i < kParts; ++i) r.part[i] = hn::Set(D(), x);
  return r;
}
HWY_INLINE V16 load16(const float* p) {
  V16 r;
  LLMB_UNROLL for (int i = 0; i < kParts; ++i) r.part[i] = hn::LoadU(D(), p + i * kLanes);
  return r;
}
HWY_INLINE void store16(const V16& v, float* p) {
  LLMB_UNROLL for (int i = 0; i < kParts; ++i) hn::StoreU(v.part[i], D(), p + i * kLanes);
}
// The first n (< 16) floats of p, then zeros.
HWY_INLINE V16 load16_partial(const float* p, int64_t n) {
  float lanes[kLogicalLanes] = {};
  std::memcpy(lanes, p, static_cast<size_t>(n) * sizeof(float));
  return load16(lanes);
}
HWY_INLINE void store16_partial(const V16& v, float* p, int64_t n) {
  float lanes[kLogicalLanes];
  store16(v, lanes);
  std::memcpy(p, lanes, static_cast<size_t>(n) * sizeof(float));
}

// Applies f(V...) part by part.
template <typename F>
HWY_INLINE V16 map16(const V16& a, const F& f) {
  V16 r;
  LLMB_UNROLL for (int i = 0; i < kParts; ++i) r.part[i] = f(a.part[i]);
  return r;
}
template <typename F>
HWY_INLINE V16 map16(const V16& a, const V16& b, const F& f) {
  V16 r;
  LLMB_UNROLL for (int i = 0; i < kParts; ++i) r.part[i] = f(a.part[i], b.part[i]);
  return r;
}
template <typename F>
HWY_INLINE V16 map16(const V16& a, const V16& b, const V16& c, const F& f) {
  V16 r;
  LLMB_UNROLL for (int i = 0; i < kParts; ++i) r.part[i] = f(a.part[i], b.part[i], c.part[i]);
  return r;
}

// Halves 16 lanes four times, upper half onto lower half.
template <typename Op>
HWY_INLINE float reduce16(const V16& v, const Op& op) {
  float lanes[kLogicalLanes];
  store16(v, lanes);
  LLMB_UNROLL for (int half = kLogicalLanes / 2; half >= 1; half /= 2) {
    LLMB_UNROLL for (int i = 0; i < half; ++i) lanes[i] = op(lanes[i], lanes[i + half]);
  }
  return lanes[0];
}
HWY_INLINE float sum16(const V16& v) {
  return reduce16(v, [](float a, float b) HWY_ATTR { return a + b; });
}
HWY_INLINE float max16(const V16& v) {
  return reduce16(v, [](float a, float b) HWY_ATTR { return a > b ? a : b; });
}

// e^x to 1 ulp, for x below 89 or NaN: x = n ln 2 + r with |r| <= ln 2 / 2, and e^r by a polynomial fitted for the
// least relative error. 0 below -87, so that no result is subnormal (slow on most machines); +Inf above 88.4.
HWY_INLINE V exp_bounded(V x) {
  const D d;
  // Its last bits count ones: adding it rounds to whole numbers, and leaves n + 127 in the lowest bits.
  const V shift = hn::Set(d, 0x1.8p23f + 127);
  const V shifted = hn::MulAdd(x, hn::Set(d, 1.44269504f), shift);
  const V n = hn::Sub(shifted, shift);
  V r = hn::NegMulAdd(n, hn::Set(d, 0.693359375f), x);  // 9 significant bits: n times it is exact
  r = hn::NegMulAdd(n, hn::Set(d, -2.12194440e-4f), r);
  V p = hn::Set(d, 0.00138144672f);
  p = hn::MulAdd(p, r, hn::Set(d, 0.00836878084f));
  p = hn::MulAdd(p, r, hn::Set(d, 0.0416683927f));
  p = hn::MulAdd(p, r, hn::Set(d, 0.166665196f));
  p = hn::MulAdd(p, r, hn::Set(d, 0.49999994f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f));
  const V scaled = hn::Mul(p, hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(DU(), shifted))));  // by +Inf for n = 128
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -87.0f)), scaled);
}

HWY_INLINE V exp_v(V x) {
  const V high = hn::Set(D(), 89.0f);
  return exp_bounded(hn::IfThenElse(hn::Gt(x, high), high, x));  // not by Min, which drops NaN on some targets
}

// tanh x to about 2 ulp: an odd polynomial near 0 (fitted at Chebyshev nodes in |x| < 0.55), 1 - 2 / (e^2|x| + 1)
// beyond.
HWY_INLINE V tanh_v(V x) {
  const D d;
  const V magnitude = hn::Abs(x), square = hn::Mul(x, x);
  V p = hn::Set(d, -0.006233633495867252f);
  p = hn::MulAdd(p, square, hn::Set(d, 0.02103821560740471f));
  p = hn::MulAdd(p, square, hn::Set(d, -0.053842321038246155f));
  p = hn::MulAdd(p, square, hn::Set(d, 0.13332456350326538f));
  p = hn::MulAdd(p, square, hn::Set(d, -0.3333331048488617f));
  p = hn::MulAdd(p, square, hn::Set(d, 1.0f));
  const V one = hn::Set(d, 1.0f);
  const V e = exp_v(hn::Add(magnitude, magnitude));
  const V large = hn::Sub(one, hn::Div(hn::Set(d, 2.0f), hn::Add(e, one)));
  return hn::IfThenElse(hn::Lt(magnitude, hn::Set(d, 0.55f)), hn::Mul(p, x), hn::CopySign(large, x));
}

// Rows of a tile, `stride` floats apart: three by one pointer, as there are fewer registers than rows.
template <int kRows>
struct TileRows {
  static constexpr int kPointers = (kRows + 2) / 3;
  const float* first[kPointers];
  int64_t stride;

  HWY_INLINE TileRows(const float* row, int64_t row_stride) : stride(row_stride) {
    LLMB_UNROLL for (int i = 0; i < kPointers; ++i) first[i] = row + 3 * i * stride;
  }
  HWY_INLINE V broadcast(int row, int column) const { return hn::Set(D(), first[row / 3][row % 3 * stride + column]); }
  HWY_INLINE void advance(int columns) { LLMB_UNROLL for (int i = 0; i < kPointers; ++i) first[i] += columns; }
};

// Calls f(integral_constant<int, rows>) for kMin <= rows <= kMax.
template <int kMin, int kMax, typename F>
HWY_INLINE void with_rows(int64_t rows, const F& f) {
  if constexpr (kMax > kMin) {
    if (rows < kMax) return with_rows<kMin, kMax - 1>(rows, f);
  }
  f(std::integral_constant<int, kMax>());
}

// The least height of tiles of at most `max` rows where there are several (for_row_tiles).
constexpr int least_of_several(int max) { return (max + 1) / 2; }

// Calls f(first row, integral_constant<int, rows>) for tiles of nearly equal height, at most kMax, that cover
// [0, rows). kMin: 1, or least_of_several(kMax) where rows > kMax: heights that do not occur are not compiled.
template <int kMax, int kMin = 1, typename F>
HWY_INLINE void for_row_tiles(int64_t rows, const F& f) {
  const int64_t tiles = (rows + kMax - 1) / kMax;
  for (int64_t i = 0, row = 0; i < tiles; ++i) {
    const int64_t next = (i + 1) * rows / tiles;
    with_rows<kMin, kMax>(next - row, [&](auto tile_rows) HWY_ATTR { f(row, tile_rows); });
    row = next;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace llmb::cpu
HWY_AFTER_NAMESPACE();

#endif
