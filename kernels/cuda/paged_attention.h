// paged_attention: attention of a step's new tokens over their sequences' cached context, through block tables: causal,
// within chunks, or over positions behind a token's own as well (AttentionShape::chunk, later).
// out = softmax(q · Kᵀ * scale) · V for each query head; query heads of a group share a KV head (GQA).
//
// 1. Prefill, chunks of it and decode mix in one launch; its grid and arguments do not depend on the step.
// 2. A row's result depends on its sequence only. Slots past the context, before the window of an item's first row, or
//    never written may hold NaN. A NaN that a sequence has written may reach every row of that sequence.
// 3. Deterministic: a row's bits do not depend on the rest of the step, nor on how its sequence was cut into chunks.
// 4. The combined result of a unit in pieces is merged in order of positions, whichever block comes last.
// 5. Positions that several sequences share are computed by a launch of its own, for all their rows at once, where the
//    work has one, each as far as its window reaches. The states go on in the order of positions: deterministic bits
//    are as without it.
// 6. A row of a tree that lies behind its place is a sequence of one row in the schedule. It sees its ancestors at the
//    positions of their depth, and has the bits that it would have had behind them in a chain.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/paged_attention_schedule.h"
#include "kernels/cuda/resolve_step.h"
#include "kernels/cuda/scaled_kv.h"

namespace llmb::cuda {

struct AttentionParams {
  AttentionShape shape;
  float scale = 1;                      // > 0
  float softcap = 0;                    // > 0: scores become softcap * tanh(score / softcap)
  const float* alibi_slopes = nullptr;  // [num_heads]  score += slope * (key position - query position); null: none
  const float* sinks = nullptr;         // [num_heads]  a further score whose value is 0; null: none
};

// The step's rows, on the device, where some lie behind their place.
struct AttentionTree {
  const StepRow* rows = nullptr;         // [num_tokens]
  const int32_t* parent_rows = nullptr;  // [num_tokens]; null: all rows are in their place
  const int32_t* slots = nullptr;        // [num_tokens]
};

constexpr int32_t kStateStats = 8;  // floats: the sums of the four lanes that hold a row, its maximum

// The launch over shared prefixes, on the device (paged_attention_shared.h); the states that it leaves.
struct SharedAttentionWork {
  int32_t num_ctas = 0;
  const AttentionItem* items = nullptr;  // [<= max_items]
  const int32_t* cta_start = nullptr;    // [num_ctas + 1]
  const int32_t* tokens = nullptr;       // rows of qkv that the items index
  const int32_t* positions = nullptr;    // [num_tokens]
  float* values = nullptr;               // [max_states, head_dim]
  float* stats = nullptr;                // [max_states, kStateStats]; null: no positions are shared
  bool uses_wgmma = false;               // the items are for Hopper's kernel
};

// A schedule on the device. Two steps' lists may share everything but items and cta_start.
// REQUIRES: the schedule's shape is params.shape but for its window, which may also be 0 or larger, and for `later`,
// which may be larger; both 0, or neither.
struct AttentionWork {
  int32_t num_ctas = 0;
  const AttentionItem* items = nullptr;  // [<= max_items]
  const int32_t* cta_start = nullptr;    // [num_ctas + 1]
  float* partials = nullptr;             // [max_partial_rows, value_dim]
  float* partial_stats = nullptr;        // [max_partial_rows, 2]
  int32_t* counters = nullptr;           // [max_splits]  0 at first, and again after every launch
  // Only where the tiling has wgmma: whether a unit may have more than kTileRows rows (false in decode saves a launch),
  // and how many blocks the pools have.
  bool has_wgmma_items = true;
  int32_t num_blocks = 0;
  AttentionTree tree;
  SharedAttentionWork shared;  // REQUIRES: no tree
  int32_t num_tables = 1;      // of a sequence, in layers with different windows: their ids of a block stand together
};

// One layer. The new tokens' keys and values are already in the pool. T: float, __nv_bfloat16 or __half, as
// shape.dtype. Rows of `out` that belong to no sequence are not written. q, out, k and v are 16-byte aligned,
// qkv_stride a multiple of 8, unless the tiling is scalar. Throws CudaError.
template <class T>
void paged_attention(const T* qkv,              // [num_tokens, qkv_stride]  q at the start of each row
                     int64_t qkv_stride,        // elements from one token's q to the next
                     T* out,                    // [num_tokens, num_heads * value_dim]
                     // [num_blocks, num_kv_heads, block_size, head_dim], < 2^32 rows, blocks shape.block_stride apart.
                    // With latents v is k.
                    const T* k, const T* v,
                     const BlockId* block_ids,  // [blocks of all tables, num_tables], from this layer's first id on
                     const AttentionWork& work, const AttentionParams& params, cudaStream_t stream);

// Attention of prompts over latents expanded to keys and values (paged_attention_expanded.h), of the heads of
// params.shape, each with a KV head of its own. `queries` and `out` begin with the first of them; the schedule's block
// tables are of `pool`. REQUIRES: shape.joined_value_dim > 0, and neither deterministic nor any window, chunk, tree or
// shared positions. Strides are multiples of 8, unless the tiling is scalar.
template <class T>
void expanded_attention(const T* queries, int64_t query_stride,  // [num_tokens, query_stride]
                        T* out, int64_t out_stride,              // [num_tokens, out_stride]
                        const T* pool,  // [num_blocks, num_heads, block_size, head_dim + joined_value_dim]
                        const BlockId* block_ids, const AttentionWork& work, const AttentionParams& params,
                        cudaStream_t stream);

// The same over bytes with scales, of int8_t or E4m3; k and v are aligned to 16 bytes. REQUIRES: params.shape.kv_code is
// kCodeOf<Code>.
template <class T, class Code>
void paged_attention(const T* qkv, int64_t qkv_stride, T* out, const ScaledKv<Code>& kv, const BlockId* block_ids,
                     const AttentionWork& work, const AttentionParams& params, cudaStream_t stream);

}  // namespace llmb::cuda
