// How panels of blocks (block_panel.h) are read: what every format has, and ggml's formats. Compiled once for each SIMD
// target; include after hwy/foreach_target.h.

#if defined(LLMB_KERNELS_CPU_BLOCK_GGML_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LLMB_KERNELS_CPU_BLOCK_GGML_INL_H_
#undef LLMB_KERNELS_CPU_BLOCK_GGML_INL_H_
#else
#define LLMB_KERNELS_CPU_BLOCK_GGML_INL_H_
#endif

#include "kernels/cpu/block_panel.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace llmb::cpu {
namespace HWY_NAMESPACE {

using U = hn::Vec<DU>;

constexpr int64_t kBlockColumns = PackedLinear::kPanelWidth;
constexpr int64_t kRun = 32;  // numbers of a row that are decoded at a time: eight words of four

template <bool kIsBf16>
HWY_INLINE V load_half(const uint8_t* at) {
  if constexpr (kIsBf16) {
    const auto bits = hn::LoadU(hn::Rebind<uint16_t, DU>(), reinterpret_cast<const uint16_t*>(at));
    return hn::BitCast(D(), hn::ShiftLeft<16>(hn::PromoteTo(DU(), bits)));
  } else {
    const hn::Rebind<hwy::float16_t, D> d16;
    return hn::PromoteTo(D(), hn::LoadU(d16, reinterpret_cast<const hwy::float16_t*>(at)));
  }
}
HWY_INLINE VI load_bytes(const uint8_t* at) { return hn::PromoteTo(DI(), hn::LoadU(hn::Rebind<uint8_t, DI>(), at)); }

// A section from a vector of columns on.
struct SectionReader {
  const uint8_t* words_at;
  const uint8_t* halves_at;
  const uint8_t* bytes_at;
  const uint8_t *groups_at = nullptr, *zeros_at = nullptr;  // of the groups of an indexed format
  const uint16_t* of = nullptr;                             // the groups of the run's k

  SectionReader() = default;
  SectionReader(const BlockSection& s, const uint8_t* section, int64_t column)
      : words_at(section + column * 4),
        halves_at(section + s.halves() + column * 2),
        bytes_at(section + s.scale_bytes() + column) {}
  // sections_end: of the panel, which has num_k; k: where the run begins.
  HWY_INLINE void index(const uint8_t* sections_end, int64_t num_k, int64_t k, int64_t column) {
    of = reinterpret_cast<const uint16_t*>(sections_end) + k;
    groups_at = sections_end + num_k * 2 + column * 2;
    zeros_at = sections_end + num_k * 2 + kBlockColumns * 2 + column;
  }
  // The same from so many columns further on. REQUIRES: no index().
  HWY_INLINE SectionReader from(int64_t columns) const {
    SectionReader s = *this;
    s.words_at += columns * 4, s.halves_at += columns * 2, s.bytes_at += columns;
    return s;
  }
  HWY_INLINE U word(int64_t i) const {
    return hn::LoadU(DU(), reinterpret_cast<const uint32_t*>(words_at + i * kBlockColumns * 4));
  }
  HWY_INLINE V half(int64_t i) const { return load_half<false>(halves_at + i * kBlockColumns * 2); }
  HWY_INLINE VI bytes(int64_t i) const { return load_bytes(bytes_at + i * kBlockColumns); }
  HWY_INLINE V unsigned_byte(int64_t i) const { return hn::ConvertTo(D(), bytes(i)); }
  HWY_INLINE V signed_byte(int64_t i) const {
    const hn::Rebind<int8_t, DI> d8;
    return hn::ConvertTo(
        D(), hn::PromoteTo(DI(), hn::LoadU(d8, reinterpret_cast<const int8_t*>(bytes_at + i * kBlockColumns))));
  }
};

// 2^23 + the lowest byte: a float whose lowest bits count ones.
HWY_INLINE V above_2_23(U words) {
  return hn::BitCast(D(), hn::OrAnd(hn::Set(DU(), 0x4b000000), words, hn::Set(DU(), 255)));
}
HWY_INLINE U low_bits(U words, uint32_t mask) { return hn::And(words, hn::Set(DU(), mask)); }
// Moves bit `from` of each byte, and the next ones, to bit kTo; other bits lie beside them.
template <int kTo>
HWY_INLINE U moved(U words, int from) {
  if (!__builtin_constant_p(from)) return hn::ShiftLeft<kTo>(hn::ShiftRightSame(words, from));
  return from < kTo ? hn::ShiftLeftSame(words, kTo - from) : hn::ShiftRightSame(words, from - kTo);
}
// The four bits of each byte that begin at bit 0 or 4.
HWY_INLINE U nibbles(U words, int first_bit) { return low_bits(hn::ShiftRightSame(words, first_bit), 0x0f0f0f0f); }
// Bits 4 · word to 4 · word + 3, each to bit 4 of a byte.
HWY_INLINE U spread_fifth_bits(U bits, int word) {
#if HWY_TARGET == HWY_SCALAR
  const U four = low_bits(hn::ShiftRightSame(bits, 4 * word), 15);
  return low_bits(hn::Mul(four, hn::Set(DU(), 0x00204081u << 4)), 0x10101010);
#else
  // The byte that has the bits, four times.
  HWY_ALIGN static constexpr uint8_t kBytes[4][16] = {{0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12},
                                                      {1, 1, 1, 1, 5, 5, 5, 5, 9, 9, 9, 9, 13, 13, 13, 13},
                                                      {2, 2, 2, 2, 6, 6, 6, 6, 10, 10, 10, 10, 14, 14, 14, 14},
                                                      {3, 3, 3, 3, 7, 7, 7, 7, 11, 11, 11, 11, 15, 15, 15, 15}};
  const hn::Repartition<uint8_t, DU> d8;
  const auto bytes = hn::TableLookupBytes(hn::BitCast(d8, bits), hn::LoadDup128(d8, kBytes[word / 2]));
  const auto bit = hn::BitCast(d8, hn::Set(DU(), word % 2 == 0 ? 0x08040201u : 0x80402010u));
  return hn::BitCast(DU(), hn::IfThenElseZero(hn::TestBit(bytes, bit), hn::Set(d8, 16)));
#endif
}

// A format has
//   codes(): four unsigned codes, a byte each, of word `word` (k from 4 · word on) of run `run` of a section
//   kBlocks: which it is, of ggml's; kRuns: of a block; kIsPaired: two of them in turn share words
//   kIsDirect: codes lie in word word_at(), from bit bit_at() of each byte on; those of eight bits are signed there
//   kCodeBits; kOffset: the code that means 0; or kTable or kNumbers: what codes, of four bits (kIsNibble), mean
//   scale(), minimum(): of half `half` (16 k) of a run; number = scale · code, minus or plus the minimum
//   kRounds: number = round(scale · code), or where kHasZero round(scale · (code − zero)); zero() gives 2^23 + it
//   kIsIndexed: scale_of(), zero_of(): of number i of a run
//   kHasOwnNumber: number() of a byte and its scale, before it is rounded
//   kIsSparse24: number() of one of four numbers, of two that are kept and the bits, from the lowest on, that say which
struct Format {
  static constexpr int kRuns = 1, kOffset = 0, kCodeBits = 4;
  static constexpr bool kHasTable = false;  // sanitizers keep an array's address from being compared at compile time
  static constexpr const int8_t* kTable = nullptr;
  static constexpr bool kIsNibble = false, kHasMinimum = false, kAddsMinimum = false, kIsByHalves = false;
  static constexpr bool kRounds = false, kHasZero = false, kIsIndexed = false, kIsPaired = false, kIsDirect = false;
  static constexpr bool kHasNumbers = false, kHasOwnNumber = false, kIsSparse24 = false;
  static constexpr const float* kNumbers = nullptr;
};

// 32 codes in 16 bytes: low halves of all bytes, then high ones. kFirst: words in front of them.
template <int kFirst>
struct Nibbles32 : Format {
  static constexpr bool kIsNibble = true, kIsDirect = true;
  static constexpr int64_t word_at(int64_t, int word) { return kFirst + word % 4; }
  static constexpr int bit_at(int64_t, int word) { return word / 4 * 4; }
  static HWY_INLINE U codes(const SectionReader& s, int64_t run, int word) {
    return nibbles(s.word(word_at(run, word)), bit_at(run, word));
  }
  static HWY_INLINE V scale(const SectionReader& s, int64_t, int) { return s.half(0); }
  static HWY_INLINE V minimum(const SectionReader& s, int64_t, int) { return s.half(1); }
};

struct Q8_0 : Format {
  static constexpr BlockFormat kBlocks = BlockFormat::kQ8_0;
  static constexpr int kOffset = 128, kCodeBits = 8;
  static constexpr bool kIsDirect = true;
  static constexpr int64_t word_at(int64_t, int word) { return word; }
  static constexpr int bit_at(int64_t, int) { return 0; }
  static HWY_INLINE U codes(const SectionReader& s, int64_t, int word) {
    return hn::Xor(s.word(word), hn::Set(DU(), 0x80808080));
  }
  static HWY_INLINE V scale(const SectionReader& s, int64_t, int) { return s.half(0); }
};
struct Q4_0 : Nibbles32<0> {
  static constexpr BlockFormat kBlocks = BlockFormat::kQ4_0;
  static constexpr int kOffset = 8;
};
struct Q4_1 : Nibbles32<0> {
  static constexpr BlockFormat kBlocks = BlockFormat::kQ4_1;
  static constexpr bool kHasMinimum = true, kAddsMinimum = true;
};
struct Q5_1 : Nibbles32<1> {
  static constexpr BlockFormat kBlocks = BlockFormat::kQ5_1;
  static constexpr int kCodeBits = 5;
  static constexpr bool kIsNibble = false, kIsDirect = false, kHasMinimum = true, kAddsMinimum = true;
  static HWY_INLINE U codes(const SectionReader& s, int64_t run, int word) {
    return hn::Or(Nibbles32<1>::codes(s, run, word), spread_fifth_bits(s.word(0), word));
  }
};
struct Q5_0 : Q5_1 {
  static constexpr BlockFormat kBlocks = BlockFormat::kQ5_0;
  static constexpr int kOffset = 16;
  static constexpr bool kHasMinimum = false;
};
struct IQ4_NL : Nibbles32<0> {
  static constexpr BlockFormat kBlocks = BlockFormat::kIQ4_NL;
  static constexpr bool kHasTable = true;
  static constexpr const int8_t* kTable = kIq4Values;
};
struct MXFP4 : Nibbles32<0> {
  static constexpr BlockFormat kBlocks = BlockFormat::kMXFP4;
  static constexpr bool kHasTable = true;
  static constexpr const int8_t* kTable = kMxfp4Values;
  // 2^(e - 128), which is subnormal for e < 2.
  static HWY_INLINE V scale(const SectionReader& s, int64_t, int) {
    const VI e = s.bytes(0);
    const VI normal = hn::ShiftLeft<23>(hn::Sub(e, hn::Set(DI(), 1)));
    const VI tiny = hn::ShiftLeft<21>(hn::Add(e, hn::Set(DI(), 1)));  // of e = 0 and 1
    return hn::BitCast(D(), hn::IfThenElse(hn::Lt(e, hn::Set(DI(), 2)), tiny, normal));
  }
};

// Runs of 32 in turn: pairs of them share 32 bytes. kFirst: words in front of them.
template <int kFirst>
struct NibbleRuns : Format {
  static constexpr int kRuns = 8;
  static constexpr bool kIsNibble = true, kIsDirect = true, kIsPaired = true;
  static constexpr int64_t word_at(int64_t run, int word) { return kFirst + (run >> 1) * 8 + word; }
  static constexpr int bit_at(int64_t run, int) { return static_cast<int>(run & 1) * 4; }
  static HWY_INLINE U codes(const SectionReader& s, int64_t run, int word) {
    return nibbles(s.word(word_at(run, word)), bit_at(run, word));
  }
};
struct Q4_K : NibbleRuns<0> {
  static constexpr BlockFormat kBlocks = BlockFormat::kQ4_K;
  static constexpr bool kHasMinimum = true;
  static HWY_INLINE V scale(const SectionReader& s, int64_t run, int) {
    return hn::Mul(s.half(0), s.unsigned_byte(run));
  }
  static HWY_INLINE V minimum(const SectionReader& s, int64_t run, int) {
    return hn::Mul(s.half(1), s.unsigned_byte(8 + run));
  }
};
struct Q5_K : Q4_K {
  static constexpr BlockFormat kBlocks = BlockFormat::kQ5_K;
  static constexpr int kCodeBits = 5;
  static constexpr bool kIsNibble = false, kIsDirect = false;
  static HWY_INLINE U codes(const SectionReader& s, int64_t run, int word) {
    const U high = moved<4>(s.word(word), static_cast<int>(run));
    return hn::OrAnd(NibbleRuns<8>::codes(s, run, word), high, hn::Set(DU(), 0x10101010));
  }
};
struct IQ4_XS : Format {
  static constexpr BlockFormat kBlocks = BlockFormat::kIQ4_XS;
  static constexpr int kRuns = 8;
  static constexpr bool kIsNibble = true, kIsDirect = true;
  static constexpr bool kHasTable = true;
  static constexpr const int8_t* kTable = kIq4Values;
  static constexpr int64_t word_at(int64_t run, int word) { return run * 4 + word % 4; }
  static constexpr int bit_at(int64_t, int word) { return word / 4 * 4; }
  static HWY_INLINE U codes(const SectionReader& s, int64_t run, int word) {
    return nibbles(s.word(word_at(run, word)), bit_at(run, word));
  }
  static HWY_INLINE V scale(const SectionReader& s, int64_t run, int) { return hn::Mul(s.half(0), s.signed_byte(run)); }
};

// Halves of 128 k: four runs, two bits each, share 32 bytes. kFirst: words in front of them.
template <int kFirst>
HWY_INLINE U two_bits(const SectionReader& s, int64_t run, int word) {
  return low_bits(hn::ShiftRightSame(s.word(kFirst + (run >> 2) * 8 + word), static_cast<int>(run & 3) * 2),
                  0x03030303);
}
struct Q6_K : Format {
  static constexpr BlockFormat kBlocks = BlockFormat::kQ6_K;
  static constexpr int kRuns = 8, kOffset = 32, kCodeBits = 6;
  static constexpr bool kIsByHalves = true;
  static HWY_INLINE U codes(const SectionReader& s, int64_t run, int word) {
    const U low = nibbles(s.word((run >> 2) * 16 + (run & 1) * 8 + word), static_cast<int>(run >> 1 & 1) * 4);
    const U high = moved<4>(s.word(32 + (run >> 2) * 8 + word), static_cast<int>(run & 3) * 2);
    return hn::OrAnd(low, high, hn::Set(DU(), 0x30303030));
  }
  static HWY_INLINE V scale(const SectionReader& s, int64_t run, int half) {
    return hn::Mul(s.half(0), s.signed_byte(2 * run + half));
  }
};
struct Q3_K : Format {
  static constexpr BlockFormat kBlocks = BlockFormat::kQ3_K;
  static constexpr int kRuns = 8, kOffset = 4, kCodeBits = 3;
  static constexpr bool kIsByHalves = true;
  static HWY_INLINE U codes(const SectionReader& s, int64_t run, int word) {
    const U third = moved<2>(s.word(word), static_cast<int>(run));
    return hn::OrAnd(two_bits<8>(s, run, word), third, hn::Set(DU(), 0x04040404));
  }
  static HWY_INLINE V scale(const SectionReader& s, int64_t run, int half) { return Q6_K::scale(s, run, half); }
};
struct Q2_K : Format {
  static constexpr BlockFormat kBlocks = BlockFormat::kQ2_K;
  static constexpr int kRuns = 8, kCodeBits = 2;
  static constexpr bool kIsByHalves = true, kHasMinimum = true;
  static HWY_INLINE U codes(const SectionReader& s, int64_t run, int word) { return two_bits<0>(s, run, word); }
  static HWY_INLINE V scale(const SectionReader& s, int64_t run, int half) {
    return hn::Mul(s.half(0), hn::ConvertTo(D(), hn::And(s.bytes(2 * run + half), hn::Set(DI(), 15))));
  }
  static HWY_INLINE V minimum(const SectionReader& s, int64_t run, int half) {
    return hn::Mul(s.half(1), hn::ConvertTo(D(), hn::ShiftRight<4>(s.bytes(2 * run + half))));
  }
};

// Calls f(a value of the format's type), where it is ggml's.
template <typename Function>
HWY_INLINE void with_ggml_format(BlockFormat format, const Function& f) {
  switch (format) {
    case BlockFormat::kQ8_0:
      return f(Q8_0());
    case BlockFormat::kQ4_0:
      return f(Q4_0());
    case BlockFormat::kQ4_1:
      return f(Q4_1());
    case BlockFormat::kQ5_0:
      return f(Q5_0());
    case BlockFormat::kQ5_1:
      return f(Q5_1());
    case BlockFormat::kQ2_K:
      return f(Q2_K());
    case BlockFormat::kQ3_K:
      return f(Q3_K());
    case BlockFormat::kQ4_K:
      return f(Q4_K());
    case BlockFormat::kQ5_K:
      return f(Q5_K());
    case BlockFormat::kQ6_K:
      return f(Q6_K());
    case BlockFormat::kIQ4_NL:
      return f(IQ4_NL());
    case BlockFormat::kIQ4_XS:
      return f(IQ4_XS());
    case BlockFormat::kMXFP4:
      return f(MXFP4());
    default:
      return;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace llmb::cpu
HWY_AFTER_NAMESPACE();

#endif
