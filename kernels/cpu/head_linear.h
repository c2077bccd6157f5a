// head_linear: a product for each head: of every row, columns of head h = other columns of head h · weight[h]ᵀ. For
// latent attention (LatentConfig in core/model_config.h).
// Each output element depends on its own row of x alone (linear.h, 1).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/cpu/linear.h"

namespace llmb::cpu {

// Where a head's columns are in a row: head h's first is column first + h * head_stride.
struct HeadColumns {
  int64_t row_stride;
  int64_t first;
  int64_t head_stride;

  int64_t at(int64_t row, int64_t head) const { return row * row_stride + first + head * head_stride; }
};

// Memory between calls. Grows to what the largest call needs.
struct HeadLinearScratch {
  std::vector<float> x, y;
};

// REQUIRES: weights of one shape; x and out do not overlap.
void head_linear(std::span<const PackedLinear* const> weights,  // [num_heads] of [out_features, in_features]
                 const float* x, const HeadColumns& x_columns, int64_t rows, float* out, const HeadColumns& out_columns,
                 HeadLinearScratch* scratch, ThreadPool& pool);

}  // namespace llmb::cpu
