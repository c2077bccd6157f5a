// linear over blocks of few bits as files store them: a stretch of the panel becomes fp32 in a cache, and is multiplied
// as fp32 weights are. So outputs have the bytes that the dequantised matrix would give.
//
// All products of a scale and a code are exact in fp32 (11 bits of an fp16 scale, at most 8 of a part's and 7 of a
// code, never more than 24 together), so that a minimum may be subtracted by a fused multiply-add.
#include "kernels/cpu/block_panel.h"
#include "kernels/cpu/linear_task.h"
#include "kernels/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/linear_blocks.cpp"
#include "hwy/foreach_target.h"  // must come before highway.h
#include "kernels/cpu/linear_tiles-inl.h"

HWY_BEFORE_NAMESPACE();
namespace llmb::cpu {
namespace HWY_NAMESPACE {

constexpr int64_t kRun = 32;  // numbers of a row that are decoded at a time: eight words of four

// A section from a vector of columns on.
struct SectionReader {
  const uint8_t* words_at;
  const uint8_t* halves_at;
  const uint8_t* bytes_at;

  SectionReader(const BlockSection& s, const uint8_t* section, int64_t column)
      : words_at(section + column * 4),
        halves_at(section + s.halves() + column * 2),
        bytes_at(section + s.scale_bytes() + column) {}
  HWY_INLINE U word(int64_t i) const {
    return hn::LoadU(DU(), reinterpret_cast<const uint32_t*>(words_at + i * kWidth * 4));
  }
  HWY_INLINE V half(int64_t i) const {
    const hn::Rebind<hwy::float16_t, D> d16;
    return hn::PromoteTo(D(), hn::LoadU(d16, reinterpret_cast<const hwy::float16_t*>(halves_at + i * kWidth * 2)));
  }
  HWY_INLINE VI bytes(int64_t i) const {
    return hn::PromoteTo(DI(), hn::LoadU(hn::Rebind<uint8_t, DI>(), bytes_at + i * kWidth));
  }
  HWY_INLINE V unsigned_byte(int64_t i) const { return hn::ConvertTo(D(), bytes(i)); }
  HWY_INLINE V signed_byte(int64_t i) const {
    const hn::Rebind<int8_t, DI> d8;
    return hn::ConvertTo(D(),
                         hn::PromoteTo(DI(), hn::LoadU(d8, reinterpret_cast<const int8_t*>(bytes_at + i * kWidth))));
  }
};

HWY_INLINE U low_bits(U words, uint32_t mask) { return hn::And(words, hn::Set(DU(), mask)); }
// The four bits of each byte that begin at bit 0 or 4.
HWY_INLINE U nibbles(U words, int first_bit) { return low_bits(hn::ShiftRightSame(words, first_bit), 0x0f0f0f0f); }
// Bits 0 to 3, each to bit 4 of a byte.
HWY_INLINE U spread_fifth_bits(U bits) {
  return low_bits(hn::Mul(low_bits(bits, 15), hn::Set(DU(), 0x00204081u << 4)), 0x10101010);
}

// A format has
//   codes(): four unsigned codes, a byte each, of word `word` (k from 4 · word on) of run `run` of a section
//   kOffset: the code that means 0; or kTable: what codes, of four bits (kIsNibble), mean
//   scale(), minimum(): of half `half` (16 k) of a run; number = scale · code, minus or plus the minimum
struct Format {
  static constexpr int kOffset = 0;
  static constexpr const int8_t* kTable = nullptr;
  static constexpr bool kIsNibble = false, kHasMinimum = false, kAddsMinimum = false, kIsByHalves = false;
};

// 32 codes in 16 bytes: low halves of all bytes, then high ones. kFirst: words in front of them.
template <int kFirst>
struct Nibbles32 : Format {
  static constexpr bool kIsNibble = true;
  static HWY_INLINE U codes(const SectionReader& s, int64_t, int word) {
    return nibbles(s.word(kFirst + word % 4), word / 4 * 4);
  }
  static HWY_INLINE V scale(const SectionReader& s, int64_t, int) { return s.half(0); }
  static HWY_INLINE V minimum(const SectionReader& s, int64_t, int) { return s.half(1); }
};

struct Q8_0 : Format {
  static constexpr int kOffset = 128;
  static HWY_INLINE U codes(const SectionReader& s, int64_t, int word) {
    return hn::Xor(s.word(word), hn::Set(DU(), 0x80808080));
  }
  static HWY_INLINE V scale(const SectionReader& s, int64_t, int) { return s.half(0); }
};
struct Q4_0 : Nibbles32<0> {
  static constexpr int kOffset = 8;
};
struct Q4_1 : Nibbles32<0> {
  static constexpr bool kHasMinimum = true, kAddsMinimum = true;
};
struct Q5_1 : Nibbles32<1> {
  static constexpr bool kIsNibble = false, kHasMinimum = true, kAddsMinimum = true;
  static HWY_INLINE U codes(const SectionReader& s, int64_t run, int word) {
    return hn::Or(Nibbles32<1>::codes(s, run, word), spread_fifth_bits(hn::ShiftRightSame(s.word(0), 4 * word)));
  }
};
struct Q5_0 : Q5_1 {
  static constexpr int kOffset = 16;
  static constexpr bool kHasMinimum = false;
};
struct IQ4_NL : Nibbles32<0> {
  static constexpr const int8_t* kTable = kIq4Values;
};
struct MXFP4 : Nibbles32<0> {
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
  static constexpr bool kIsNibble = true;
  static HWY_INLINE U codes(const SectionReader& s, int64_t run, int word) {
    return nibbles(s.word(kFirst + run / 2 * 8 + word), static_cast<int>(run % 2 * 4));
  }
};
struct Q4_K : NibbleRuns<0> {
  static constexpr bool kHasMinimum = true;
  static HWY_INLINE V scale(const SectionReader& s, int64_t run, int) {
    return hn::Mul(s.half(0), s.unsigned_byte(run));
  }
  static HWY_INLINE V minimum(const SectionReader& s, int64_t run, int) {
    return hn::Mul(s.half(1), s.unsigned_byte(8 + run));
  }
};
struct Q5_K : Q4_K {
  static constexpr bool kIsNibble = false;
  static HWY_INLINE U codes(const SectionReader& s, int64_t run, int word) {
    const U high = low_bits(hn::ShiftRightSame(s.word(word), static_cast<int>(run)), 0x01010101);
    return hn::Or(NibbleRuns<8>::codes(s, run, word), hn::ShiftLeft<4>(high));
  }
};
struct IQ4_XS : Format {
  static constexpr bool kIsNibble = true;
  static constexpr const int8_t* kTable = kIq4Values;
  static HWY_INLINE U codes(const SectionReader& s, int64_t run, int word) {
    return nibbles(s.word(run * 4 + word % 4), word / 4 * 4);
  }
  static HWY_INLINE V scale(const SectionReader& s, int64_t run, int) { return hn::Mul(s.half(0), s.signed_byte(run)); }
};

// Halves of 128 k: four runs, two bits each, share 32 bytes. kFirst: words in front of them.
template <int kFirst>
HWY_INLINE U two_bits(const SectionReader& s, int64_t run, int word) {
  return low_bits(hn::ShiftRightSame(s.word(kFirst + run / 4 * 8 + word), static_cast<int>(run % 4 * 2)), 0x03030303);
}
struct Q6_K : Format {
  static constexpr int kOffset = 32;
  static constexpr bool kIsByHalves = true;
  static HWY_INLINE U codes(const SectionReader& s, int64_t run, int word) {
    const U low = nibbles(s.word(run / 4 * 16 + run % 2 * 8 + word), static_cast<int>(run / 2 % 2 * 4));
    return hn::Or(low, hn::ShiftLeft<4>(two_bits<32>(s, run, word)));
  }
  static HWY_INLINE V scale(const SectionReader& s, int64_t run, int half) {
    return hn::Mul(s.half(0), s.signed_byte(2 * run + half));
  }
};
struct Q3_K : Format {
  static constexpr int kOffset = 4;
  static constexpr bool kIsByHalves = true;
  static HWY_INLINE U codes(const SectionReader& s, int64_t run, int word) {
    const U third = low_bits(hn::ShiftRightSame(s.word(word), static_cast<int>(run)), 0x01010101);
    return hn::Or(two_bits<8>(s, run, word), hn::ShiftLeft<2>(third));
  }
  static HWY_INLINE V scale(const SectionReader& s, int64_t run, int half) { return Q6_K::scale(s, run, half); }
};
struct Q2_K : Format {
  static constexpr bool kIsByHalves = true, kHasMinimum = true;
  static HWY_INLINE U codes(const SectionReader& s, int64_t run, int word) { return two_bits<0>(s, run, word); }
  static HWY_INLINE V scale(const SectionReader& s, int64_t run, int half) {
    return hn::Mul(s.half(0), hn::ConvertTo(D(), hn::And(s.bytes(2 * run + half), hn::Set(DI(), 15))));
  }
  static HWY_INLINE V minimum(const SectionReader& s, int64_t run, int half) {
    return hn::Mul(s.half(1), hn::ConvertTo(D(), hn::ShiftRight<4>(s.bytes(2 * run + half))));
  }
};

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
    for (int i = 0; i < 16; ++i) of[i] = F::kTable == nullptr ? static_cast<float>(i - F::kOffset) : F::kTable[i];
  }
};
template <class F>
constexpr Meanings<F> kMeanings;

// The numbers of byte kByte of words of codes. table: of codes of four bits, where registers can be looked up in.
template <class F, int kByte>
HWY_INLINE V meaning(U codes, [[maybe_unused]] V table) {
  const U shifted = hn::ShiftRight<8 * kByte>(codes);
  if constexpr (F::kIsNibble && kLooksUpInRegisters) {
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
    return V{_mm512_permutexvar_ps(shifted.raw, table.raw)};  // looks at four bits
#endif
  } else if constexpr (F::kTable != nullptr) {
    return hn::GatherIndex(D(), kMeanings<F>.of, hn::BitCast(DI(), hn::And(shifted, hn::Set(DU(), 15))));
  } else {
    // A float whose lowest bits count ones: a code is converted by being put there.
    const U one_step = hn::OrAnd(hn::Set(DU(), 0x4b000000), shifted, hn::Set(DU(), 255));
    return hn::Sub(hn::BitCast(D(), one_step), hn::Set(D(), 0x1p23f + F::kOffset));
  }
}

// One run of a vector of columns: out[k][kWidth].
template <class F>
HWY_INLINE void decode_run(const SectionReader& s, int64_t run, V table, float* out) {
  V scale = F::scale(s, run, 0), minimum = scale;
  if constexpr (F::kHasMinimum) minimum = F::minimum(s, run, 0);
  LLMB_UNROLL for (int word = 0; word < 8; ++word) {
    if (F::kIsByHalves && word == 4) {
      scale = F::scale(s, run, 1);
      if constexpr (F::kHasMinimum) minimum = F::minimum(s, run, 1);
    }
    const U codes = F::codes(s, run, word);
    const auto store = [&](auto byte) HWY_ATTR {
      constexpr int kByte = decltype(byte)::value;
      const V code = meaning<F, kByte>(codes, table);
      V number;
      if constexpr (!F::kHasMinimum) number = hn::Mul(scale, code);
      else if constexpr (F::kAddsMinimum) number = hn::MulAdd(scale, code, minimum);
      else number = hn::MulSub(scale, code, minimum);
      hn::StoreU(number, D(), out + (4 * word + kByte) * kWidth);
    };
    store(std::integral_constant<int, 0>());
    store(std::integral_constant<int, 1>());
    store(std::integral_constant<int, 2>());
    store(std::integral_constant<int, 3>());
  }
}

// Numbers [k_begin, k_end) of columns [column_begin, column_end) of a panel.
struct Stretch {
  BlockFormat format;
  const uint8_t* panel;
  int64_t k_begin, k_end, column_begin, column_end;
};

template <class F>
HWY_NOINLINE void decode(const Stretch& t, float* out) {
  const BlockSection& section = block_section(t.format);
  const int64_t runs = block_size(t.format).size / kRun;
  V table = hn::Zero(D());
  if constexpr (F::kIsNibble && kLooksUpInRegisters) table = hn::Load(D(), kMeanings<F>.of);
  for (int64_t k = t.k_begin; k < t.k_end; k += kRun, out += kRun * kWidth) {
    const int64_t run = k / kRun;
    const uint8_t* data = t.panel + run / runs * section.size();
    for (int64_t column = t.column_begin; column < t.column_end; column += kLanes)
      decode_run<F>(SectionReader(section, data, column), run % runs, table, out + column);
  }
}

void decode_stretch(const Stretch& t, float* out) {
  switch (t.format) {
    case BlockFormat::kNone:
      std::memcpy(out, t.panel + t.k_begin * kWidth * 4, static_cast<size_t>((t.k_end - t.k_begin) * kWidth * 4));
      return;
    case BlockFormat::kQ8_0:
      return decode<Q8_0>(t, out);
    case BlockFormat::kQ4_0:
      return decode<Q4_0>(t, out);
    case BlockFormat::kQ4_1:
      return decode<Q4_1>(t, out);
    case BlockFormat::kQ5_0:
      return decode<Q5_0>(t, out);
    case BlockFormat::kQ5_1:
      return decode<Q5_1>(t, out);
    case BlockFormat::kQ2_K:
      return decode<Q2_K>(t, out);
    case BlockFormat::kQ3_K:
      return decode<Q3_K>(t, out);
    case BlockFormat::kQ4_K:
      return decode<Q4_K>(t, out);
    case BlockFormat::kQ5_K:
      return decode<Q5_K>(t, out);
    case BlockFormat::kQ6_K:
      return decode<Q6_K>(t, out);
    case BlockFormat::kIQ4_NL:
      return decode<IQ4_NL>(t, out);
    case BlockFormat::kIQ4_XS:
      return decode<IQ4_XS>(t, out);
    case BlockFormat::kMXFP4:
      return decode<MXFP4>(t, out);
  }
}

void decode_block_panel_target(BlockFormat format, const uint8_t* panel, int64_t k_begin, int64_t k_end,
                               int64_t column_begin, int64_t column_end, float* out) {
  decode_stretch({format, panel, k_begin, k_end, column_begin, column_end}, out);
}

// Few rows wait for memory: short stretches, so that decoding and multiplying overlap. More rows share what was decoded
// for one of them.
void block_linear_task_target(const LinearTask& t) {
  HWY_ALIGN float sums[kLinearTaskRows * kWidth];
  HWY_ALIGN float wide[kMaxLinearBlockK * kWidth];
  const BlockFormat format = t.weight->panel_blocks(t.panel);
  const uint8_t* data = t.weight->panel(t.panel);
  const int64_t num_k = t.weight->in_features(), rows = t.row_end - t.row_begin;
  const int64_t num_tiles = ceil_div(rows, kTallTileRows), columns = t.column_end - t.column_begin;
  const int64_t block_k = num_tiles == 1 ? kLoneTileK : even_block(num_k);
  const int64_t tile_width = tile_columns(num_tiles == 1 ? static_cast<int>(rows) : kTallTileRows);
  const int64_t passes = std::max<int64_t>(1, columns / tile_width);
  for (int64_t k = 0; k < num_k; k += block_k) {
    const Block block{k, std::min(num_k, k + block_k), sums};
    const bool is_last = block.k_end == num_k;
    const uint8_t* next =
        is_last ? t.next : data + block_panel_bytes(format, kMaxBlockSize) * block.k_end / kMaxBlockSize;
    const int64_t next_bytes = block_panel_bytes(format, kMaxBlockSize) * block_k / kMaxBlockSize;
    FetchAhead ahead(next, next_bytes, passes * num_tiles * (block.k_end - k) / WidePanel::kStep);
    const float* numbers = wide;
    if (format == BlockFormat::kNone) numbers = reinterpret_cast<const float*>(data) + k * kWidth;
    else decode_stretch({format, data, k, block.k_end, t.column_begin, t.column_end}, wide);
    run_block(t, WidePanel(numbers, k), block, ahead);
  }
  copy_narrow_panel(t, sums);
}

}  // namespace HWY_NAMESPACE
}  // namespace llmb::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace llmb::cpu {

HWY_EXPORT(block_linear_task_target);
HWY_EXPORT(decode_block_panel_target);

void block_linear_task(const LinearTask& task) { HWY_DYNAMIC_DISPATCH(block_linear_task_target)(task); }

void decode_block_panel(BlockFormat format, const uint8_t* panel, int64_t k_begin, int64_t k_end, int64_t column_begin,
                        int64_t column_end, float* out) {
  HWY_DYNAMIC_DISPATCH(decode_block_panel_target)
  (format, panel, k_begin, k_end, column_begin, column_end, out);
}

}  // namespace llmb::cpu
#endif
