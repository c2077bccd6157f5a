// Where the blocks of core/block_format.h have their scales in fp16.
#pragma once

#include <cstdint>
#include <cstring>

#include "core/block_format.h"

namespace llmb {

// Bytes of a stored block: its scale, then what ggml calls its m, min or dmin.
struct BlockScales {
  int num;
  int at[2];
};

inline constexpr BlockScales kBlockScales[kNumBlockFormats] = {
    {},
    {1, {0}},       // Q8_0
    {1, {0}},       // Q4_0
    {2, {0, 2}},    // Q4_1
    {1, {0}},       // Q5_0
    {2, {0, 2}},    // Q5_1
    {2, {80, 82}},  // Q2_K
    {1, {108}},     // Q3_K
    {2, {0, 2}},    // Q4_K
    {2, {0, 2}},    // Q5_K
    {1, {208}},     // Q6_K
    {1, {0}},       // IQ4_NL
    {1, {0}},       // IQ4_XS
    {0, {}},        // MXFP4: a power of two, which is always finite
    {1, {0}},       // int4 with fp16 scales
    {1, {0}},       // int4 with bf16 scales
    {1, {0}},       // int8 with fp16 scales
    {1, {0}},       // int8 with bf16 scales
    {0, {}},        // indexed formats: behind all blocks
    {0, {}},
    {0, {}},
    {0, {}},
    {0, {}},  // NVFP4: bytes
    {0, {}},  // fp32 ones: FP8
    {0, {}},
    {0, {}},  // NF4, FP4
    {0, {}},
    {0, {}},
    {0, {}},
    {0, {}},  // int8 of rows
    {0, {}},
    {0, {}},  // 2:4: no scales
    {0, {}},
};
constexpr const BlockScales& block_scales(BlockFormat format) { return kBlockScales[static_cast<int>(format)]; }

// The first of so many stored blocks with a scale that is infinite or NaN; num_blocks: none has. REQUIRES: scales are
// fp16.
inline int64_t first_bad_block(BlockFormat format, const uint8_t* blocks, int64_t num_blocks) {
  const BlockScales& scales = block_scales(format);
  const int64_t bytes = block_size(format).bytes;
  for (int64_t b = 0; b < num_blocks; ++b, blocks += bytes)
    for (int i = 0; i < scales.num; ++i) {
      uint16_t bits;
      std::memcpy(&bits, blocks + scales.at[i], 2);
      if ((bits & 0x7c00) == 0x7c00) return b;
    }
  return num_blocks;
}

}  // namespace llmb
