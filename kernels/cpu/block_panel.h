// Panels whose weights stay in the blocks that a file stores (core/block_format.h). Private to kernels/cpu.
//
// For each block of k in turn a section holds the blocks of the panel's 64 output features side by side:
//   words   [num_words][64] uint32   the block's codes, in the order in which they are stored
//   halves  [num_halves][64] fp16    its scale, then what it calls m, min or dmin; bf16 where the format says so
//   bytes   [num_bytes][64]          scales of its parts, a byte each: signed, or of a format with minima unsigned; the
//                                    zero of its integers; or scales in E4M3
// Behind the sections of an indexed format stand
//   of      [num_k] uint16           the group of each k
//   groups  for each group in turn [64] uint16, its scale, and [64] bytes, its zero
// Nothing is rounded: a panel holds the bits of the file, in up to 4 % more bytes, and an index of 1/4 bit a weight.
#pragma once

#include <cstdint>

#include "core/block_format.h"
#include "kernels/cpu/linear.h"

namespace llmb::cpu {

struct BlockSection {
  int64_t num_words, codes_at;  // where the codes begin in a stored block
  int64_t num_halves;           // as block_scales() has them
  int64_t num_bytes;

  constexpr int64_t halves() const { return num_words * 4 * PackedLinear::kPanelWidth; }
  constexpr int64_t scale_bytes() const { return halves() + num_halves * 2 * PackedLinear::kPanelWidth; }
  constexpr int64_t size() const { return scale_bytes() + num_bytes * PackedLinear::kPanelWidth; }
};

inline constexpr BlockSection kBlockSections[kNumBlockFormats] = {
    {},
    {8, 2, 1, 0},     // Q8_0
    {4, 2, 1, 0},     // Q4_0
    {4, 4, 2, 0},     // Q4_1
    {5, 2, 1, 0},     // Q5_0: fifth bits, low ones
    {5, 4, 2, 0},     // Q5_1
    {16, 16, 2, 16},  // Q2_K: scales in the low halves of bytes, minima in the high ones
    {24, 0, 1, 16},   // Q3_K: third bits, low ones
    {32, 16, 2, 16},  // Q4_K: eight scales, eight minima
    {40, 16, 2, 16},  // Q5_K: fifth bits, low ones
    {48, 0, 1, 16},   // Q6_K: low four bits, high two
    {4, 2, 1, 0},     // IQ4_NL
    {32, 8, 1, 8},    // IQ4_XS
    {4, 1, 0, 1},     // MXFP4: a power of two
    {4, 3, 1, 1},     // int4 with fp16 scales: a zero
    {4, 3, 1, 1},     // int4 with bf16 scales
    {8, 3, 1, 1},     // int8 with fp16 scales
    {8, 3, 1, 1},     // int8 with bf16 scales
    {4, 0, 0, 0},     // indexed int4
    {4, 0, 0, 0},
    {8, 0, 0, 0},  // indexed int8
    {8, 0, 0, 0},
    {9, 0, 0, 4},  // NVFP4: the matrix's scale, codes
    {9, 0, 0, 0},  // FP8: a scale of 32 bits, codes
    {9, 0, 0, 0},
    {9, 0, 0, 0},  // NF4, FP4
    {9, 0, 0, 0},
    {9, 0, 0, 0},
    {9, 0, 0, 0},
    {9, 0, 0, 0},  // int8 of rows
    {9, 0, 0, 0},
    {9, 0, 0, 0},  // 2:4: which numbers are kept, two of them a word
    {9, 0, 0, 0},
};
constexpr const BlockSection& block_section(BlockFormat format) { return kBlockSections[static_cast<int>(format)]; }

// Bytes of the first num_k of a panel, without what stands behind the sections; kNone: of fp32.
constexpr int64_t block_panel_bytes(BlockFormat format, int64_t num_k) {
  if (format == BlockFormat::kNone) return num_k * PackedLinear::kPanelWidth * 4;
  return num_k / block_size(format).size * block_section(format).size();
}

inline constexpr int64_t kPanelGroupBytes = PackedLinear::kPanelWidth * kGroupScaleBytes;
// Bytes behind the sections.
constexpr int64_t panel_group_bytes(BlockFormat format, int64_t num_k, int64_t num_groups) {
  return is_indexed(format) ? num_k * int64_t{sizeof(uint16_t)} + num_groups * kPanelGroupBytes : 0;
}

// REQUIRES: num_k is a multiple of the block's size.
void pack_block_panel(BlockFormat format,
                      const uint8_t* const* rows,  // [kPanelWidth]  as stored
                      int64_t num_k, const ColumnGroups& groups, uint8_t* panel);

// The numbers of output features [column_begin, column_end), multiples of 16, and k [k_begin, k_end), multiples of 32,
// of a panel of num_k. Bit for bit what decode_row gives.
void decode_block_panel(BlockFormat format, const uint8_t* panel, int64_t num_k, int64_t k_begin, int64_t k_end,
                        int64_t column_begin, int64_t column_end,
                        float* out);  // [k_end - k_begin][kPanelWidth]

// block_linear_task (linear_task.h) of one row. REQUIRES: panel_blocks() != kNone.
struct LinearTask;
void block_row_task(const LinearTask& task);

// How far ahead of reading it a panel is asked for, into the second-level cache.
constexpr int64_t kBlockFetchBytes = 8192;
// The first of several runs of a block reads scales and high bits from the section's end on.
constexpr int64_t fetch_bytes_ahead(const BlockSection& section, int64_t runs) {
  return kBlockFetchBytes + (runs > 1 ? section.size() : 0);
}
// The same of a lone row rounded to int8 with AVX-512, into the first-level cache: on an EPYC of family 26 requests for
// the second level cost up to a quarter of the rate even from caches; 2 to 8 KiB differ little (2026-11-28).
constexpr int64_t row_fetch_bytes_ahead(const BlockSection& section, int64_t runs) {
  return 4096 + (runs > 1 ? section.size() : 0);
}

}  // namespace llmb::cpu
