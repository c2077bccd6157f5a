// linear: out = x · weightᵀ + bias, over weights that are packed once at load; linear_group: several of them at once.
// embedding: rows of the same packed form, so tied embeddings need one copy.
// PackedLinear is immutable after pack() and may be read by many threads; the functions themselves use the pool, so one
// call at a time.
//
// 1. Each output element is one fp32 multiply-add chain over k = 0 … in_features − 1 that starts at 0, plus the bias at
//    the end: it depends on its own row of x and on nothing else of the call (rows, threads, position in the batch).
// 2. Weights keep their stored dtype; arithmetic is fp32. Parts of different dtypes are packed as fp32.
// 3. Padding (out_features up to a multiple of kPanelWidth) is zero and never reaches an output.
#pragma once

#include <cstdint>
#include <span>

#include "base/thread_pool.h"
#include "core/tensor_view.h"
#include "core/types.h"
#include "kernels/cpu/aligned_buffer.h"

namespace llmb::cpu {

class PackedLinear {
 public:
  // Output features of one panel. A panel holds, for each k in turn, the weights of kPanelWidth output features; bf16
  // panels interleave pairs of k (see linear.cpp).
  static constexpr int64_t kPanelWidth = 64;

  // A matrix of the rows of `parts` stacked in order; `biases` is empty or has one vector for each part (rows == 1).
  // REQUIRES: equal cols >= 1, rows >= 0. Throws std::bad_alloc.
  static PackedLinear pack(std::span<const TensorView> parts, std::span<const TensorView> biases, ThreadPool& pool);

  int64_t out_features() const { return out_features_; }
  int64_t in_features() const { return in_features_; }
  int64_t num_panels() const { return ceil_div(out_features_, kPanelWidth); }
  int64_t resident_bytes() const { return weights_.size_bytes() + bias_.size_bytes(); }
  DType dtype() const { return dtype_; }

  // Panel p, from output feature p * kPanelWidth on.
  const uint8_t* panel(int64_t p) const { return weights_.data() + p * panel_bytes_; }
  // nullptr without bias.
  const float* bias() const { return bias_.empty() ? nullptr : reinterpret_cast<const float*>(bias_.data()); }

 private:
  DType dtype_ = DType::kF32;
  int64_t out_features_ = 0, in_features_ = 0;
  int64_t panel_bytes_ = 0;
  AlignedBuffer weights_;  // [num_panels, panel_bytes]
  AlignedBuffer bias_;     // [num_panels * kPanelWidth] fp32, or empty
};

void linear(const PackedLinear& weight,  // [out_features, in_features]
            const float* x,              // [rows, in_features]
            int64_t rows,
            float* out,  // [rows, out_features]
            ThreadPool& pool);

// One product of a group: rows of x by a weight of its own.
struct LinearCall {
  const PackedLinear* weight;
  const float* x;  // [rows, in_features]
  int64_t rows;
  float* out;  // [rows, out_features]
};
void linear_group(std::span<const LinearCall> calls, ThreadPool& pool);

// out[i] = table[tokens[i]]. REQUIRES: 0 <= tokens[i] < out_features.
void embedding(const PackedLinear& table,  // [vocab_size, hidden_size]
               const TokenId* tokens,      // [num_tokens]
               int64_t num_tokens,
               float* out,  // [num_tokens, hidden_size]
               ThreadPool& pool);

// out[i] += table[rows[i]]. REQUIRES: 0 <= rows[i] < out_features.
void add_embedding(const PackedLinear& table,  // [any, hidden_size]
                   const int32_t* rows,        // [num_rows]
                   int64_t num_rows,
                   float* out,  // [num_rows, hidden_size]  in and out
                   ThreadPool& pool);

}  // namespace llmb::cpu
