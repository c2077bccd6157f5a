// A stretch of a panel of blocks (block_panel.h) as bytes and fp32 scales, for products with int8 activations. Compiled
// once for each SIMD target; include after hwy/foreach_target.h.
//
// On x86 the bytes are unsigned, an offset is added to codes; elsewhere they are signed.

#ifndef LLMB_KERNELS_CPU_BLOCK_STRETCH_ONCE_
#define LLMB_KERNELS_CPU_BLOCK_STRETCH_ONCE_
#include <algorithm>
#include <cstdint>

#include "kernels/cpu/block_panel.h"
#include "kernels/cpu/linear.h"

namespace llmb::cpu {

constexpr int64_t kColumns = PackedLinear::kPanelWidth;
constexpr int kMaxParts = 16, kStretchWords = kMaxBlockSize / 4;

// Up to 256 k of a panel.
struct Stretch {
  alignas(64) uint32_t codes[kStretchWords][kColumns];  // four k each
  alignas(64) float scales[kMaxParts][kColumns];
  alignas(64) float minima[kMaxParts][kColumns];  // times T
  int num_parts, part_words;
  bool is_large, has_minima;  // blocks of 256
  int offset;                 // added to codes
  int code_bits;              // with it
};

// The same k of a row of x.
struct RowStretch {
  alignas(64) int32_t start[kMaxParts];  // what sums of a part begin with
  float sums[kMaxParts];                 // T, of small blocks times the scale of x
  float scales[kMaxParts];               // of x; of a large block the first
};

// Rows of a tile: their int8 numbers from the stretch on, and the rest.
struct TileOfX {
  const uint8_t* numbers;
  int64_t stride;
  const RowStretch* rows;
};

// Asks for a range of weights while others are multiplied, each line once, evenly over turns: as many requests at once
// would wait for each other, and what reads next for them.
class StretchFetch {
 public:
  // A turn asks for a line at most.
  StretchFetch(const uint8_t* begin, int64_t bytes, int64_t turns)
      : due_(begin), line_(begin), step_(std::min<int64_t>(bytes / std::max<int64_t>(1, turns) + 1, kLine)) {}
  inline void turn() {
    due_ += step_;
    if (due_ < line_) return;
    __builtin_prefetch(line_, 0, 2);
    line_ += kLine;
  }

 private:
  static constexpr int64_t kLine = 64;
  const uint8_t *due_, *line_;
  int64_t step_;
};

}  // namespace llmb::cpu
#endif

#if defined(LLMB_KERNELS_CPU_BLOCK_STRETCH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LLMB_KERNELS_CPU_BLOCK_STRETCH_INL_H_
#undef LLMB_KERNELS_CPU_BLOCK_STRETCH_INL_H_
#else
#define LLMB_KERNELS_CPU_BLOCK_STRETCH_INL_H_
#endif

#include "kernels/cpu/block_formats-inl.h"

HWY_BEFORE_NAMESPACE();
namespace llmb::cpu {
namespace HWY_NAMESPACE {

#if HWY_TARGET <= HWY_AVX2 && HWY_ARCH_X86
constexpr bool kIsUnsigned = true;
#else
constexpr bool kIsUnsigned = false;
#endif

// The offset that makes the numbers of codes unsigned: 128 for those of eight bits.
template <class F>
constexpr int offset_of() {
  if (!F::kHasTable) return F::kOffset;
  return F::kTable[0] < -16 ? 128 : 16;  // IQ4's, MXFP4's
}

// The bits of codes with it.
template <class F>
constexpr int byte_bits() {
  if (!F::kHasTable) return F::kCodeBits;
  return offset_of<F>() == 128 ? 8 : 5;
}

// The bytes of codes of four bits that a table gives a meaning.
template <class F>
struct ByteTable {
  alignas(16) uint8_t of[16];
  constexpr ByteTable() : of() {
    for (int i = 0; i < 16; ++i)
      of[i] = static_cast<uint8_t>((!F::kHasTable ? i : F::kTable[i]) + (kIsUnsigned ? offset_of<F>() : 0));
  }
};
template <class F>
constexpr ByteTable<F> kByteTable;

template <class F>
HWY_INLINE U as_bytes(U codes) {
  if constexpr (F::kHasTable) {
#if HWY_TARGET == HWY_SCALAR
    const uint32_t word = hn::GetLane(codes);
    uint32_t bytes = 0;
    for (int i = 0; i < 32; i += 8) bytes |= uint32_t{kByteTable<F>.of[word >> i & 15]} << i;
    return hn::Set(DU(), bytes);
#else
    const hn::Repartition<uint8_t, DU> d8;
    return hn::BitCast(DU(), hn::TableLookupBytes(hn::LoadDup128(d8, kByteTable<F>.of), hn::BitCast(d8, codes)));
#endif
  } else if constexpr (kIsUnsigned || F::kOffset == 0) {
    return codes;
  } else {
    const U top = hn::Set(DU(), 0x80808080u);
    if constexpr (F::kOffset == 128) return hn::Xor(codes, top);
    else return hn::Xor(hn::Sub(hn::Or(codes, top), hn::Set(DU(), F::kOffset * 0x01010101u)), top);
  }
}

// Asks for what comes fetch_bytes_ahead() behind part `part` of `parts` of a section.
HWY_INLINE void fetch_share(const BlockSection& section, int64_t runs, const uint8_t* data, int64_t part,
                            int64_t parts) {
  const uint8_t* const ahead = data + fetch_bytes_ahead(section, runs);
  const int64_t end = (part + 1) * section.size() / parts;
  for (int64_t line = part * section.size() / parts; line < end; line += 64) __builtin_prefetch(ahead + line, 0, 2);
}

// num_runs: a multiple of F::kRuns. is_there: it has been asked for.
template <class F>
HWY_NOINLINE void unpack(const BlockSection& section, const uint8_t* panel, int64_t k, int64_t num_runs,
                         int64_t column_begin, int64_t column_end, bool is_there, Stretch* to) {
  constexpr int kHalves = F::kIsByHalves ? 2 : 1;
  to->num_parts = static_cast<int>(num_runs) * kHalves;
  to->part_words = 8 / kHalves;
  to->has_minima = F::kHasMinimum;
  to->is_large = F::kRuns != 1;
  to->offset = kIsUnsigned ? offset_of<F>() : 0;
  to->code_bits = byte_bits<F>();
  const uint8_t* data = panel + k / kRun / F::kRuns * section.size();
  for (int64_t first = 0; first < num_runs; first += F::kRuns, data += section.size()) {
    for (int64_t column = column_begin; column < column_end; column += kLanes) {
      if (!is_there) fetch_share(section, F::kRuns, data, column / kLanes, kColumns / kLanes);
      const SectionReader s(section, data, column);
      LLMB_UNROLL for (int run = 0; run < F::kRuns; ++run) {
        auto* const codes = &to->codes[(first + run) * 8];
        LLMB_UNROLL for (int word = 0; word < 8; ++word)
            hn::StoreU(as_bytes<F>(F::codes(s, run, word)), DU(), &codes[word][column]);
        LLMB_UNROLL for (int half = 0; half < kHalves; ++half) {
          const int64_t part = (first + run) * kHalves + half;
          hn::StoreU(F::scale(s, run, half), D(), &to->scales[part][column]);
          if constexpr (F::kHasMinimum) {
            const V minimum = F::minimum(s, run, half);
            hn::StoreU(F::kAddsMinimum ? minimum : hn::Neg(minimum), D(), &to->minima[part][column]);
          }
        }
      }
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace llmb::cpu
HWY_AFTER_NAMESPACE();

#endif
