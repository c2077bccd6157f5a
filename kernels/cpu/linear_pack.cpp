// Packing: panel p holds output features [64 p, 64 p + 64). Layout inside a panel, by dtype:
//   float32, float16   [in_features][64]
//   bfloat16           [ceil(in_features / 2)][64][2]  pairs of k in one 32-bit word: the even one widens by a shift,
//   the
//                      odd one by a mask, and the pair is the operand of a bf16 dot product
#include <cstring>
#include <vector>

#include "base/check.h"
#include "base/float_formats.h"
#include "kernels/cpu/linear.h"

namespace llmb::cpu {

namespace {

constexpr int64_t kWidth = PackedLinear::kPanelWidth;

float load_element(const TensorView& t, int64_t index) {
  const uint8_t* p = static_cast<const uint8_t*>(t.data) + index * dtype_bytes(t.dtype);
  if (t.dtype == DType::kF32) {
    float v;
    std::memcpy(&v, p, sizeof v);
    return v;
  }
  uint16_t v;
  std::memcpy(&v, p, sizeof v);
  return t.dtype == DType::kBF16 ? bf16_to_f32(v) : f16_to_f32(v);
}

// Index within a panel of weight (k, column).
int64_t panel_index(DType dtype, int64_t k, int64_t column) {
  return dtype == DType::kBF16 ? (k / 2) * (2 * kWidth) + column * 2 + k % 2 : k * kWidth + column;
}

// Writes row `row` of `part` as column `column` of the panel.
void pack_row(const TensorView& part, int64_t row, DType dtype, int64_t column, uint8_t* panel) {
  if (dtype == DType::kF32) {
    float* to = reinterpret_cast<float*>(panel);
    for (int64_t k = 0; k < part.cols; ++k) to[panel_index(dtype, k, column)] = load_element(part, row * part.cols + k);
    return;
  }
  uint16_t* to = reinterpret_cast<uint16_t*>(panel);
  const uint8_t* from = static_cast<const uint8_t*>(part.data) + row * part.cols * 2;
  for (int64_t k = 0; k < part.cols; ++k) std::memcpy(&to[panel_index(dtype, k, column)], from + k * 2, 2);
}

}  // namespace

PackedLinear PackedLinear::pack(std::span<const TensorView> parts, std::span<const TensorView> biases,
                                ThreadPool& pool) {
  LLMB_CHECK(!parts.empty() && parts[0].cols >= 1);
  LLMB_CHECK(biases.empty() || biases.size() == parts.size());
  PackedLinear w;
  w.dtype_ = parts[0].dtype;
  w.in_features_ = parts[0].cols;
  std::vector<int64_t> part_start = {0};
  for (const TensorView& part : parts) {
    LLMB_CHECK(part.cols == w.in_features_ && part.rows >= 0);
    if (part.dtype != w.dtype_) w.dtype_ = DType::kF32;
    part_start.push_back(part_start.back() + part.rows);
  }
  w.out_features_ = part_start.back();
  const int64_t padded_k = w.dtype_ == DType::kBF16 ? ceil_div(w.in_features_, 2) * 2 : w.in_features_;
  w.panel_bytes_ = padded_k * kWidth * dtype_bytes(w.dtype_);
  w.weights_ = AlignedBuffer(w.num_panels() * w.panel_bytes_);
  pool.parallel_for(w.num_panels(), [&](int64_t p, int) {
    uint8_t* panel = w.weights_.data() + p * w.panel_bytes_;
    std::memset(panel, 0, static_cast<size_t>(w.panel_bytes_));
    size_t i = 0;
    for (int64_t n = p * kWidth; n < std::min(w.out_features_, (p + 1) * kWidth); ++n) {
      while (n >= part_start[i + 1]) ++i;
      pack_row(parts[i], n - part_start[i], w.dtype_, n % kWidth, panel);
    }
  });
  if (biases.empty() || w.out_features_ == 0) return w;
  w.bias_ = AlignedBuffer(w.num_panels() * kWidth * int64_t{sizeof(float)});
  std::memset(w.bias_.data(), 0, static_cast<size_t>(w.bias_.size_bytes()));
  float* bias = reinterpret_cast<float*>(w.bias_.data());
  for (size_t i = 0; i < parts.size(); ++i) {
    LLMB_CHECK(biases[i].rows * biases[i].cols == parts[i].rows);
    for (int64_t r = 0; r < parts[i].rows; ++r) *bias++ = load_element(biases[i], r);
  }
  return w;
}

namespace {

// Calls set(k, value) for each element of row `row` of the table.
template <typename Set>
void for_each_element(const PackedLinear& table, int64_t row, const Set& set) {
  LLMB_CHECK(row >= 0 && row < table.out_features());
  const DType dtype = table.dtype();
  const uint8_t* panel = table.panel(row / kWidth);
  for (int64_t k = 0; k < table.in_features(); ++k) {
    const int64_t at = panel_index(dtype, k, row % kWidth);
    if (dtype == DType::kF32) {
      set(k, reinterpret_cast<const float*>(panel)[at]);
    } else {
      const uint16_t bits = reinterpret_cast<const uint16_t*>(panel)[at];
      set(k, dtype == DType::kBF16 ? bf16_to_f32(bits) : f16_to_f32(bits));
    }
  }
}

}  // namespace

void embedding(const PackedLinear& table, const TokenId* tokens, int64_t num_tokens, float* out, ThreadPool& pool) {
  pool.parallel_for(num_tokens, [&](int64_t i, int) {
    float* row = out + i * table.in_features();
    for_each_element(table, tokens[i], [row](int64_t k, float value) { row[k] = value; });
  });
}

void add_embedding(const PackedLinear& table, const int32_t* rows, int64_t num_rows, float* out, ThreadPool& pool) {
  pool.parallel_for(num_rows, [&](int64_t i, int) {
    float* row = out + i * table.in_features();
    for_each_element(table, rows[i], [row](int64_t k, float value) { row[k] += value; });
  });
}

}  // namespace llmb::cpu
