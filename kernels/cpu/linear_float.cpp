// linear over float weights: arithmetic in fp32.
//
// The odd one of a pair of bf16 weights comes first where x was rounded to bf16, too: the order, and so the bytes, of
// AVX-512-BF16's dot product.
#include "kernels/cpu/linear_task.h"
#include "kernels/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/linear_float.cpp"
#include "hwy/foreach_target.h"  // must come before highway.h
#include "kernels/cpu/linear_tiles-inl.h"

HWY_BEFORE_NAMESPACE();
namespace llmb::cpu {
namespace HWY_NAMESPACE {

struct F32Panel : PanelReader {
  static constexpr int kStep = 1, kStepBytes = kWidth * 4, kWordBytes = 4;
  static constexpr bool kWidens = false;
  const uint8_t* data;

  explicit F32Panel(const uint8_t* panel) : data(panel) {}
  const uint8_t* words(int64_t k, int64_t column) const { return data + k * kStepBytes + column * kWordBytes; }
  HWY_INLINE V load(const uint8_t* at) const { return hn::LoadU(D(), reinterpret_cast<const float*>(at)); }
  template <int kIndex>
  HWY_INLINE V value(V word, NoConstants) const {
    return word;
  }
  static int64_t bytes(int64_t num_k) { return num_k * kStepBytes; }
};

struct F16Panel : PanelReader {
  using Wide = WidePanel;
  static constexpr int kStep = 1, kStepBytes = kWidth * 2, kWordBytes = 2;
  const uint8_t* data;

  explicit F16Panel(const uint8_t* panel) : data(panel) {}
  const uint8_t* words(int64_t k, int64_t column) const { return data + k * kStepBytes + column * kWordBytes; }
  HWY_INLINE V load(const uint8_t* at) const {
    const hn::Rebind<hwy::float16_t, D> d16;
    return hn::PromoteTo(D(), hn::LoadU(d16, reinterpret_cast<const hwy::float16_t*>(at)));
  }
  template <int kIndex>
  HWY_INLINE V value(V word, NoConstants) const {
    return word;
  }
  static int64_t bytes(int64_t num_k) { return num_k * kStepBytes; }
};

struct BF16Panel : PanelReader {
  using Wide = WidePanel;
  static constexpr int kStep = 2, kStepBytes = kWidth * 4, kWordBytes = 4;
  const uint8_t* data;  // pairs of k

  explicit BF16Panel(const uint8_t* panel) : data(panel) {}
  const uint8_t* words(int64_t k, int64_t column) const { return data + k / 2 * kStepBytes + column * kWordBytes; }
  HWY_INLINE U load(const uint8_t* at) const { return hn::LoadU(DU(), reinterpret_cast<const uint32_t*>(at)); }
  template <int kIndex>
  HWY_INLINE V value(U word, NoConstants) const {
    if constexpr (kIndex == 0) return hn::BitCast(D(), hn::ShiftLeft<16>(word));
    else return hn::BitCast(D(), hn::And(word, hn::Set(DU(), 0xffff0000u)));
  }
  static int64_t bytes(int64_t num_k) { return ceil_div(num_k, 2) * kStepBytes; }
};

// With x rounded to bf16.
struct WideBF16PairPanel : WidePanel {
  static constexpr bool kIsOddFirst = true;
  using WidePanel::WidePanel;
};
struct BF16PairPanel : BF16Panel {
  static constexpr bool kIsOddFirst = true;
  using Wide = WideBF16PairPanel;
  using BF16Panel::BF16Panel;
};

// One instruction widens bf16. By AVX2, whose tiles have six rows, widening it again for each tile takes less than reading
// 32 bits: on an AMD EPYC 7003 1.24 times as fast with 12 rows, 1.09 with 24, the same from 64 on (2026-11-27).
template <typename Panel>
HWY_INLINE void run_bf16(const LinearTask& t, const Panel& panel) {
#if HWY_TARGET == HWY_AVX2
  run_blocks(t, panel);
#else
  run_widened(t, panel);
#endif
}

void float_linear_task_target(const LinearTask& t) {
  const uint8_t* data = t.weight->panel(t.panel);
  switch (t.weight->format()) {
    case PackedFormat::kF32:
      return run_blocks(t, F32Panel(data));
    case PackedFormat::kF16:
      return run_widened(t, F16Panel(data));
    case PackedFormat::kBF16:
      if (t.weight->rounds_x()) return run_bf16(t, BF16PairPanel(data));
      return run_bf16(t, BF16Panel(data));
    case PackedFormat::kInt8:
    case PackedFormat::kInt4:
    case PackedFormat::kW4A8:
    case PackedFormat::kBlocks:
      return;  // linear_int8.cpp, linear_int4.cpp, linear_blocks.cpp
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace llmb::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace llmb::cpu {

HWY_EXPORT(float_linear_task_target);

void float_linear_task(const LinearTask& task) { HWY_DYNAMIC_DISPATCH(float_linear_task_target)(task); }

}  // namespace llmb::cpu
#endif
