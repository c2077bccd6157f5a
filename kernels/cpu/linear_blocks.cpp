// linear over blocks of few bits as files store them: a stretch of the panel becomes fp32 in a cache, and is multiplied
// as fp32 weights are. So outputs have the bytes that the dequantised matrix would give.
// A lone row is multiplied by numbers in registers (linear_blocks_row.cpp).
#include "kernels/cpu/block_panel.h"
#include "kernels/cpu/linear_task.h"
#include "kernels/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/linear_blocks.cpp"
#include "hwy/foreach_target.h"  // must come before highway.h
#include "kernels/cpu/block_numbers-inl.h"
#include "kernels/cpu/linear_tiles-inl.h"

HWY_BEFORE_NAMESPACE();
namespace llmb::cpu {
namespace HWY_NAMESPACE {

// Numbers [k_begin, k_end) of columns [column_begin, column_end) of a panel.
struct Stretch {
  BlockFormat format;
  const uint8_t* panel;
  int64_t num_k;  // of the panel
  int64_t k_begin, k_end, column_begin, column_end;
};

template <class F>
HWY_NOINLINE void decode(const Stretch& t, float* out) {
  const BlockSection& section = block_section(t.format);
  const int64_t runs = block_size(t.format).size / kRun;
  const uint8_t* const sections_end = t.panel + block_panel_bytes(t.format, t.num_k);
  const V table = table_of<F>();
  for (int64_t k = t.k_begin; k < t.k_end; k += kRun, out += kRun * kWidth) {
    const int64_t run = k / kRun;
    const uint8_t* data = t.panel + run / runs * section.size();
    for (int64_t column = t.column_begin; column < t.column_end; column += kLanes) {
      SectionReader s[] = {{section, data, column}};
      if constexpr (F::kIsIndexed) s[0].index(sections_end, t.num_k, k, column);
      for_each_number<F>(s, run % runs, table,
                         [&](int i, int, V number) HWY_ATTR { hn::StoreU(number, D(), out + i * kWidth + column); });
    }
  }
}

void decode_stretch(const Stretch& t, float* out) {
  const auto bytes = static_cast<size_t>((t.k_end - t.k_begin) * kWidth) * sizeof(float);
  if (t.format == BlockFormat::kNone) std::memcpy(out, t.panel + t.k_begin * kWidth * 4, bytes);
  else with_format(t.format, [&](auto format) HWY_ATTR { decode<decltype(format)>(t, out); });
}

void decode_block_panel_target(BlockFormat format, const uint8_t* panel, int64_t num_k, int64_t k_begin, int64_t k_end,
                               int64_t column_begin, int64_t column_end, float* out) {
  decode_stretch({format, panel, num_k, k_begin, k_end, column_begin, column_end}, out);
}

// Few rows wait for memory: short stretches, so that decoding and multiplying overlap. More rows share what was decoded
// for one of them.
void block_linear_task_target(const LinearTask& t) {
  HWY_ALIGN float sums[kLinearTaskRows * kWidth];
  HWY_ALIGN float wide[kMaxLinearBlockK * kWidth];
  const BlockFormat format = t.weight->panel_blocks(t.panel);
  const uint8_t* data = t.weight->panel(t.panel);
  const int64_t num_k = t.weight->in_features(), rows = t.row_end - t.row_begin;
  const int64_t num_tiles = ceil_div(rows, kTallTileRows);
  const int64_t block_k = num_tiles == 1 ? kLoneTileK : even_block(num_k);
  for (int64_t k = 0; k < num_k; k += block_k) {
    const Block block{k, std::min(num_k, k + block_k), sums};
    const bool is_last = block.k_end == num_k;
    const uint8_t* next =
        is_last ? t.next : data + block_panel_bytes(format, kMaxBlockSize) * block.k_end / kMaxBlockSize;
    const int64_t next_bytes = block_panel_bytes(format, kMaxBlockSize) * block_k / kMaxBlockSize;
    const int64_t turns = block_turns<WidePanel>(t, block.k_end - k);
    FetchAhead ahead(next, next_bytes, turns > 0 ? turns : (block.k_end - k) / WidePanel::kStep);
    const float* numbers = wide;
    if (format == BlockFormat::kNone) numbers = reinterpret_cast<const float*>(data) + k * kWidth;
    else decode_stretch({format, data, num_k, k, block.k_end, t.column_begin, t.column_end}, wide);
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

void block_linear_task(const LinearTask& task) {
  const bool is_lone = task.row_end - task.row_begin == 1;
  if (is_lone && task.weight->panel_blocks(task.panel) != BlockFormat::kNone) return block_row_task(task);
  HWY_DYNAMIC_DISPATCH(block_linear_task_target)(task);
}

void decode_block_panel(BlockFormat format, const uint8_t* panel, int64_t num_k, int64_t k_begin, int64_t k_end,
                        int64_t column_begin, int64_t column_end, float* out) {
  HWY_DYNAMIC_DISPATCH(decode_block_panel_target)
  (format, panel, num_k, k_begin, k_end, column_begin, column_end, out);
}

}  // namespace llmb::cpu
#endif
