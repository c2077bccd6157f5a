// resolve_step, count_unseen_tokens and give_tokens: a step goes on from what the step before it gave, which only the
// device knows. The rules are those of core/resolve_step.h, the twin on the host.
//
// 1. resolve_step and give_tokens read and write arrays at addresses that do not depend on the plan: both can be
//    recorded, and replayed on another plan with as many rows.
// 2. Attention items made for max_context_len() become those of the real context, with the same rows: a piece past it
//    becomes empty. A unit's positions before the last piece stay as they were cut.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "core/step_plan.h"
#include "kernels/cuda/paged_attention_schedule.h"

namespace llmb::cuda {

// The tokens that groups gave, by group; kept on the device from one step to the next.
struct GivenOnDevice {
  int32_t* counts = nullptr;  // [max_num_groups]
  TokenId* last = nullptr;    // [max_num_groups]  any token of the vocabulary where the count is 0
  TokenId* before_last = nullptr;  // [max_num_groups]  of the row that the last one was drawn for
};

// Where a row stands in its entry. Apart only in a tree: there a row may lie behind its place.
struct StepRow {
  int32_t entry = -1;  // -1: padding
  int32_t index = 0;   // of the KV slot that it writes, from the entry's first
  int32_t depth = 0;   // of its position, from the entry's first

  constexpr bool is_in_place() const { return index == depth; }
};

// A list of attention's work, as scheduled for each entry's max_context_len(); clipped.
struct WorkList {
  AttentionItem* items = nullptr;
  const int32_t* num_items = nullptr;  // [1]; null: there is no such list
  int32_t attention_group = 1;         // query heads of a KV head
};
constexpr int32_t kMaxWorkLists = 2;  // of a step: layers whose heads differ have lists of their own

// A step on the device. Counts may be padded.
struct UnresolvedStep {
  int32_t num_tokens = 0, num_samples = 0, num_layer_groups = 1, block_size = 16;
  const StepRow* rows = nullptr;         // [num_tokens]
  const StepEntry* entries = nullptr;    // [num_entries]
  const int32_t* block_start = nullptr;  // [num_entries]  of its table, in blocks
  const BlockId* block_ids = nullptr;    // [blocks of all tables, num_layer_groups]
  TokenId* tokens = nullptr;           // [num_tokens]  unseen ones are replaced
  int32_t* positions = nullptr;        // [num_tokens]  out; 0 of padding
  int32_t* slots = nullptr;            // [num_layer_groups, num_tokens]  out; -1 of padding
  SampleRow* samples = nullptr;        // [num_samples]  positions are set; token_row -1: padding
  WorkList lists[kMaxWorkLists];
};

// Throws CudaError.
void resolve_step(const UnresolvedStep& step, const GivenOnDevice& before, cudaStream_t stream);

// Adds the unseen tokens to the counts of the rows' penalties; before sample(). Throws CudaError.
void count_unseen_tokens(SampleRow* rows,  // [num_rows]
                         int32_t num_rows,
                         TokenPenalty* penalty,      // what the rows' slices index
                         const TokenId* last_given,  // [num_groups of the step before]
                         cudaStream_t stream);

// A sampled step on the device.
struct GroupsToGive {
  int32_t num_groups = 0;
  const SampleGroup* groups = nullptr;   // [num_groups]  no rows: padding
  const SampleRow* samples = nullptr;    // [num_samples]
  const TokenId* tokens = nullptr;       // [num_tokens]  resolved
  const int32_t* parent_rows = nullptr;  // [num_tokens]; null: no trees
  const TokenId* sampled = nullptr;      // [num_samples]
  const uint8_t* is_finite = nullptr;    // [num_samples]
  const TokenId* top_tokens = nullptr;   // [num_samples, max_top]
  int32_t max_top = 0;
  int32_t vocab = 0;
  // A step that drafts has these, others null: a group counts as many tokens as its entry lay ahead of its base, at least
  // one. So each step of a chain lies as far ahead as the first one, which followed what was verified.
  const StepEntry* entries = nullptr;  // [num_entries]
  const StepRow* rows = nullptr;       // [num_tokens]
  const int32_t* positions = nullptr;  // [num_tokens]
};

// Throws CudaError.
void give_tokens(const GroupsToGive& step, const GivenOnDevice& given, cudaStream_t stream);

}  // namespace llmb::cuda
