// The use of the device's memory: weights and activations first, the KV pool takes what --gpu-memory-utilization
// leaves.
#pragma once

#include <cstdint>

#include "backend/backend.h"
#include "base/status.h"
#include "core/kv_layout.h"
#include "core/model_config.h"
#include "core/state_layout.h"

namespace llmb {

// For what the driver takes on its own account while a run goes on.
inline constexpr int64_t kSpareBytes = int64_t{64} << 20;
// The most that a recorded step counts for, whatever other programs take meanwhile.
inline constexpr int64_t kMostGraphBytes = int64_t{32} << 20;

int64_t free_device_bytes();  // throws cuda::CudaError

// kResourceExhausted where the weights alone, of at least so many bits each, do not fit what is free, before any of
// them is read.
Status check_weights_fit(const ModelConfig& config, int64_t least_bits);

struct DeviceMemoryUse {
  int64_t total_bytes = 0;
  int64_t free_bytes = 0;      // with weights and activations in place and no pool
  int64_t reserved_bytes = 0;  // for what comes after the pool
  int64_t beside_block_bytes = 0;  // for each block of the pool, elsewhere
};

// A rank's layout as plans see it, whose blocks may have a slice on each of several ranks.
inline KvLayout as_planned(KvLayout own, const LoadOptions& options) {
  own.block_size = options.block_size;
  return own;
}

// Blocks of the pool: options.num_blocks_override, or what options.kv_cache_bytes holds, or what the memory allows, at
// most what max_num_seqs sequences of max_model_len can fill. `kv` gives the size of what this rank has of a block.
// kResourceExhausted where that does not fit, or where not even one sequence of max_model_len fits a pool that was not
// given in blocks.
Result<int32_t> plan_num_blocks(const LoadOptions& options, const KvLayout& kv, const DeviceMemoryUse& use);

// With slots for so many sequences that run, as many that end with the plan in flight, and snapshots. A slot that copies
// are made from is one of these, unless its sequence was preempted in the same plan, and then that one needs none.
// alternates: plans of stages, of which many are in flight (StateLayout::keep_snapshots)
void keep_snapshots(int32_t count, int32_t max_num_seqs, bool alternates, StateLayout* layout);

// The pool of recurrent states, before the KV pool is made: with as many snapshots as a quarter of what is free holds,
// within bounds. kResourceExhausted where it would take half of that or more. REQUIRES: the model has states
Result<StateLayout> plan_states(const ModelConfig& config, const LoadOptions& options, bool alternates);

// num_host_blocks() of a pool with this layout of a rank, which has options.swap_space_gib for its slices.
int32_t num_host_blocks_of_rank(const KvLayout& own, const LoadOptions& options);
// At most, of a pool of any size. `own`: without blocks
int32_t max_num_host_blocks(KvLayout own, const LoadOptions& options);

}  // namespace llmb
