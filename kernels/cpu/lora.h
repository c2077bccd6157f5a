// lora: out[row, columns] += B t[row] with t[row] = scale * A x[row], for rows that have an adapter, by segments of rows
// with one adapter (Punica, Chen et al. 2023, arXiv:2310.18547: SGMV, and BGMV where a segment is a row). Ranks of any
// size stand side by side. lora_shrink() makes t for all rows; the tasks of the product that is added to expand it while
// their outputs are in a cache (linear.h, LinearCall::lora).
//
// A row's bits depend on its own x, its own out and its adapter: every sum has one order, whatever rows are beside it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "core/types.h"

namespace llmb::cpu {

inline constexpr int64_t kLoraPanel = 16;  // columns of out, or k of a, that lie side by side
inline constexpr int64_t kLoraRanks = 4;   // ranks of a that lie side by side

// Matrices that add to neighbouring columns of out, in the form that the kernels read: zeros beyond in_features and
// beyond the columns.
struct LoraMatrices {
  bool is_bf16 = false;  // the elements of a and b; else fp32
  int64_t rank = 0, in_features = 0, out_column = 0, num_columns = 0;
  float scale = 1;
  const uint8_t* a = nullptr;  // [rank / kLoraRanks, k panels, kLoraRanks, kLoraPanel], the ranks left [k panels, kLoraPanel]
  const uint8_t* b = nullptr;  // [panels of out that have columns, rank, kLoraPanel]

  int64_t padded_k() const { return ceil_div(in_features, kLoraPanel) * kLoraPanel; }
  int64_t first_panel() const { return out_column / kLoraPanel; }
  int64_t num_panels() const { return ceil_div(out_column + num_columns, kLoraPanel) - first_panel(); }
  int64_t element_bytes() const { return is_bf16 ? 2 : 4; }
  int64_t a_bytes() const { return rank * padded_k() * element_bytes(); }
  int64_t b_bytes() const { return num_panels() * rank * kLoraPanel * element_bytes(); }
  // The element of a for this rank and this k, a multiple of kLoraPanel, whose successors lie behind it.
  int64_t a_index(int64_t r, int64_t k) const {
    if (r >= rank / kLoraRanks * kLoraRanks) return r * padded_k() + k;
    return r / kLoraRanks * kLoraRanks * padded_k() + k * kLoraRanks + r % kLoraRanks * kLoraPanel;
  }
  // The element of b for this rank and one of num_columns; the next rank's is kLoraPanel further on.
  int64_t b_index(int64_t r, int64_t column) const {
    const int64_t at = out_column + column;
    return ((at / kLoraPanel - first_panel()) * rank + r) * kLoraPanel + at % kLoraPanel;
  }
};

struct LoraSegment {
  std::span<const LoraMatrices> matrices;  // of the segment's adapter, for different columns
  int32_t row_begin = 0, row_end = 0;      // into row_ids
};

struct ByteRange {
  const uint8_t* begin;
  int64_t bytes;
};

// A part of lora_shrink's work: rows of a segment by ranks of one of its matrices.
struct LoraItem {
  const LoraMatrices* matrices;
  int32_t row_begin, row_end;    // into row_ids
  int32_t rank_begin, rank_end;  // rank_begin is a multiple of kLoraRanks
  int32_t t_begin;               // rank 0's place in a row of t
  const uint8_t* next;           // where the item begins that its thread most likely takes next
};

// The rows of a product that have adapters. Used for one product after the other, so that steps allocate nothing.
struct LoraWork {
  std::vector<LoraSegment> segments;  // a row is in one of them at most
  const int32_t* row_ids = nullptr;   // [num_ids]  rows of x and out, ascending within a segment
  // Set by lora_shrink().
  std::vector<LoraItem> items;
  std::vector<float> t;  // [num_ids, t_stride]  for each of a row's matrices its ranks
  int64_t t_stride = 0;
};

// Sets work->t.
void lora_shrink(const float* x,  // [rows, in_features]
                 int64_t in_features, LoraWork* work, ThreadPool& pool);

// Adds to rows and columns of out. REQUIRES: column_begin is a multiple of kLoraPanel; so is column_end, or no matrix has
// columns behind it.
void lora_expand(const LoraWork& work, int64_t row_begin, int64_t row_end, int64_t column_begin, int64_t column_end,
                 float* out,  // [row_end - row_begin, out_stride]  in and out, from column_begin on
                 int64_t out_stride);

// Adds the memory that lora_expand() will read for these rows and columns.
void add_lora_ranges(const LoraWork& work, int64_t row_begin, int64_t row_end, int64_t column_begin, int64_t column_end,
                     std::vector<ByteRange>* ranges);

}  // namespace llmb::cpu
