#include "core/block_format.h"

#include <cmath>
#include <cstring>

#include "base/check.h"
#include "base/float_formats.h"

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

using Decode = void (*)(const uint8_t* block, float* out);
constexpr Decode kDecode[] = {nullptr,    block_q8_0, block_q4_0, block_q4_1, block_q5_0,   block_q5_1,   block_q2_k,
                              block_q3_k, block_q4_k, block_q5_k, block_q6_k, block_iq4_nl, block_iq4_xs, block_mxfp4};
static_assert(sizeof kDecode / sizeof kDecode[0] == kNumBlockFormats);

}  // namespace

BlockFormat find_block_format(std::string_view name) {
  for (int i = 1; i < kNumBlockFormats; ++i)
    if (name == kBlockSizes[i].name) return static_cast<BlockFormat>(i);
  return BlockFormat::kNone;
}

void decode_block(BlockFormat format, const uint8_t* block, float* out) {
  LLMB_CHECK(format != BlockFormat::kNone);
  kDecode[static_cast<int>(format)](block, out);
}

}  // namespace llmb
