// How panels of blocks (block_panel.h) are read: each format's codes, scales and minima; here those whose numbers are
// rounded. Compiled once for each SIMD target; include after hwy/foreach_target.h.

#if defined(LLMB_KERNELS_CPU_BLOCK_FORMATS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LLMB_KERNELS_CPU_BLOCK_FORMATS_INL_H_
#undef LLMB_KERNELS_CPU_BLOCK_FORMATS_INL_H_
#else
#define LLMB_KERNELS_CPU_BLOCK_FORMATS_INL_H_
#endif

#include "kernels/cpu/block_ggml-inl.h"

HWY_BEFORE_NAMESPACE();
namespace llmb::cpu {
namespace HWY_NAMESPACE {

// To bf16 or fp16 and back. A NaN is 0x7fc00000, with or without a sign.
HWY_INLINE V round_to_bf16(V x) {
  const U bits = hn::BitCast(DU(), x), odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(DU(), 1));
  const U rounded = hn::Add(bits, hn::Add(odd, hn::Set(DU(), 0x7fff)));
  return hn::BitCast(D(), hn::And(rounded, hn::Set(DU(), 0xffff0000u)));
}
HWY_INLINE V round_to_f16(V x) {
#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128  // where Highway cuts bits off
  const U bits = hn::BitCast(DU(), x), sign = hn::And(bits, hn::Set(DU(), 0x80000000u));
  const U magnitude = hn::Xor(bits, sign), odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(DU(), 1));
  const U normal = hn::And(hn::Add(magnitude, hn::Add(odd, hn::Set(DU(), 0xfff))), hn::Set(DU(), 0xffffe000u));
  // Below 2^-14: a multiple of 2^-24, which is the last bit of numbers from 0.5 on.
  const V half = hn::Set(D(), 0.5f), tiny = hn::Sub(hn::Add(hn::BitCast(D(), magnitude), half), half);
  const V rounded =
      hn::IfThenElse(hn::Lt(hn::BitCast(D(), magnitude), hn::Set(D(), 0x1p-14f)), tiny, hn::BitCast(D(), normal));
  const V finite =
      hn::IfThenElse(hn::Ge(rounded, hn::Set(D(), 0x1p16f)), hn::BitCast(D(), hn::Set(DU(), 0x7f800000u)), rounded);
  return hn::Or(finite, hn::BitCast(D(), sign));
#else
  const hn::Rebind<hwy::float16_t, D> d16;
  return hn::PromoteTo(D(), hn::DemoteTo(d16, x));
#endif
}

// Integers with a scale and a zero. Codes: Q8_0's bytes as they are, or Q4_0's.
template <class Codes, bool kIsBf16>
struct Integers : Codes {
  static constexpr bool kRounds = true, kHasZero = true, kIsDirect = false;
  static HWY_INLINE U codes(const SectionReader& s, int64_t run, int word) {
    if constexpr (Codes::kIsNibble) return Codes::codes(s, run, word);
    else return s.word(word);
  }
  static HWY_INLINE V scale(const SectionReader& s, int64_t, int) { return load_half<kIsBf16>(s.halves_at); }
  static HWY_INLINE V zero(const SectionReader& s) { return above_2_23(hn::BitCast(DU(), s.bytes(0))); }
  static HWY_INLINE V round(V x) { return kIsBf16 ? round_to_bf16(x) : round_to_f16(x); }
};
template <class Codes, bool kIsBf16>
struct IndexedIntegers : Integers<Codes, kIsBf16> {
  static constexpr bool kIsIndexed = true;
  static HWY_INLINE V scale_of(const SectionReader& s, int i) {
    return load_half<kIsBf16>(s.groups_at + s.of[i] * kPanelGroupBytes);
  }
  static HWY_INLINE V zero_of(const SectionReader& s, int i) {
    return above_2_23(hn::BitCast(DU(), load_bytes(s.zeros_at + s.of[i] * kPanelGroupBytes)));
  }
};
// E4M3 in the lowest byte, which is not NaN: fp32 but for the exponent's bias.
HWY_INLINE V e4m3(U code) {
  const U bits = hn::Or(hn::ShiftLeft<24>(low_bits(code, 0x80)), hn::ShiftLeft<20>(low_bits(code, 0x7f)));
  return hn::Mul(hn::BitCast(D(), bits), hn::Set(D(), 0x1p120f));
}
struct NVFP4 : Format {
  static constexpr bool kIsNibble = true, kHasNumbers = true, kIsByHalves = true, kRounds = true;
  static constexpr const float* kNumbers = kNvfp4Values;
  static HWY_INLINE U codes(const SectionReader& s, int64_t run, int word) {
    return nibbles(s.word(1 + run * 4 + word % 4), word / 4 * 4);
  }
  static HWY_INLINE V scale(const SectionReader& s, int64_t run, int half) {
    return hn::Div(e4m3(hn::BitCast(DU(), s.bytes(2 * run + half))), hn::BitCast(D(), s.word(0)));
  }
  static HWY_INLINE V round(V x) { return round_to_bf16(x); }
};

// Blocks that begin with a scale in fp32.
template <bool kIsBf16>
struct WideScale : Format {
  static constexpr bool kRounds = true;
  static HWY_INLINE V scale(const SectionReader& s, int64_t, int) { return hn::BitCast(D(), s.word(0)); }
  static HWY_INLINE V round(V x) { return kIsBf16 ? round_to_bf16(x) : round_to_f16(x); }
};
template <bool kIsBf16, const float (&kValues)[16]>
struct FourBitTable : WideScale<kIsBf16> {
  static constexpr bool kIsNibble = true, kHasNumbers = true;
  static constexpr const float* kNumbers = kValues;
  static HWY_INLINE U codes(const SectionReader& s, int64_t run, int word) { return NVFP4::codes(s, run, word); }
};
template <bool kIsBf16>
struct WideBytes : WideScale<kIsBf16> {
  static constexpr bool kHasOwnNumber = true;
  static HWY_INLINE U codes(const SectionReader& s, int64_t, int word) { return s.word(1 + word); }
};
template <bool kIsBf16>
struct Fp8 : WideBytes<kIsBf16> {
  template <int kByte>
  static HWY_INLINE V number(U codes, V scale) {
    const U code = hn::ShiftRight<8 * kByte>(codes);
    const auto is_nan = hn::Eq(low_bits(code, 0x7f), hn::Set(DU(), 0x7f));
    const V value =
        hn::IfThenElse(hn::RebindMask(D(), is_nan), hn::BitCast(D(), hn::Set(DU(), 0x7fc00000u)), e4m3(code));
    return hn::Mul(value, scale);
  }
};
template <bool kIsBf16>
struct RowInt8 : WideBytes<kIsBf16> {
  template <int kByte>
  static HWY_INLINE V number(U codes, V scale) {
    const V code = hn::ConvertTo(D(), hn::ShiftRight<24>(hn::BitCast(DI(), hn::ShiftLeft<24 - 8 * kByte>(codes))));
    return hn::Mul(hn::Mul(code, scale), hn::Set(D(), kOneOver127));
  }
};
template <bool kIsBf16>
struct Sparse24 : Format {
  static constexpr bool kIsSparse24 = true;
  static HWY_INLINE U codes(const SectionReader& s, int64_t, int word) { return s.word(1 + word); }
  static HWY_INLINE V scale(const SectionReader&, int64_t, int) { return hn::Zero(D()); }
  static HWY_INLINE U kept(const SectionReader& s) { return s.word(0); }
  // Number 0 is the first that is kept, if it is; 3 the second; 1 and 2 are whichever their neighbour leaves. Chosen as
  // integers: as a float a sign bit alone is not below zero on every target.
  template <int kNumber>
  static HWY_INLINE V number(V first, V second, U kept) {
    const VI one = hn::BitCast(DI(), first), two = hn::BitCast(DI(), second);
    VI own = kNumber <= 1 ? one : two;
    if constexpr (kNumber == 1) own = hn::IfNegativeThenElse(sign_at<0>(kept), two, one);
    if constexpr (kNumber == 2) own = hn::IfNegativeThenElse(sign_at<3>(kept), one, two);
    return hn::BitCast(D(), hn::IfNegativeThenElse(sign_at<kNumber>(kept), own, hn::Zero(DI())));
  }
  static HWY_INLINE V first(U pair) {
    if constexpr (kIsBf16) return hn::BitCast(D(), hn::ShiftLeft<16>(pair));
    else return half_to_float(hn::And(pair, hn::Set(DU(), 0xffff)));
  }
  static HWY_INLINE V second(U pair) {
    if constexpr (kIsBf16) return hn::BitCast(D(), hn::And(pair, hn::Set(DU(), 0xffff0000u)));
    else return half_to_float(hn::ShiftRight<16>(pair));
  }

 private:
  // Negative where this bit is set.
  template <int kBit>
  static HWY_INLINE VI sign_at(U bits) {
    return hn::BitCast(DI(), hn::ShiftLeft<31 - kBit>(bits));
  }
  static HWY_INLINE V half_to_float(U bits) {
    const hn::Rebind<uint16_t, D> d16;
    const hn::Rebind<hwy::float16_t, D> d_half;
    return hn::PromoteTo(D(), hn::BitCast(d_half, hn::TruncateTo(d16, bits)));
  }
};
using Int4F16 = Integers<Q4_0, false>;
using Int4BF16 = Integers<Q4_0, true>;
using Int8F16 = Integers<Q8_0, false>;
using Int8BF16 = Integers<Q8_0, true>;
using IndexedInt4F16 = IndexedIntegers<Q4_0, false>;
using IndexedInt4BF16 = IndexedIntegers<Q4_0, true>;
using IndexedInt8F16 = IndexedIntegers<Q8_0, false>;
using IndexedInt8BF16 = IndexedIntegers<Q8_0, true>;

// Calls f(a value of the format's type). REQUIRES: format != kNone.
template <typename Function>
HWY_INLINE void with_format(BlockFormat format, const Function& f) {
  switch (format) {
    default:
      return with_ggml_format(format, f);
    case BlockFormat::kInt4F16:
      return f(Int4F16());
    case BlockFormat::kInt4BF16:
      return f(Int4BF16());
    case BlockFormat::kInt8F16:
      return f(Int8F16());
    case BlockFormat::kInt8BF16:
      return f(Int8BF16());
    case BlockFormat::kIndexedInt4F16:
      return f(IndexedInt4F16());
    case BlockFormat::kIndexedInt4BF16:
      return f(IndexedInt4BF16());
    case BlockFormat::kIndexedInt8F16:
      return f(IndexedInt8F16());
    case BlockFormat::kIndexedInt8BF16:
      return f(IndexedInt8BF16());
    case BlockFormat::kNVFP4:
      return f(NVFP4());
    case BlockFormat::kFp8F16:
      return f(Fp8<false>());
    case BlockFormat::kFp8BF16:
      return f(Fp8<true>());
    case BlockFormat::kNf4F16:
      return f(FourBitTable<false, kNf4Values>());
    case BlockFormat::kNf4BF16:
      return f(FourBitTable<true, kNf4Values>());
    case BlockFormat::kFp4F16:
      return f(FourBitTable<false, kFp4Values>());
    case BlockFormat::kFp4BF16:
      return f(FourBitTable<true, kFp4Values>());
    case BlockFormat::kRowInt8F16:
      return f(RowInt8<false>());
    case BlockFormat::kRowInt8BF16:
      return f(RowInt8<true>());
    case BlockFormat::kSparse24F16:
      return f(Sparse24<false>());
    case BlockFormat::kSparse24BF16:
      return f(Sparse24<true>());
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace llmb::cpu
HWY_AFTER_NAMESPACE();

#endif
