// paged_attention: attention of each new token over its sequence's cached context, through block tables: causal, or
// over what is behind it as well, of sequences all of whose tokens are new.
// out = softmax(q · Kᵀ * scale) · V for each query head; query heads of a group share a KV head (GQA). Some heads of the
// first and of the last group may be absent.
//
// 1. A query row's result depends on its q, on the keys and values of the positions that it sees, its own the last, and
//    on nothing else of the call: positions are walked in segments at fixed absolute boundaries, whose partial results
//    are merged in order, for prefill and decode alike, and whether other sequences' rows go through them as well.
//    Over int4 it sees its own group as long as that was open, in bfloat16, and the groups before it as they are stored:
//    which form of a key it reads depends on the two positions alone.
// 2. Positions that a query does not see, and slots past the context, are not read into its result. So a
//    table may name any block in the place of those that lie before all windows of its sequence's rows.
#pragma once

#include <cstdint>
#include <span>

#include "base/thread_pool.h"
#include "core/step_plan.h"
#include "core/types.h"
#include "kernels/cpu/kv_cache.h"

namespace llmb::cpu {

// The attention side of a StepPlan; pointers into its arrays. The last query of sequence s is at context_len[s] - 1.
struct AttentionBatch {
  int32_t num_seqs = 0;
  const int32_t* query_start = nullptr;  // [num_seqs + 1]
  const int32_t* context_len = nullptr;  // [num_seqs]
  const int32_t* block_start = nullptr;  // [num_seqs]
  const BlockId* block_ids = nullptr;    // block tables, packed
  // Prefixes whose keys and values are read once for all rows of their sequences: invariant 11 of core/step_plan.h.
  std::span<const SharedPrefix> shared_prefixes;
  const int32_t* shared_entries = nullptr;
  // With int4 only: where groups are open (kernels/cpu/kv_cache.h), and the block there of each row's own group.
  const KvCacheView* open = nullptr;
  const int32_t* open_blocks = nullptr;  // [num_tokens]
  // With AttentionParams::sees_later: positions behind each sequence's last query that are seen, too; null: none.
  const int32_t* num_later = nullptr;  // [num_seqs]
};

// Applied to scores: score = q · k * scale, capped, + ALiBi.
struct AttentionParams {
  int32_t num_heads = 0;
  float scale = 1;
  int32_t window = 0;                   // positions a token sees, its own the last; 0: all up to its own
  float softcap = 0;                    // > 0: scores become softcap * tanh(score / softcap)
  const float* alibi_slopes = nullptr;  // [num_heads]  score += slope * (key position - query position); null: none
  const float* sinks = nullptr;         // [num_heads]  a further score whose value is 0; null: none
  int32_t chunk = 0;                    // > 0: in place of a window, those of its own chunk of so many, up to its own
  bool sees_later = false;              // positions behind its own as well; without windows, chunks and ALiBi
  int32_t reach = 0;                    // > 0: with sees_later, only so many positions on either side of its own
  int32_t first = 0;                    // > 0: no position before it is seen; without windows, chunks and sees_later
  int32_t group = 0;         // query heads of a KV head; 0: num_heads / kv.num_kv_heads, and none is absent
  int32_t first_absent = 0;  // heads of the first group that are absent
};

// REQUIRES: without `group`, num_heads a multiple of kv.num_kv_heads; with it, some head for each KV head; the keys and
// values of the new tokens are already in the cache.
void paged_attention(const float* qkv,    // [num_tokens, qkv_stride]  q, rotated, at the start of each row
                     int64_t qkv_stride,  // floats from one token's q to the next
                     float* out,          // [num_tokens, num_heads * kv.value_dim()]
                     const AttentionBatch& batch, const AttentionParams& params, const KvCacheView& kv,
                     ThreadPool& pool);

}  // namespace llmb::cpu
