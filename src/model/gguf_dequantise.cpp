#include "model/gguf_dequantise.h"

#include <cstring>
#include <string_view>

#include "base/check.h"
#include "base/float_formats.h"
#include "core/block_format.h"

namespace llmb {

namespace {

// Types whose numbers stand by themselves.
void convert_row(std::string_view type, const uint8_t* row, int64_t cols, float* out) {
  if (type == "F32") return static_cast<void>(std::memcpy(out, row, static_cast<size_t>(cols) * sizeof(float)));
  for (int64_t i = 0; i < cols; ++i) {
    uint16_t bits;
    std::memcpy(&bits, row + 2 * i, 2);
    out[i] = type == "BF16" ? bf16_to_f32(bits) : f16_to_f32(bits);
  }
}

bool is_float(std::string_view type) { return type == "F32" || type == "F16" || type == "BF16"; }

}  // namespace

bool can_dequantise(const GgufTensorType& type) {
  return is_float(type.name) || find_block_format(type.name) != BlockFormat::kNone;
}

void dequantise_row(const GgufTensorType& type, const uint8_t* row, int64_t cols, float* out) {
  if (is_float(type.name)) return convert_row(type.name, row, cols, out);
  const BlockFormat format = find_block_format(type.name);
  LLMB_CHECK(format != BlockFormat::kNone && cols % type.block_size == 0);
  for (int64_t col = 0; col < cols; col += type.block_size, row += type.block_bytes)
    decode_block(format, row, out + col);
}

}  // namespace llmb
