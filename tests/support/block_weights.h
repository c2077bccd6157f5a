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

// Where a block has its scales of 16 bits; -1: none.
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
    case BlockFormat::kNVFP4:
    case BlockFormat::kIndexedInt4F16:
    case BlockFormat::kIndexedInt4BF16:
    case BlockFormat::kIndexedInt8F16:
    case BlockFormat::kIndexedInt8BF16:
    case BlockFormat::kFp8F16:
    case BlockFormat::kFp8BF16:
    case BlockFormat::kNf4F16:
    case BlockFormat::kNf4BF16:
    case BlockFormat::kFp4F16:
    case BlockFormat::kFp4BF16:
    case BlockFormat::kRowInt8F16:
    case BlockFormat::kRowInt8BF16:
    case BlockFormat::kSparse24F16:
    case BlockFormat::kSparse24BF16:
      return {-1, -1};
    default:
      return {0, -1};
  }
}

inline bool is_fp8(BlockFormat format) { return format == BlockFormat::kFp8F16 || format == BlockFormat::kFp8BF16; }

// Random blocks: every bit of codes and of the parts' scales, finite scales of both signs, and a scale of zero. Columns
// of an indexed format have random groups.
struct BlockWeights {
  BlockWeights(BlockFormat format, int64_t rows, int64_t cols, uint32_t seed) {
    std::mt19937 rng(seed);
    const BlockSize& block = block_size(format);
    for (int64_t k = 0; is_indexed(format) && k < cols; ++k) groups.push_back(static_cast<uint16_t>(rng() % kGroups));
    view = {nullptr, DType::kF32, rows, cols, format, {groups.data(), is_indexed(format) ? kGroups : 0}};
    bytes.resize(static_cast<size_t>(rows * view.row_bytes()));
    view.data = bytes.data();
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(rng());
    values.resize(static_cast<size_t>(rows * cols));
    const auto scale_bits = [&](int64_t b) {
      const float scale = b % 31 == 7 ? 0.0f : (static_cast<float>(rng() % 2001) - 1000.0f) * 1e-5f;
      if (b % 29 == 3) return static_cast<uint16_t>(rng() % (has_bf16_numbers(format) ? 128 : 1024));  // subnormal
      return has_bf16_numbers(format) ? f32_to_bf16(scale) : f32_to_f16(scale);
    };
    for (int64_t row = 0; is_indexed(format) && row < rows; ++row)
      for (int64_t g = 0; g < kGroups; ++g) {
        const uint16_t bits = scale_bits(row * kGroups + g);
        std::memcpy(bytes.data() + row * view.row_bytes() + cols / block.size * block.bytes + 2 * g, &bits, 2);
      }
    for (int64_t b = 0; !is_indexed(format) && b < rows * cols / block.size; ++b) {
      uint8_t* const at = bytes.data() + b * block.bytes;
      if (format == BlockFormat::kNVFP4) make_nvfp4_scales(b, rng, at);
      if (is_sparse24(format)) {
        make_sparse24(rng, at);
      } else if (format >= BlockFormat::kFp8F16) {
        const float scale = b % 31 == 7 ? 0.0f : (static_cast<float>(rng() % 2001) - 1000.0f) * 1e-5f;
        std::memcpy(at, &scale, 4);
      }
      for (int64_t i = 4; is_fp8(format) && i < block.bytes; ++i)
        if ((at[i] & 0x7f) == 0x7f) at[i] ^= 1;  // no NaN
      if (format == BlockFormat::kMXFP4) at[0] = static_cast<uint8_t>(b % 50 == 0 ? rng() % 3 : 110 + rng() % 20);
      for (const int half : block_halves_at(format)) {
        const uint16_t bits = scale_bits(b);
        if (half >= 0) std::memcpy(at + half, &bits, 2);
      }
    }
    for (int64_t row = 0; row < rows; ++row) decode_row(view, row, values.data() + row * cols);
    numbers = {values.data(), DType::kF32, rows, cols};
  }
  BlockWeights(BlockWeights&&) = default;

  // Any scale but NaN, and what all are divided by.
  static void make_nvfp4_scales(int64_t b, std::mt19937& rng, uint8_t* block) {
    const float of_matrix = b % 3 == 0 ? 3.7e3f : 1e-3f * static_cast<float>(1 + rng() % 100000);
    std::memcpy(block, &of_matrix, 4);
    for (int i = 36; i < 40; ++i)
      if ((block[i] & 0x7f) == 0x7f) block[i] ^= 1;
  }

  // Any two of every four, finite numbers of any size, and negative zeros among them.
  static void make_sparse24(std::mt19937& rng, uint8_t* block) {
    constexpr uint8_t kPairs[] = {3, 5, 9, 6, 10, 12};
    for (int i = 0; i < 4; ++i) block[i] = static_cast<uint8_t>(kPairs[rng() % 6] | kPairs[rng() % 6] << 4);
    for (int i = 5; i < 36; i += 2) {
      block[i] &= 0xbf;  // an exponent that is not the largest
      if (rng() % 20 == 0) block[i - 1] = 0, block[i] = 0x80;
    }
  }

  static constexpr int64_t kGroups = 11;
  std::vector<uint16_t> groups;
  std::vector<uint8_t> bytes;
  std::vector<float> values;
  TensorView view, numbers;
};

}  // namespace llmb::test
