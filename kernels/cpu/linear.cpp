#include "kernels/cpu/linear.h"

#include <cstring>

#include "base/check.h"
#include "kernels/cpu/float_formats.h"

namespace llmb::cpu {

namespace {

constexpr int64_t kWidth = PackedLinear::kPanelWidth;

float load_element(const TensorView& t, int64_t index) {
  const uint8_t* p = static_cast<const uint8_t*>(t.data) + index * dtype_bytes(t.dtype);
  if (t.dtype == DType::kF32) {
    float v;
    std::memcpy(&v, p, 4);
    return v;
  }
  uint16_t v;
  std::memcpy(&v, p, 2);
  return t.dtype == DType::kBF16 ? bf16_to_f32(v) : f16_to_f32(v);
}

}  // namespace

// Index within a panel of weight (k, column).
static int64_t panel_index(DType dtype, int64_t k, int64_t column) {
  return dtype == DType::kBF16 ? (k / 2) * (2 * kWidth) + column * 2 + k % 2 : k * kWidth + column;
}

PackedLinear PackedLinear::pack(std::span<const TensorView> parts, std::span<const TensorView> biases,
                                ThreadPool& pool) {
  LLMB_CHECK(!parts.empty() && parts[0].cols >= 1);
  LLMB_CHECK(biases.empty() || biases.size() == parts.size());
  PackedLinear w;
  w.dtype_ = parts[0].dtype;
  w.in_features_ = parts[0].cols;
  for (const TensorView& part : parts) {
    LLMB_CHECK(part.cols == w.in_features_ && part.rows >= 0);
    if (part.dtype != w.dtype_) w.dtype_ = DType::kF32;
    w.out_features_ += part.rows;
  }
  const int64_t padded_k = w.in_features_ + (w.dtype_ == DType::kBF16 ? w.in_features_ % 2 : 0);
  w.panel_bytes_ = padded_k * kWidth * dtype_bytes(w.dtype_);
  w.weights_ = AlignedBuffer(w.num_panels() * w.panel_bytes_);
  pool.parallel_for(w.num_panels(), [&](int64_t p, int) {
    uint8_t* panel = w.weights_.data() + p * w.panel_bytes_;
    std::memset(panel, 0, static_cast<size_t>(w.panel_bytes_));
    int64_t part_begin = 0;
    for (const TensorView& part : parts) {
      for (int64_t c = 0; c < kWidth; ++c) {
        const int64_t row = p * kWidth + c - part_begin;
        if (row < 0 || row >= part.rows) continue;
        for (int64_t k = 0; k < w.in_features_; ++k) {
          const int64_t to = panel_index(w.dtype_, k, c), from = row * part.cols + k;
          if (w.dtype_ == DType::kF32) {
            reinterpret_cast<float*>(panel)[to] = load_element(part, from);
          } else {
            std::memcpy(panel + to * 2, static_cast<const uint8_t*>(part.data) + from * 2, 2);
          }
        }
      }
      part_begin += part.rows;
    }
  });
  if (biases.empty()) return w;
  w.bias_ = AlignedBuffer(w.num_panels() * kWidth * 4);
  std::memset(w.bias_.data(), 0, static_cast<size_t>(w.bias_.size_bytes()));
  float* bias = reinterpret_cast<float*>(w.bias_.data());
  for (size_t i = 0; i < parts.size(); ++i) {
    LLMB_CHECK(biases[i].rows * biases[i].cols == parts[i].rows);
    for (int64_t r = 0; r < parts[i].rows; ++r) *bias++ = load_element(biases[i], r);
  }
  return w;
}

static float weight_at(const PackedLinear& w, int64_t n, int64_t k) {
  const uint8_t* panel = w.panel(n / kWidth);
  const int64_t i = panel_index(w.dtype(), k, n % kWidth);
  if (w.dtype() == DType::kF32) return reinterpret_cast<const float*>(panel)[i];
  const uint16_t bits = reinterpret_cast<const uint16_t*>(panel)[i];
  return w.dtype() == DType::kBF16 ? bf16_to_f32(bits) : f16_to_f32(bits);
}

void linear(const PackedLinear& w, const float* x, int64_t rows, float* out, ThreadPool& pool) {
  const int64_t num_k = w.in_features(), num_n = w.out_features();
  pool.parallel_for(w.num_panels(), [&](int64_t p, int) {
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t n = p * kWidth; n < num_n && n < (p + 1) * kWidth; ++n) {
        float acc = 0;
        for (int64_t k = 0; k < num_k; ++k) acc += x[r * num_k + k] * weight_at(w, n, k);
        out[r * num_n + n] = w.bias() ? acc + w.bias()[n] : acc;
      }
    }
  });
}

void embedding(const PackedLinear& table, const TokenId* tokens, int64_t num_tokens, float* out, ThreadPool& pool) {
  const int64_t hidden = table.in_features();
  pool.parallel_for(num_tokens, [&](int64_t i, int) {
    LLMB_CHECK(tokens[i] >= 0 && tokens[i] < table.out_features());
    for (int64_t k = 0; k < hidden; ++k) out[i * hidden + k] = weight_at(table, tokens[i], k);
  });
}

}  // namespace llmb::cpu
