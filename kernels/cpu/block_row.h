// Rows of activations rounded to int8 by blocks of k, for products over weights in blocks (block_panel.h): blocks of 32
// for formats whose own have 32 numbers, of 256 for those of 256. q = round(x / scale), scale = max |x| / 127 of the
// block; a block with NaN or infinity has a scale of NaN. Private to kernels/cpu.
#pragma once

#include <cstdint>

#include "core/block_format.h"
#include "kernels/cpu/linear.h"

namespace llmb::cpu {

constexpr int64_t kSmallBlock = 32;

// The bytes of one such row. What begins there:
struct BlockRow {
  int64_t scales;  // float of each block
  int64_t sums32;  // int32 of each 32 k: the sum of their q
  int64_t sums16;  // the same of each 16 k; blocks of 256 only
  int64_t size;    // and 16 numbers may be read from any of them on

  // The q of each k stand at the beginning. REQUIRES: num_k is a multiple of block, which is 32 or 256.
  constexpr BlockRow(int64_t num_k, int64_t block)
      : scales(ceil_div(num_k, 64) * 64),
        sums32(scales + ceil_div(num_k / block, 16) * 64),
        sums16(sums32 + ceil_div(num_k / kSmallBlock, 16) * 64),
        size(sums16 + (block == kSmallBlock ? 0 : num_k / 4) + 64) {}
};

// A row for a weight holds the form of each block size that its panels have, small blocks first.
inline int64_t block_row_begin(const PackedLinear& weight, int64_t block) {
  const bool is_second = block != kSmallBlock && weight.has_blocks_of(kSmallBlock);
  return is_second ? BlockRow(weight.in_features(), kSmallBlock).size : 0;
}
inline int64_t block_row_bytes(const PackedLinear& weight) {
  int64_t bytes = 0;
  for (const int64_t block : {kSmallBlock, kMaxBlockSize})
    if (weight.has_blocks_of(block)) bytes += BlockRow(weight.in_features(), block).size;
  return ceil_div(bytes, 64) * 64;
}

// One form. REQUIRES: as BlockRow.
void quantize_block_row(const float* x, int64_t num_k, int64_t block, uint8_t* out);

}  // namespace llmb::cpu
