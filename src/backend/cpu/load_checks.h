// Refuses by name whatever the CPU cannot load, and says how much memory the rest will take and what is there then.
#pragma once

#include "backend/backend.h"
#include "base/status.h"
#include "core/kv_layout.h"
#include "core/model_config.h"
#include "core/state_layout.h"
#include "model/weight_files.h"

namespace llmb {

Status check_dtype(const ModelConfig& config, const LoadOptions& options);
Status check_kv_dtype(const ModelConfig& config, const LoadOptions& options);
// files: null where there are none
Status check_block_activations(const ModelConfig& config, const LoadOptions& options, const WeightFiles* files);

// Threads for so many that are wanted: more than a few for each core only wait for each other. <= 0: one for each core.
int num_threads_for(int wanted);

// The KV pool beside weights of so many bytes. kResourceExhausted: there is no memory for weights, states or pool. Before
// any weight is read, so that what cannot fit is refused at once.
Result<KvLayout> plan_memory(const ModelConfig& config, const LoadOptions& options, int64_t weights);

// Recurrent states, with snapshots in a quarter of the memory that is left beside `used` bytes; one of so many ranks.
StateLayout plan_states(const ModelConfig& own, const LoadOptions& options, int64_t used, int32_t num_ranks);

// The name of a backend, and what it can do.
void describe(const ModelConfig& config, const LoadOptions& options, int num_threads, int32_t num_stages,
              BackendInfo* info);

}  // namespace llmb
