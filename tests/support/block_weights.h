// Matrices of random blocks in each format of core/block_format.h.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "base/float_formats.h"
#include "core/block_format.h"
#include "core/tensor_view.h"

namespace llmb::test {

inline std::vector<BlockFormat> all_block_formats() {
  std::vector<BlockFormat> formats;
  for (int i = 1; i < kNumBlockFormats; ++i) formats.push_back(static_cast<BlockFormat>(i));
  return formats;
}

// Where a block has its fp16 scales; -1: none.
inline std::array<int, 2> block_halves_at(BlockFormat format) {
  switch (format) {
    case BlockFormat::kMXFP4:
      return {-1, -1};
    case BlockFormat::kQ2_K:
      return {80, 82};
    case BlockFormat::kQ3_K:
      return {108, -1};
    case BlockFormat::kQ6_K:
      return {208, -1};
    case BlockFormat::kQ4_1:
    case BlockFormat::kQ5_1:
    case BlockFormat::kQ4_K:
    case BlockFormat::kQ5_K:
      return {0, 2};
    default:
      return {0, -1};
  }
}

// Random blocks: every bit of codes and of the parts' scales, finite scales of both signs, and a scale of zero.
struct BlockWeights {
  BlockWeights(BlockFormat format, int64_t rows, int64_t cols, uint32_t seed) {
    std::mt19937 rng(seed);
    const BlockSize& block = block_size(format);
    const int64_t count = rows * cols / block.size;
    bytes.resize(static_cast<size_t>(count * block.bytes));
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(rng());
    values.resize(static_cast<size_t>(rows * cols));
    for (int64_t b = 0; b < count; ++b) {
      uint8_t* const at = bytes.data() + b * block.bytes;
      if (format == BlockFormat::kMXFP4) at[0] = static_cast<uint8_t>(b % 50 == 0 ? rng() % 3 : 110 + rng() % 20);
      for (const int half : block_halves_at(format)) {
        const float scale = b % 31 == 7 ? 0.0f : (static_cast<float>(rng() % 2001) - 1000.0f) * 1e-5f;
        const uint16_t bits = b % 29 == 3 ? static_cast<uint16_t>(rng() % 1024) : f32_to_f16(scale);  // subnormal
        if (half >= 0) std::memcpy(at + half, &bits, 2);
      }
      decode_block(format, at, values.data() + b * block.size);
    }
    view = {bytes.data(), DType::kF32, rows, cols, format};
    numbers = {values.data(), DType::kF32, rows, cols};
  }
  BlockWeights(BlockWeights&&) = default;
  std::vector<uint8_t> bytes;
  std::vector<float> values;
  TensorView view, numbers;
};

}  // namespace llmb::test
