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

// Vectors of columns whose chains of sums go side by side.
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
constexpr int kRowVecs = 4;
#else
constexpr int kRowVecs = 2;
#endif

// A lone row's task and where it is: run `run`, whose numbers of x and section are these.
struct RowRun {
  const BlockSection& section;
  const uint8_t* data;
  int64_t runs, run;            // of a section, of the panel
  const uint8_t* sections_end;  // of the panel
  int64_t num_k;
  const float* x;
};

// Adds the products of a run with kVecs vectors of columns from `column` on to sums; asks for as many bytes meanwhile.
template <class F, int kVecs>
HWY_INLINE void multiply_run(const RowRun& at, int64_t column, V table, const uint8_t* reading, int64_t bytes,
                             RowFetch& fetch, float* sums) {
  const D d;
  SectionReader s[kVecs];
  V acc[kVecs];
  LLMB_UNROLL for (int v = 0; v < kVecs; ++v) {
    s[v] = SectionReader(at.section, at.data, column + v * kLanes);
    if constexpr (F::kIsIndexed) s[v].index(at.sections_end, at.num_k, at.run * kRun, column + v * kLanes);
    acc[v] = hn::Load(d, sums + column + v * kLanes);
  }
  for_each_number<F>(s, at.run % at.runs, table, [&](int i, int v, V number) HWY_ATTR {
    if (v == 0 && i % 4 == 0) fetch.turn(reading + bytes * (i / 4) / 8);
    acc[v] = hn::MulAdd(hn::Set(d, at.x[i]), number, acc[v]);
  });
  LLMB_UNROLL for (int v = 0; v < kVecs; ++v) hn::Store(acc[v], d, sums + column + v * kLanes);
}

template <class F>
HWY_NOINLINE void multiply_row(const LinearTask& t, BlockFormat format, float* sums) {
  const BlockSection& section = block_section(format);
  const int64_t runs = block_size(format).size / kRun, num_k = t.weight->in_features();
  const uint8_t* const panel = t.weight->panel(t.panel);
  const uint8_t* const sections_end = panel + block_panel_bytes(format, num_k);
  const float* const x = t.x + t.row_begin * num_k;
  const V table = table_of<F>();
  const int64_t scales_ahead = runs > 1 ? section.size() : 0;
  RowFetch fetch(panel + scales_ahead);
  const int64_t column_bytes = section.size() / runs / (t.column_end - t.column_begin) * kLanes;
  for (int64_t k = 0; k < num_k; k += kRun) {
    const int64_t run = k / kRun;
    const RowRun at = {section, panel + run / runs * section.size(), runs, run, sections_end, num_k, x + k};
    const uint8_t* reading = panel + run * section.size() / runs + scales_ahead;
    int64_t column = t.column_begin;
    for (; column + kRowVecs * kLanes <= t.column_end; column += kRowVecs * kLanes, reading += kRowVecs * column_bytes)
      multiply_run<F, kRowVecs>(at, column, table, reading, kRowVecs * column_bytes, fetch, sums);
    if constexpr (kRowVecs > 2) {
      for (; column < t.column_end; column += 2 * kLanes, reading += 2 * column_bytes)
        multiply_run<F, 2>(at, column, table, reading, 2 * column_bytes, fetch, sums);
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
