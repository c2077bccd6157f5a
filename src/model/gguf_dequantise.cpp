#include "model/gguf_dequantise.h"

#include <cmath>
#include <cstring>
#include <string_view>

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

// Eight scales and eight minima of six bits each in twelve bytes.
struct ScaleAndMin {
  float scale, min;
};

ScaleAndMin scale_and_min(const uint8_t* p, int j) {
  if (j < 4) return {static_cast<float>(p[j] & 63), static_cast<float>(p[j + 4] & 63)};
  return {static_cast<float>((p[j + 4] & 15) | p[j - 4] >> 6 << 4), static_cast<float>(p[j + 4] >> 4 | p[j] >> 6 << 4)};
}

// Q4_K, and Q5_K with the fifth bits in `high`.
void block_q4_or_q5_k(const uint8_t* p, const uint8_t* high, const uint8_t* low, float* out) {
  const float d = load_f16(p), dmin = load_f16(p + 2);
  for (int j = 0; j < 8; ++j) {
    const auto [sc, m] = scale_and_min(p + 4, j);
    const float scale = d * sc, min = dmin * m;
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
  static constexpr float kValues[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
  const float scale = std::ldexp(1.0f, p[0] - 128);
  for (int i = 0; i < 16; ++i) {
    out[i] = kValues[p[1 + i] & 15] * scale;
    out[i + 16] = kValues[p[1 + i] >> 4] * scale;
  }
}

void block_f32(const uint8_t* p, float* out) { std::memcpy(out, p, 4); }
void block_f16(const uint8_t* p, float* out) { *out = load_f16(p); }
void block_bf16(const uint8_t* p, float* out) {
  uint16_t bits;
  std::memcpy(&bits, p, 2);
  *out = bf16_to_f32(bits);
}

using Block = void (*)(const uint8_t* block, float* out);

Block find_block(std::string_view type) {
  static constexpr struct {
    std::string_view name;
    Block block;
  } kBlocks[] = {{"F32", block_f32},   {"F16", block_f16},   {"BF16", block_bf16}, {"Q8_0", block_q8_0},
                 {"Q4_0", block_q4_0}, {"Q4_1", block_q4_1}, {"Q5_0", block_q5_0}, {"Q5_1", block_q5_1},
                 {"Q4_K", block_q4_k}, {"Q5_K", block_q5_k}, {"Q6_K", block_q6_k}, {"MXFP4", block_mxfp4}};
  for (const auto& entry : kBlocks)
    if (entry.name == type) return entry.block;
  return nullptr;
}

}  // namespace

bool can_dequantise(const GgufTensorType& type) { return find_block(type.name) != nullptr; }

void dequantise_row(const GgufTensorType& type, const uint8_t* row, int64_t cols, float* out) {
  const Block block = find_block(type.name);
  LLMB_CHECK(block != nullptr && cols % type.block_size == 0);
  for (int64_t col = 0; col < cols; col += type.block_size, row += type.block_bytes) block(row, out + col);
}

}  // namespace llmb
