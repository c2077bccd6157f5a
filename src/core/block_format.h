// Formats that store a row of numbers in blocks of few bits: ggml's and NVFP4, with scales in each block; GPTQ's, AWQ's and
// compressed-tensors', integers whose groups have a scale and a zero; and 2:4, which leaves out the half of the numbers
// that are zeros.
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
  // 32 integers of a group: its scale (fp16 or bf16), its zero (a byte), and codes, of four bits as in Q4_0 or bytes. A
  // number is scale · (code − zero), rounded to the scale's dtype.
  kInt4F16,
  kInt4BF16,
  kInt8F16,
  kInt8BF16,
  // The same integers where each column has a group of its own (ColumnGroups in core/tensor_view.h): a block is 32
  // codes. Behind the blocks of a row stand the scales of its groups, then their zeros.
  kIndexedInt4F16,
  kIndexedInt4BF16,
  kIndexedInt8F16,
  kIndexedInt8BF16,
  // A matrix's scale (fp32), 64 codes of four bits as in MXFP4, in two runs of 32, and a scale (E4M3) for every 16. A
  // number is code · (scale / matrix's scale), the two operations in fp32, rounded to bf16.
  kNVFP4,
  // A scale (fp32), 32 codes in E4M3. A number is code · scale in fp32, rounded to the dtype in the name.
  kFp8F16,
  kFp8BF16,
  // bitsandbytes: a scale (fp32), 64 codes of four bits as NVFP4's. A number is what the code means times the scale,
  // rounded; NF4's or FP4's.
  kNf4F16,
  kNf4BF16,
  kFp4F16,
  kFp4BF16,
  // LLM.int8(): the largest magnitude of the row (fp32), 32 codes as bytes with a sign. A number is code · magnitude ·
  // (1 / 127), rounded after each product.
  kRowInt8F16,
  kRowInt8BF16,
  // 2:4: of every four numbers two are kept, the others are 0. Of 32 numbers a bit each (32 bits), whether it is kept,
  // then the 16 that are, as fp16 or bf16.
  kSparse24F16,
  kSparse24BF16,
};

// `bytes` for every `size` numbers of a row.
struct BlockSize {
  const char* name;  // ggml's, where it has the format
  int64_t size, bytes;
};

inline constexpr BlockSize kBlockSizes[] = {
    {"", 1, 0},
    {"Q8_0", 32, 34},
    {"Q4_0", 32, 18},
    {"Q4_1", 32, 20},
    {"Q5_0", 32, 22},
    {"Q5_1", 32, 24},
    {"Q2_K", 256, 84},
    {"Q3_K", 256, 110},
    {"Q4_K", 256, 144},
    {"Q5_K", 256, 176},
    {"Q6_K", 256, 210},
    {"IQ4_NL", 32, 18},
    {"IQ4_XS", 256, 136},
    {"MXFP4", 32, 17},
    {"INT4_F16", 32, 19},
    {"INT4_BF16", 32, 19},
    {"INT8_F16", 32, 35},
    {"INT8_BF16", 32, 35},
    {"INDEXED_INT4_F16", 32, 16},
    {"INDEXED_INT4_BF16", 32, 16},
    {"INDEXED_INT8_F16", 32, 32},
    {"INDEXED_INT8_BF16", 32, 32},
    {"NVFP4", 64, 40},
    {"FP8_F16", 32, 36},
    {"FP8_BF16", 32, 36},
    {"NF4_F16", 64, 36},
    {"NF4_BF16", 64, 36},
    {"FP4_F16", 64, 36},
    {"FP4_BF16", 64, 36},
    {"ROW_INT8_F16", 32, 36},
    {"ROW_INT8_BF16", 32, 36},
    {"SPARSE24_F16", 32, 36},
    {"SPARSE24_BF16", 32, 36},
};
inline constexpr int kNumBlockFormats = sizeof kBlockSizes / sizeof kBlockSizes[0];
inline constexpr int64_t kMaxBlockSize = 256;

// Formats other than ggml's, whose numbers are rounded or stored whole: activations are never rounded for them.
constexpr bool rounds_numbers(BlockFormat format) { return format >= BlockFormat::kInt4F16; }
// Whether scales stand behind a row's blocks, and what the numbers are rounded to.
constexpr bool is_indexed(BlockFormat format) {
  return format >= BlockFormat::kIndexedInt4F16 && format <= BlockFormat::kIndexedInt8BF16;
}
constexpr bool is_sparse24(BlockFormat format) {
  return format == BlockFormat::kSparse24F16 || format == BlockFormat::kSparse24BF16;
}
constexpr bool has_bf16_numbers(BlockFormat format) {
  return format == BlockFormat::kInt4BF16 || format == BlockFormat::kInt8BF16 ||
         format == BlockFormat::kIndexedInt4BF16 || format == BlockFormat::kIndexedInt8BF16 ||
         format == BlockFormat::kNVFP4 || format == BlockFormat::kFp8BF16 || format == BlockFormat::kNf4BF16 ||
         format == BlockFormat::kFp4BF16 || format == BlockFormat::kRowInt8BF16 || format == BlockFormat::kSparse24BF16;
}
inline constexpr int64_t kGroupScaleBytes = 3;  // of an indexed format: scale and zero

constexpr const BlockSize& block_size(BlockFormat format) { return kBlockSizes[static_cast<int>(format)]; }

// kNone where there is no such format.
BlockFormat find_block_format(std::string_view name);

// The numbers of the IQ4 formats' codes; twice those of MXFP4's.
inline constexpr int8_t kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
inline constexpr int8_t kMxfp4Values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
// Those of NVFP4's, which has a negative zero.
inline constexpr float kNvfp4Values[16] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.f, -0.5f, -1, -1.5f, -2, -3, -4, -6};

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

// Those of bitsandbytes' NF4 and FP4, and its 1 / 127.
inline constexpr float kNf4Values[16] = {-1.0f,
                                         -0.6961928009986877f,
                                         -0.5250730514526367f,
                                         -0.39491748809814453f,
                                         -0.28444138169288635f,
                                         -0.18477343022823334f,
                                         -0.09105003625154495f,
                                         0.0f,
                                         0.07958029955625534f,
                                         0.16093020141124725f,
                                         0.24611230194568634f,
                                         0.33791524171829224f,
                                         0.44070982933044434f,
                                         0.5626170039176941f,
                                         0.7229568362236023f,
                                         1.0f};
inline constexpr float kFp4Values[16] = {0.0f,
                                         0.0052083334885537624f,
                                         0.6666666865348816f,
                                         1.0f,
                                         0.3333333432674408f,
                                         0.5f,
                                         0.1666666716337204f,
                                         0.25f,
                                         0.0f,
                                         -0.0052083334885537624f,
                                         -0.6666666865348816f,
                                         -1.0f,
                                         -0.3333333432674408f,
                                         -0.5f,
                                         -0.1666666716337204f,
                                         -0.25f};
inline constexpr float kOneOver127 = 7.874015718698502e-3f;

// The numbers of one block in fp32, by the operations of the format's own code in their order. REQUIRES: format is
// neither kNone nor indexed, of which decode_row() (core/tensor_view.h) decodes whole rows.
void decode_block(BlockFormat format, const uint8_t* block, float* out);  // [block_size(format).size]

}  // namespace llmb
