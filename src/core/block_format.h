// Formats that store a row of numbers in blocks of few bits with scales of their own, as ggml defines them.
#pragma once

#include <cstdint>
#include <string_view>

namespace llmb {

enum class BlockFormat : uint8_t {
  kNone,  // numbers as they are
  kQ8_0,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ2_K,
  kQ3_K,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kIQ4_NL,
  kIQ4_XS,
  kMXFP4,
};

// `bytes` for every `size` numbers of a row.
struct BlockSize {
  const char* name;  // ggml's
  int64_t size, bytes;
};

inline constexpr BlockSize kBlockSizes[] = {
    {"", 1, 0},         {"Q8_0", 32, 34},   {"Q4_0", 32, 18},     {"Q4_1", 32, 20},   {"Q5_0", 32, 22},
    {"Q5_1", 32, 24},   {"Q2_K", 256, 84},  {"Q3_K", 256, 110},   {"Q4_K", 256, 144}, {"Q5_K", 256, 176},
    {"Q6_K", 256, 210}, {"IQ4_NL", 32, 18}, {"IQ4_XS", 256, 136}, {"MXFP4", 32, 17},
};
inline constexpr int kNumBlockFormats = sizeof kBlockSizes / sizeof kBlockSizes[0];
inline constexpr int64_t kMaxBlockSize = 256;

constexpr const BlockSize& block_size(BlockFormat format) { return kBlockSizes[static_cast<int>(format)]; }

// kNone where there is no such format.
BlockFormat find_block_format(std::string_view name);

// The numbers of the IQ4 formats' codes; twice those of MXFP4's.
inline constexpr int8_t kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
inline constexpr int8_t kMxfp4Values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// Scales and minima of Q4_K and Q5_K: eight of six bits each in twelve bytes.
constexpr int q4_k_scale(const uint8_t* p, int j) { return j < 4 ? p[j] & 63 : (p[j + 4] & 15) | p[j - 4] >> 6 << 4; }
constexpr int q4_k_min(const uint8_t* p, int j) { return j < 4 ? p[j + 4] & 63 : p[j + 4] >> 4 | p[j] >> 6 << 4; }
// Scales of Q3_K: sixteen of six bits in twelve bytes, 32 of which mean 0.
constexpr int q3_k_scale(const uint8_t* p, int j) {
  return ((j < 8 ? p[j] & 15 : p[j - 8] >> 4) | (p[8 + j % 4] >> j / 4 * 2 & 3) << 4) - 32;
}
// Scales of IQ4_XS, of a block: eight of six bits, 32 of which mean 0.
constexpr int iq4_xs_scale(const uint8_t* block, int j) {
  const int high = block[2] | block[3] << 8;
  return ((block[4 + j / 2] >> j % 2 * 4 & 15) | (high >> 2 * j & 3) << 4) - 32;
}

// The numbers of one block in fp32, by ggml's operations in ggml's order. REQUIRES: format != kNone.
void decode_block(BlockFormat format, const uint8_t* block, float* out);  // [block_size(format).size]

}  // namespace llmb
