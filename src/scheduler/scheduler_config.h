// Settings of the scheduler: the batching mode and the limits of a step, of a sequence and of the KV pool.
#pragma once

#include <cstdint>
#include <vector>

#include "scheduler/rank.h"

namespace llmb {

enum class BatchingMode {
  kNone,        // one request at a time
  kStatic,      // a batch is filled, runs until its last sequence ends, then the next
  kDynamic,     // as static, but starts at the latest batch_window_ms after its oldest request arrived
  kContinuous,  // requests join at every step
};

// The fate of a preempted sequence's keys and values, where its blocks are needed.
enum class PreemptionMode {
  kAuto,       // as Scheduler::set_swap_pays() says
  kRecompute,  // it is computed again
  kSwap,       // it moves to the host's pool while that has room
};

// REQUIRES: every count >= 1; num_blocks * block_size fits int32 (slots are int32); batch_window_ms >= 0.
struct SchedulerConfig {
  BatchingMode batching = BatchingMode::kContinuous;
  int32_t max_num_seqs = 256;                // sequences that hold KV blocks at one time
  int32_t max_num_batched_tokens = 2048;     // new tokens in a step
  int32_t block_size = 16;                   // tokens per KV block
  std::vector<int32_t> windows = {0};        // [num_layer_groups]  core/layer_groups.h
  int32_t num_blocks = 0;                    // of the pool
  int32_t num_state_slots = 0;               // > 0: sequences have a state each; then no trees
  // > 0: states are of the tokens since the last multiple of it (BackendInfo), which block_size is, too; 0: of all
  // tokens (recurrent), then the host's pool is for prompts that were computed elsewhere only.
  int32_t state_period = 0;
  int32_t num_snapshots = 0;                 // of these slots, for states behind prefixes that the cache keeps
  int32_t max_model_len = 2048;              // tokens of a sequence, prompt and output together
  double batch_window_ms = 10;               // kDynamic only
  int32_t max_num_drafts = 0;                // draft tokens in a step, of all sequences
  int32_t max_drafts_per_group = INT32_MAX;  // of one sequence
  bool allows_trees = false;                 // of drafts; else chains only
  Policy policy;                             // who goes first
  bool enable_prefix_caching = false;        // what was computed once is found again (prefix_sharing.cpp)
  int32_t max_idle_blocks = INT32_MAX;       // that the cache keeps rather than use new ones; >= 1
  bool scores_prompts = true;                // the backend does, where a step has room for drafts
  int32_t max_best_tokens = INT32_MAX;       // that a beam may ask for in a step
  PreemptionMode preemption = PreemptionMode::kRecompute;
  int32_t num_host_blocks = 0;  // of the host's pool, used with prefix caching only
  int32_t num_alternating = 1;  // > 1: sequences form so many plans, all in flight, that do not follow each other
  bool copies_blocks = true;                 // the backend does; else a prefix is shared in whole blocks only
};

}  // namespace llmb
