// How wide and how high the register tiles of paged_attention are. Compiled once for each SIMD target; include after
// hwy/foreach_target.h.

#if defined(LLMB_KERNELS_CPU_PAGED_ATTENTION_SHAPES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LLMB_KERNELS_CPU_PAGED_ATTENTION_SHAPES_INL_H_
#undef LLMB_KERNELS_CPU_PAGED_ATTENTION_SHAPES_INL_H_
#else
#define LLMB_KERNELS_CPU_PAGED_ATTENTION_SHAPES_INL_H_
#endif

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/paged_attention_segment.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace llmb::cpu {
namespace HWY_NAMESPACE {

constexpr int64_t kMaxDirectRows = 2 * kTileRows;  // that read keys and values as they are stored
static_assert(kTallTileRows <= kMaxTileRows && kMaxDirectRows <= kMaxTileRows);

// Columns of a tile of so many rows: positions, or channels of values. With AVX2 few rows take more of them, so that
// there are enough sums for two multiply-adds a cycle, and fewer passes; but words of two terms want registers, too.
template <class Format>
constexpr int attention_columns(int rows) {
  if (HWY_TARGET == HWY_AVX2 && rows <= (Format::kTerms == 1 ? 3 : 2)) return rows == 1 ? 64 : 32;
  return tile_columns(rows);
}

// With AVX2 the highest tiles come first and the rest last, as three and four rows take as long as six.
constexpr bool kHasHighestFirst = HWY_TARGET == HWY_AVX2;

// As for_row_tiles.
template <class F>
HWY_INLINE void for_attention_tiles(int64_t rows, const F& f) {
  if constexpr (kHasHighestFirst) {
    for (int64_t row = 0; row < rows; row += kTallTileRows)
      with_rows<1, kTallTileRows>(std::min<int64_t>(kTallTileRows, rows - row),
                                  [&](auto tile_rows) HWY_ATTR { f(row, tile_rows); });
  } else {
    for_row_tiles<kTallTileRows>(rows, f);
  }
}

// Passes of all tiles over so many columns.
template <class Format>
int64_t attention_passes(int64_t rows, int64_t num_columns) {
  const auto passes = [&](int64_t height) {
    return height == 0 ? 0 : ceil_div(num_columns, attention_columns<Format>(static_cast<int>(height)));
  };
  if (kHasHighestFirst) return rows / kTallTileRows * passes(kTallTileRows) + passes(rows % kTallTileRows);
  const int64_t tiles = ceil_div(rows, kTallTileRows);
  return tiles * passes(ceil_div(rows, tiles));
}

}  // namespace HWY_NAMESPACE
}  // namespace llmb::cpu
HWY_AFTER_NAMESPACE();

#endif
