// The numbers of panels of blocks (block_panel.h), decoded in registers. Compiled once for each SIMD target; include
// after hwy/foreach_target.h.
//
// All products of a scale and a code are exact in fp32 (11 bits of an fp16 scale, at most 8 of a part's and 7 of a
// code, never more than 24 together), so that a minimum may be subtracted by a fused multiply-add. So are those of
// integers with a zero; NVFP4's are rounded, as by its own code.

#if defined(LLMB_KERNELS_CPU_BLOCK_NUMBERS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LLMB_KERNELS_CPU_BLOCK_NUMBERS_INL_H_
#undef LLMB_KERNELS_CPU_BLOCK_NUMBERS_INL_H_
#else
#define LLMB_KERNELS_CPU_BLOCK_NUMBERS_INL_H_
#endif

#include <utility>

#include "kernels/cpu/block_formats-inl.h"

HWY_BEFORE_NAMESPACE();
namespace llmb::cpu {
namespace HWY_NAMESPACE {

#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
constexpr bool kLooksUpInRegisters = true;
#else
constexpr bool kLooksUpInRegisters = false;
#endif

// The numbers of codes of four bits.
template <class F>
struct Meanings {
  alignas(64) float of[16];
  constexpr Meanings() : of() {
    for (int i = 0; i < 16; ++i) {
      if constexpr (F::kHasNumbers) of[i] = F::kNumbers[i];
      else if constexpr (F::kHasTable) of[i] = F::kTable[i];
      else of[i] = static_cast<float>(i - F::kOffset);
    }
  }
};
template <class F>
constexpr Meanings<F> kMeanings;

// Codes that begin at bit kBit of words, as numbers: they become the fraction of a float whose exponent gives their
// lowest bit the value 1, mostly without a shift; what was added with the exponent, and the offset, is subtracted.
// kFlip: bits that are turned before.
template <class F, int kBit, uint32_t kFlip = 0>
HWY_INLINE V number_at(U words) {
  constexpr int kBits = F::kCodeBits, kTooHigh = kBit + kBits - 23, kShift = kTooHigh <= 0 ? 0 : (kTooHigh + 7) / 8 * 8;
  constexpr int kAt = kBit - kShift;
  if constexpr (kShift > 0) words = hn::ShiftRight<kShift>(words);
  const U mask = hn::Set(DU(), ((1u << kBits) - 1) << kAt), added = hn::Set(DU(), (150u - kAt) << 23 | kFlip << kAt);
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
  const U bits{_mm512_ternarylogic_epi32(words.raw, mask.raw, added.raw, 0x6a)};  // the same in one instruction
#else
  const U bits = hn::Xor(hn::And(words, mask), added);
#endif
  return hn::Sub(hn::BitCast(D(), bits), hn::Set(D(), static_cast<float>((1 << (23 - kAt)) + F::kOffset)));
}

// The numbers of byte kByte of words of codes. table: of codes of four bits, where registers can be looked up in.
template <class F, int kByte>
HWY_INLINE V meaning(U codes, [[maybe_unused]] V table) {
  if constexpr (F::kIsNibble && kLooksUpInRegisters) {
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
    return V{_mm512_permutexvar_ps(hn::ShiftRight<8 * kByte>(codes).raw, table.raw)};  // looks at four bits
#endif
  } else if constexpr (F::kHasTable || F::kHasNumbers) {
    const U code = hn::And(hn::ShiftRight<8 * kByte>(codes), hn::Set(DU(), 15));
    return hn::GatherIndex(D(), kMeanings<F>.of, hn::BitCast(DI(), code));
  } else {
    return number_at<F, 8 * kByte>(codes);
  }
}

// Formats whose words need not become bytes first.
template <class F>
constexpr bool kReadsWords = F::kIsDirect && (kLooksUpInRegisters || !F::kHasTable);

// The numbers of byte kByte of words as they are stored, from bit `bit` of it on, which is known when this is compiled.
template <class F, int kByte>
HWY_INLINE V meaning_in_word(U words, int bit, [[maybe_unused]] V table) {
  if constexpr (!F::kIsNibble) {
    return number_at<F, 8 * kByte, F::kOffset>(words);
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
  } else if constexpr (kLooksUpInRegisters) {
    if (bit == 0) return V{_mm512_permutexvar_ps(hn::ShiftRight<8 * kByte>(words).raw, table.raw)};
    return V{_mm512_permutexvar_ps(hn::ShiftRight<8 * kByte + 4>(words).raw, table.raw)};
#endif
  } else {
    return bit == 0 ? number_at<F, 8 * kByte>(words) : number_at<F, 8 * kByte + 4>(words);
  }
}

template <class F>
HWY_INLINE V scaled(V code, V scale, [[maybe_unused]] V minimum) {
  if constexpr (F::kRounds) return F::round(hn::Mul(scale, code));
  else if constexpr (!F::kHasMinimum) return hn::Mul(scale, code);
  else if constexpr (F::kAddsMinimum) return hn::MulAdd(scale, code, minimum);
  else return hn::MulSub(scale, code, minimum);
}

template <class F>
HWY_INLINE V table_of() {
  if constexpr (F::kIsNibble && kLooksUpInRegisters) return hn::Load(D(), kMeanings<F>.of);
  else return hn::Zero(D());
}

template <class F, int kByte>
HWY_INLINE V number(U codes, V scale, [[maybe_unused]] V minimum, [[maybe_unused]] V table) {
  if constexpr (F::kHasOwnNumber) {
    return F::round(F::template number<kByte>(codes, scale));
  } else if constexpr (F::kHasZero) {
    return F::round(hn::Mul(scale, hn::Sub(above_2_23(hn::ShiftRight<8 * kByte>(codes)), minimum)));
  } else {
    return scaled<F>(meaning<F, kByte>(codes, table), scale, minimum);
  }
}

// for_each_number() of a run that is known to be odd or even where that matters.
template <class F, int kVecs, typename Function>
HWY_INLINE void for_each_number_of(const SectionReader (&s)[kVecs], int64_t run, V table, const Function& f) {
  V scale[kVecs], minimum[kVecs];
  const auto read_scales = [&](int half) HWY_ATTR {
    LLMB_UNROLL for (int v = 0; v < kVecs; ++v) {
      scale[v] = F::scale(s[v], run, half);
      if constexpr (F::kHasMinimum) minimum[v] = F::minimum(s[v], run, half);
      if constexpr (F::kHasZero) minimum[v] = F::zero(s[v]);
    }
  };
  const auto read_scales_of = [&](int i) HWY_ATTR {
    if constexpr (F::kIsIndexed)
      LLMB_UNROLL for (int v = 0; v < kVecs; ++v) scale[v] = F::scale_of(s[v], i), minimum[v] = F::zero_of(s[v], i);
  };
  U kept[kVecs];
  if constexpr (F::kIsSparse24)
    LLMB_UNROLL for (int v = 0; v < kVecs; ++v) kept[v] = F::kept(s[v]);
  else if constexpr (!F::kIsIndexed)
    read_scales(0);
  LLMB_UNROLL for (int word = 0; word < 8; ++word) {
    if (F::kIsByHalves && word == 4) read_scales(1);
    U codes[kVecs];
    LLMB_UNROLL for (int v = 0; v < kVecs; ++v) {
      if constexpr (kReadsWords<F>) codes[v] = s[v].word(F::word_at(run, word));
      else codes[v] = F::codes(s[v], run, word);
    }
    const auto give = [&](auto byte) HWY_ATTR {
      constexpr int kByte = decltype(byte)::value;
      read_scales_of(4 * word + kByte);
      LLMB_UNROLL for (int v = 0; v < kVecs; ++v) {
        if constexpr (F::kIsSparse24) {
          const U bits = hn::ShiftRightSame(kept[v], 4 * word);
          f(4 * word + kByte, v, F::template number<kByte>(F::first(codes[v]), F::second(codes[v]), bits));
        } else if constexpr (kReadsWords<F>) {
          f(4 * word + kByte, v,
            scaled<F>(meaning_in_word<F, kByte>(codes[v], F::bit_at(run, word), table), scale[v], minimum[v]));
        } else {
          f(4 * word + kByte, v, number<F, kByte>(codes[v], scale[v], minimum[v], table));
        }
      }
    };
    give(std::integral_constant<int, 0>());
    give(std::integral_constant<int, 1>());
    give(std::integral_constant<int, 2>());
    give(std::integral_constant<int, 3>());
  }
}

// Calls f(k, v, number) for one run of vectors of columns: number of vector v.
template <class F, int kVecs, typename Function>
HWY_INLINE void for_each_number(const SectionReader (&s)[kVecs], int64_t run, V table, const Function& f) {
  if constexpr (kReadsWords<F> && F::kIsPaired) {
    if ((run & 1) != 0) for_each_number_of<F>(s, run | 1, table, f);
    else for_each_number_of<F>(s, run & ~int64_t{1}, table, f);
  } else {
    for_each_number_of<F>(s, run, table, f);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace llmb::cpu
HWY_AFTER_NAMESPACE();

#endif
