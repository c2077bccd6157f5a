// Panels of w4a8 (number_panels.h) as int8 words, for the products over these. Compiled once for each SIMD target; include
// after hwy/foreach_target.h.

#if defined(LLMB_KERNELS_CPU_W4A8_WORDS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LLMB_KERNELS_CPU_W4A8_WORDS_INL_H_
#undef LLMB_KERNELS_CPU_W4A8_WORDS_INL_H_
#else
#define LLMB_KERNELS_CPU_W4A8_WORDS_INL_H_
#endif

#include "base/per_thread.h"
#include "kernels/cpu/aligned_buffer.h"
#include "kernels/cpu/block_panel.h"
#include "kernels/cpu/linear_amx.h"
#include "kernels/cpu/linear_task.h"
#include "kernels/cpu/number_panels.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace llmb::cpu {
namespace HWY_NAMESPACE {

using Words = hn::VFromD<DU>;

// codes · scale − zero in each of four bytes, codes below 16, scale up to 16: products of bytes do not reach the next one.
HWY_INLINE Words w4a8_bytes(Words codes, Words scales, Words zeros) {
#if HWY_TARGET == HWY_SCALAR
  const DU d;
  const Words top = hn::Set(d, 0x80808080u), a = hn::Mul(codes, hn::And(scales, hn::Set(d, 0xffu)));
  return hn::Xor(hn::Sub(hn::Or(a, top), hn::AndNot(top, zeros)), hn::AndNot(hn::Xor(a, zeros), top));
#else
  const hn::Repartition<uint16_t, DU> d16;
  const hn::Repartition<uint8_t, DU> d8;
  const auto products = hn::Mul(hn::BitCast(d16, codes), hn::BitCast(d16, scales));
  return hn::BitCast(DU(), hn::Sub(hn::BitCast(d8, products), hn::BitCast(d8, zeros)));
#endif
}

// Columns [column_begin, column_end), multiples of 16, of so many groups; asks for what lies kBlockFetchBytes behind.
HWY_INLINE void w4a8_words(const uint8_t* groups, int64_t num_groups, int64_t column_begin, int64_t column_end,
                           uint32_t (*words)[PackedLinear::kPanelWidth]) {
  constexpr int64_t kWidth = PackedLinear::kPanelWidth, kWords = kNumberGroup / 8;
  const DU d;
  const hn::Rebind<uint8_t, DU> bytes;
  const Words nibbles = hn::Set(d, 0x0f0f0f0fu);
  for (int64_t g = 0; g < num_groups; ++g, groups += kNumberGroupBytes, words += 2 * kWords) {
    for (int64_t line = 0; line < kNumberGroupBytes; line += 64)
      __builtin_prefetch(groups + kBlockFetchBytes + line, 0, 2);
    const auto* const from = reinterpret_cast<const uint32_t*>(groups);
    const uint8_t* const scale_bytes = groups + kWords * kWidth * 4;
    for (int64_t c = column_begin; c < column_end; c += kLanes) {
      const Words scale = hn::PromoteTo(d, hn::LoadU(bytes, scale_bytes + c));
      const Words scales = hn::Or(scale, hn::ShiftLeft<16>(scale));
      const Words zero = hn::PromoteTo(d, hn::LoadU(bytes, scale_bytes + kWidth + c));
      const Words two = hn::Or(zero, hn::ShiftLeft<8>(zero)), zeros = hn::Or(two, hn::ShiftLeft<16>(two));
      LLMB_UNROLL for (int64_t w = 0; w < kWords; ++w) {
        const Words codes = hn::LoadU(d, from + w * kWidth + c);
        hn::StoreU(w4a8_bytes(hn::And(codes, nibbles), scales, zeros), d, &words[2 * w][c]);
        hn::StoreU(w4a8_bytes(hn::And(hn::ShiftRight<4>(codes), nibbles), scales, zeros), d, &words[2 * w + 1][c]);
      }
    }
  }
}

#if LLMB_HAS_AMX_CODE && HWY_TARGET <= HWY_AVX3
// A thread's own memory with the int8 words of a task's panel.
const uint8_t* whole_w4a8_panel(const LinearTask& t, int64_t num_words) {
  AlignedBuffer& buffer = per_thread<AlignedBuffer>([] {});
  const int64_t num_groups = ceil_div(num_words, kNumberGroup / 4),
                bytes = num_groups * kNumberGroup * PackedLinear::kPanelWidth;
  if (buffer.size_bytes() < bytes) buffer = AlignedBuffer(bytes);
  w4a8_words(t.weight->panel(t.panel), num_groups, t.column_begin, t.column_end,
             reinterpret_cast<uint32_t(*)[PackedLinear::kPanelWidth]>(buffer.data()));
  return buffer.data();
}
#endif

}  // namespace HWY_NAMESPACE
}  // namespace llmb::cpu
HWY_AFTER_NAMESPACE();

#endif
