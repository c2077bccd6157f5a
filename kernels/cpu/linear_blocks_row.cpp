// linear of one row over blocks of few bits: each number is multiplied where it was decoded, in registers, in the same
// multiply-add chain over k as by linear_blocks.cpp. Vectors of columns take turns, so that no chain waits.
#include "kernels/cpu/block_panel.h"
#include "kernels/cpu/linear_task.h"
#include "kernels/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/linear_blocks_row.cpp"
#include "hwy/foreach_target.h"  // must come before highway.h
#include "kernels/cpu/block_numbers-inl.h"

HWY_BEFORE_NAMESPACE();
namespace llmb::cpu {
namespace HWY_NAMESPACE {

template <class F>
HWY_NOINLINE void multiply_row(const LinearTask& t, BlockFormat format, float* sums) {
  constexpr int kVecs = 2;  // four are not faster
  const D d;
  const BlockSection& section = block_section(format);
  const int64_t runs = block_size(format).size / kRun, num_k = t.weight->in_features();
  const uint8_t* const panel = t.weight->panel(t.panel);
  const uint8_t* const sections_end = panel + block_panel_bytes(format, num_k);
  const float* const x = t.x + t.row_begin * num_k;
  const V table = table_of<F>();
  for (int64_t k = 0; k < num_k; k += kRun) {
    const int64_t run = k / kRun;
    const uint8_t* const data = panel + run / runs * section.size();
    const uint8_t* const ahead = panel + run * section.size() / runs + fetch_bytes_ahead(section, runs);
    for (int64_t line = 0; line < section.size() / runs; line += 64) __builtin_prefetch(ahead + line, 0, 2);
    for (int64_t column = t.column_begin; column < t.column_end; column += kVecs * kLanes) {
      SectionReader s[] = {{section, data, column}, {section, data, column + kLanes}};
      if constexpr (F::kIsIndexed)
        for (int v = 0; v < kVecs; ++v) s[v].index(sections_end, num_k, k, column + v * kLanes);
      V acc[kVecs] = {hn::Load(d, sums + column), hn::Load(d, sums + column + kLanes)};
      for_each_number<F>(s, run % runs, table, [&](int i, int v, V number) HWY_ATTR {
        acc[v] = hn::MulAdd(hn::Set(d, x[k + i]), number, acc[v]);
      });
      LLMB_UNROLL for (int v = 0; v < kVecs; ++v) hn::Store(acc[v], d, sums + column + v * kLanes);
    }
  }
}

void block_row_task_target(const LinearTask& t) {
  HWY_ALIGN float sums[PackedLinear::kPanelWidth] = {};
  const D d;
  const BlockFormat format = t.weight->panel_blocks(t.panel);
  with_format(format, [&](auto f) HWY_ATTR { multiply_row<decltype(f)>(t, format, sums); });
  const TileSums to = tile_sums(t, 0, true, true, sums);
  for (int64_t c = t.column_begin; c < t.column_end; c += kLanes) {
    V sum = hn::Load(d, sums + c);
    if (to.bias != nullptr) sum = hn::Add(sum, hn::LoadU(d, to.bias + c));
    hn::StoreU(sum, d, to.to + c);
  }
  copy_narrow_panel(t, sums);
}

}  // namespace HWY_NAMESPACE
}  // namespace llmb::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace llmb::cpu {

HWY_EXPORT(block_row_task_target);

void block_row_task(const LinearTask& task) { HWY_DYNAMIC_DISPATCH(block_row_task_target)(task); }

}  // namespace llmb::cpu
#endif
