// lora: out[row, columns] += scale * B (A x[row]) for rows that have an adapter, by segments of rows with one adapter
// (Punica, Chen et al. 2023, arXiv:2310.18547: SGMV, and BGMV where a segment is a row). Ranks of any size stand side
// by side.
//
// A row's bits depend on its own x, its own out and its adapter: every sum has one order, whatever rows are beside it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/thread_pool.h"

namespace llmb::cpu {

inline constexpr int64_t kLoraPanel = 16;  // columns of out that lie side by side in b

// Matrices that add to neighbouring columns of out.
struct LoraMatrices {
  std::vector<float> a;  // [rank, in_features]
  std::vector<float> b;  // [ceil(num_columns / kLoraPanel), rank, kLoraPanel]  zeros beyond num_columns
  int64_t rank = 0, out_column = 0, num_columns = 0;
  float scale = 1;
};

struct LoraSegment {
  std::span<const LoraMatrices> matrices;  // of the segment's adapter; ranks of at most kMaxLoraKernelRank
  int32_t row_begin = 0, row_end = 0;      // into row_ids
};

inline constexpr int64_t kMaxLoraKernelRank = 256;

void lora(const float* x,  // [rows, in_features]
          int64_t in_features,
          std::span<const LoraSegment> segments,  // a row is in one of them at most
          const int32_t* row_ids,                 // [num_ids]  rows of x and out
          float* out,                             // [rows, out_features]  in and out
          int64_t out_features, ThreadPool& pool);

}  // namespace llmb::cpu
