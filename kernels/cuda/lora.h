// lora: out[row, columns] += B t[row] with t[row] = scale * A x[row], for rows that have an adapter, by items: a few rows
// with one adapter (Punica, Chen et al. 2023, arXiv:2310.18547: SGMV, and BGMV where an item is a row). Ranks of any size
// stand side by side.
//
// t is fp32, and a sum's order depends on its own length alone: a row's bits depend on its x, its out and its adapter,
// whatever rows are beside it.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "core/types.h"

namespace llmb::cuda {

inline constexpr int32_t kLoraItemRows = 8;   // of an item, at most
inline constexpr int32_t kMaxLoraParts = 3;   // q, k and v
inline constexpr int32_t kMaxLoraRanks = 768;  // of all parts of a product

// A matrix of the activations' type in pages of device memory: its rows in order, each whole and aligned to 16 bytes where
// all are (can_pack).
struct LoraMatrix {
  const void* first = nullptr;         // rows_in_first rows
  const void* const* pages = nullptr;  // the pages of those behind them, rows_per_page in each
  int32_t rows_in_first = 0, rows_per_page = 1;
};

// Matrices that add to neighbouring columns of out.
struct LoraPart {
  LoraMatrix a;  // [rank_end - rank_begin, in_features]
  LoraMatrix b;  // [rank_end - rank_begin, num_columns]  the transpose of what is published
  int32_t rank_begin = 0, rank_end = 0;  // of the product's parts together
  int32_t out_column = 0, num_columns = 0;
  float scale = 1;
};

// The matrices that an adapter has for a product, for different columns; the parts that it lacks have no ranks.
struct LoraProduct {
  LoraPart parts[kMaxLoraParts];
  int32_t num_ranks = 0;
};

struct LoraItem {
  const LoraProduct* products = nullptr;  // of the rows' adapter, all of them
  int32_t row_begin = 0, row_end = 0;     // into row_ids; none: nothing is computed
};

struct LoraRows {
  const LoraItem* items = nullptr;   // [num_items]  a row is in one of them at most
  const int32_t* row_ids = nullptr;  // rows of x and out; null: all, in order
  int32_t num_items = 0;
  int32_t first_row = 0, end_row = INT32_MAX;  // others are left as they are; x and out begin with the first
  const int32_t* x_row_ids = nullptr;  // rows of x, where these are others than out's
  bool has_new_items = false;          // a kernel shortly before wrote the items: nothing starts ahead of it
};

// product: index into LoraItem::products. can_pack: in_features, out_features and all parts' columns are multiples of
// 8; x and out are aligned to 16 bytes. T: float, __nv_bfloat16 or __half; Out: T or float. Throws CudaError.
template <class T, class Out>
void lora(const LoraRows& rows, int32_t product, bool can_pack,
          const T* x,  // [any, in_features]
          int64_t in_features,
          Out* out,  // [any, out_features]  in and out
          int64_t out_features,
          float* t,  // [row_ids, kMaxLoraRanks]  scratch
          cudaStream_t stream);

// The same of an embedding: t[row] = scale * a[token], of products with one part whose a is [tokens, ranks].
template <class T>
void lora_embedding(const LoraRows& rows, int32_t product, bool can_pack,
                    const TokenId* tokens,  // [any]
                    float* out,             // [any, out_features]  in and out
                    int64_t out_features,
                    float* t,  // [row_ids, kMaxLoraRanks]  scratch
                    cudaStream_t stream);

}  // namespace llmb::cuda
