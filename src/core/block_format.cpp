#include "core/block_format.h"

#include <cmath>
#include <cstring>

#include "base/check.h"
#include "base/float_formats.h"
#include "core/tensor_view.h"

namespace llmb {

namespace {

constexpr int kSmallBlock = 32;  // numbers

float load_f16(const uint8_t* p) {
  uint16_t bits;
  std::memcpy(&bits, p, 2);
  return f16_to_f32(bits);
}

// One block of each format: x = scale × (q − offset), or scale × q + minimum. Low nibbles are the first half.

void block_q8_0(const uint8_t* p, float* out) {
  const float d = load_f16(p);
  for (int i = 0; i < kSmallBlock; ++i) out[i] = d * static_cast<float>(static_cast<int8_t>(p[2 + i]));
}

void block_q4_0(const uint8_t* p, float* out) {
  const float d = load_f16(p);
  for (int i = 0; i < 16; ++i) {
    out[i] = d * static_cast<float>((p[2 + i] & 15) - 8);
    out[i + 16] = d * static_cast<float>((p[2 + i] >> 4) - 8);
  }
}

void block_q4_1(const uint8_t* p, float* out) {
  const float d = load_f16(p), m = load_f16(p + 2);
  for (int i = 0; i < 16; ++i) {
    out[i] = d * static_cast<float>(p[4 + i] & 15) + m;
    out[i + 16] = d * static_cast<float>(p[4 + i] >> 4) + m;
  }
}

// The fifth bits of a block stand in one word, number by number.
int fifth_bit(const uint8_t* high, int i) { return (high[i / 8] >> (i % 8) & 1) << 4; }

void block_q5_0(const uint8_t* p, float* out) {
  const float d = load_f16(p);
  for (int i = 0; i < 16; ++i) {
    out[i] = d * static_cast<float>(((p[6 + i] & 15) | fifth_bit(p + 2, i)) - 16);
    out[i + 16] = d * static_cast<float>(((p[6 + i] >> 4) | fifth_bit(p + 2, i + 16)) - 16);
  }
}

void block_q5_1(const uint8_t* p, float* out) {
  const float d = load_f16(p), m = load_f16(p + 2);
  for (int i = 0; i < 16; ++i) {
    out[i] = d * static_cast<float>((p[8 + i] & 15) | fifth_bit(p + 4, i)) + m;
    out[i + 16] = d * static_cast<float>((p[8 + i] >> 4) | fifth_bit(p + 4, i + 16)) + m;
  }
}

// Q4_K, and Q5_K with the fifth bits in `high`.
void block_q4_or_q5_k(const uint8_t* p, const uint8_t* high, const uint8_t* low, float* out) {
  const float d = load_f16(p), dmin = load_f16(p + 2);
  for (int j = 0; j < 8; ++j) {
    const float scale = d * static_cast<float>(q4_k_scale(p + 4, j)),
                min = dmin * static_cast<float>(q4_k_min(p + 4, j));
    const uint8_t* const q = low + j / 2 * 32;
    for (int i = 0; i < 32; ++i) {
      const int nibble = j % 2 == 0 ? q[i] & 15 : q[i] >> 4;
      const int fifth = high == nullptr ? 0 : (high[i] >> j & 1) << 4;
      out[j * 32 + i] = scale * static_cast<float>(nibble + fifth) - min;
    }
  }
}

void block_q4_k(const uint8_t* p, float* out) { block_q4_or_q5_k(p, nullptr, p + 16, out); }
void block_q5_k(const uint8_t* p, float* out) { block_q4_or_q5_k(p, p + 16, p + 48, out); }

// 128 bytes of low nibbles, 64 of high pairs of bits, 16 scales, the scale of scales. Halves of 128 numbers, in each
// four runs of 32.
void block_q6_k(const uint8_t* p, float* out) {
  const float d = load_f16(p + 208);
  for (int half = 0; half < 2; ++half) {
    const uint8_t *const low = p + 64 * half, *const high = p + 128 + 32 * half, *const scales = p + 192 + 8 * half;
    for (int run = 0; run < 4; ++run)
      for (int i = 0; i < 32; ++i) {
        const uint8_t byte = low[i + run % 2 * 32];
        const int nibble = run < 2 ? byte & 15 : byte >> 4;
        const int q = (nibble | (high[i] >> 2 * run & 3) << 4) - 32;
        const auto scale = static_cast<float>(static_cast<int8_t>(scales[i / 16 + 2 * run]));
        out[half * 128 + run * 32 + i] = d * scale * static_cast<float>(q);
      }
  }
}

// A power of two for 32 numbers of 4 bits (OCP Microscaling Formats 1.0), here twice the numbers and half the power.
void block_mxfp4(const uint8_t* p, float* out) {
  const float scale = std::ldexp(1.0f, p[0] - 128);
  for (int i = 0; i < 16; ++i) {
    out[i] = static_cast<float>(kMxfp4Values[p[1 + i] & 15]) * scale;
    out[i + 16] = static_cast<float>(kMxfp4Values[p[1 + i] >> 4]) * scale;
  }
}

// 32 codes in 16 bytes.
void iq4_codes(const uint8_t* codes, float scale, float* out) {
  for (int i = 0; i < 16; ++i) {
    out[i] = scale * static_cast<float>(kIq4Values[codes[i] & 15]);
    out[i + 16] = scale * static_cast<float>(kIq4Values[codes[i] >> 4]);
  }
}

void block_iq4_nl(const uint8_t* p, float* out) { iq4_codes(p + 2, load_f16(p), out); }
void block_iq4_xs(const uint8_t* p, float* out) {
  const float d = load_f16(p);
  for (int j = 0; j < 8; ++j) iq4_codes(p + 8 + 16 * j, d * static_cast<float>(iq4_xs_scale(p, j)), out + 32 * j);
}

// Two bits of number i of run `run` of 32: halves of 128 numbers share 32 bytes.
int two_bits(const uint8_t* low, int run, int i) { return low[run / 4 * 32 + i] >> run % 4 * 2 & 3; }

void block_q2_k(const uint8_t* p, float* out) {
  const float d = load_f16(p + 80), dmin = load_f16(p + 82);
  for (int run = 0; run < 8; ++run)
    for (int i = 0; i < 32; ++i) {
      const uint8_t both = p[2 * run + i / 16];
      const float scale = d * static_cast<float>(both & 15), min = dmin * static_cast<float>(both >> 4);
      out[32 * run + i] = scale * static_cast<float>(two_bits(p + 16, run, i)) - min;
    }
}

// 32 bytes of third bits, a run each; a number without it is 4 less.
void block_q3_k(const uint8_t* p, float* out) {
  const float d = load_f16(p + 108);
  for (int run = 0; run < 8; ++run)
    for (int i = 0; i < 32; ++i) {
      const int q = two_bits(p + 32, run, i) - (p[i] >> run & 1 ? 0 : 4);
      out[32 * run + i] = d * static_cast<float>(q3_k_scale(p + 96, 2 * run + i / 16)) * static_cast<float>(q);
    }
}

float rounded(bool is_bf16, float x) { return is_bf16 ? bf16_to_f32(f32_to_bf16(x)) : f16_to_f32(f32_to_f16(x)); }

float load_f32(const uint8_t* p) {
  float x;
  std::memcpy(&x, p, 4);
  return x;
}

// Code i of 32, of four bits or bytes.
int integer_code(const uint8_t* codes, int bits, int i) {
  return bits == 8 ? codes[i] : i < 16 ? codes[i] & 15 : codes[i - 16] >> 4;
}

// scale (a half): as stored; the number: rounded to the same dtype.
float integer(bool is_bf16, const uint8_t* scale, int code, int zero) {
  uint16_t half;
  std::memcpy(&half, scale, 2);
  return rounded(is_bf16, (is_bf16 ? bf16_to_f32(half) : f16_to_f32(half)) * static_cast<float>(code - zero));
}

// p: scale, zero, codes.
template <int kBits, bool kIsBf16>
void block_integers(const uint8_t* p, float* out) {
  for (int i = 0; i < kSmallBlock; ++i) out[i] = integer(kIsBf16, p, integer_code(p + 3, kBits, i), p[2]);
}

// p: the matrix's scale, codes, the scales of sixteen each.
void block_nvfp4(const uint8_t* p, float* out) {
  for (int i = 0; i < 64; ++i) {
    const float scale = fp8_e4m3_to_f32(p[36 + i / 16]) / load_f32(p);
    out[i] = rounded(true, kNvfp4Values[integer_code(p + 4 + i / 32 * 16, 4, i % 32)] * scale);
  }
}

// p: the scale, codes.
template <bool kIsBf16>
void block_fp8(const uint8_t* p, float* out) {
  for (int i = 0; i < kSmallBlock; ++i) out[i] = rounded(kIsBf16, fp8_e4m3_to_f32(p[4 + i]) * load_f32(p));
}
template <const float (&kValues)[16], bool kIsBf16>
void block_of_table(const uint8_t* p, float* out) {
  for (int i = 0; i < 64; ++i)
    out[i] = rounded(kIsBf16, kValues[integer_code(p + 4 + i / 32 * 16, 4, i % 32)] * load_f32(p));
}
template <bool kIsBf16>
void block_row_int8(const uint8_t* p, float* out) {
  for (int i = 0; i < kSmallBlock; ++i) {
    const float product = static_cast<float>(static_cast<int8_t>(p[4 + i])) * load_f32(p);
    out[i] = rounded(kIsBf16, product * kOneOver127);
  }
}

// p: which are kept, those that are.
template <bool kIsBf16>
void block_sparse24(const uint8_t* p, float* out) {
  uint32_t kept;
  std::memcpy(&kept, p, 4);
  int next = 0;
  for (int i = 0; i < kSmallBlock; ++i) {
    uint16_t half = 0;
    if ((kept >> i & 1) != 0 && next < kSmallBlock / 2) std::memcpy(&half, p + 4 + 2 * next++, 2);
    out[i] = kIsBf16 ? bf16_to_f32(half) : f16_to_f32(half);
  }
}

using Decode = void (*)(const uint8_t* block, float* out);
constexpr Decode kDecode[] = {nullptr,
                              block_q8_0,
                              block_q4_0,
                              block_q4_1,
                              block_q5_0,
                              block_q5_1,
                              block_q2_k,
                              block_q3_k,
                              block_q4_k,
                              block_q5_k,
                              block_q6_k,
                              block_iq4_nl,
                              block_iq4_xs,
                              block_mxfp4,
                              block_integers<4, false>,
                              block_integers<4, true>,
                              block_integers<8, false>,
                              block_integers<8, true>,
                              nullptr,
                              nullptr,
                              nullptr,
                              nullptr,
                              block_nvfp4,
                              block_fp8<false>,
                              block_fp8<true>,
                              block_of_table<kNf4Values, false>,
                              block_of_table<kNf4Values, true>,
                              block_of_table<kFp4Values, false>,
                              block_of_table<kFp4Values, true>,
                              block_row_int8<false>,
                              block_row_int8<true>,
                              block_sparse24<false>,
                              block_sparse24<true>};
static_assert(sizeof kDecode / sizeof kDecode[0] == kNumBlockFormats);

}  // namespace

BlockFormat find_block_format(std::string_view name) {
  for (int i = 1; i < kNumBlockFormats; ++i)
    if (name == kBlockSizes[i].name) return static_cast<BlockFormat>(i);
  return BlockFormat::kNone;
}

void decode_block(BlockFormat format, const uint8_t* block, float* out) {
  LLMB_CHECK(format != BlockFormat::kNone && !is_indexed(format));
  kDecode[static_cast<int>(format)](block, out);
}

void decode_row(const TensorView& matrix, int64_t row, float* out) {
  const BlockSize& block = block_size(matrix.blocks);
  const uint8_t* at = static_cast<const uint8_t*>(matrix.data) + row * matrix.row_bytes();
  if (!is_indexed(matrix.blocks)) {
    for (int64_t k = 0; k < matrix.cols; k += block.size, at += block.bytes) decode_block(matrix.blocks, at, out + k);
    return;
  }
  const uint8_t* const scales = at + matrix.cols / block.size * block.bytes;
  const uint8_t* const zeros = scales + 2 * matrix.groups.count;
  const int bits = block.bytes == kSmallBlock ? 8 : 4;
  for (int64_t k = 0; k < matrix.cols; ++k) {
    const int code = integer_code(at + k / block.size * block.bytes, bits, static_cast<int>(k % block.size));
    const int64_t group = matrix.groups.of[k];
    out[k] = integer(has_bf16_numbers(matrix.blocks), scales + 2 * group, code, zeros[group]);
  }
}

}  // namespace llmb
