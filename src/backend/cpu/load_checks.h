// Refuses by name whatever the CPU cannot load, and says how much memory the rest will take.
#pragma once

#include "backend/backend.h"
#include "base/status.h"
#include "core/kv_layout.h"
#include "core/model_config.h"
#include "model/weight_files.h"

namespace llmb {

Status check_dtype(const ModelConfig& config, const LoadOptions& options);
// context_size: ranks that share out rows
Status check_kv_dtype(const ModelConfig& config, const LoadOptions& options, int32_t context_size);
// files: null where there are none
Status check_block_activations(const ModelConfig& config, const LoadOptions& options, const WeightFiles* files);

// Threads for so many that are wanted: more than a few for each core only wait for each other. <= 0: one for each core.
int num_threads_for(int wanted);

// The KV pool beside weights of so many bytes. kResourceExhausted: there is no memory for weights, states or pool. Before
// any weight is read, so that what cannot fit is refused at once.
Result<KvLayout> plan_memory(const ModelConfig& config, const LoadOptions& options, int64_t weights);

}  // namespace llmb
