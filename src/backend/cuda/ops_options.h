// Sizes that the CUDA backend lays its memory out for.
#pragma once

#include <cstdint>

#include "backend/backend.h"
#include "backend/cuda/cuda_ops.h"
#include "core/model_config.h"
#include "core/rank_part.h"

namespace llmb {

// Rows of logits that are there at a time. The same on all ranks.
int64_t max_logit_rows(const ModelConfig& config, const LoadOptions& options);

// All but what depends on the device. own, own_layers: of the rank that uses it, or `config` and its layers again
CudaOpsOptions ops_options(const ModelConfig& config, const ModelConfig& own, const Range& own_layers,
                           int32_t max_plans_in_flight, const LoadOptions& options, DType dtype, DType kv_dtype,
                           int32_t num_slices);

// The blocks of all ranks together.
KvLayout kv_of_all_ranks(const ModelConfig& config, const LoadOptions& options, DType kv_dtype, int32_t num_blocks);

// A plan against the memory that is laid out. is_early_stage: other stages run behind this rank's
Status check_device_plan(const StepPlan& plan, const StepLimits& limits, bool is_early_stage);

// The name of a backend, and what it can do.
void describe(const ModelConfig& config, const LoadOptions& options, const CudaDevice& device, DType dtype,
              BackendInfo* info);

}  // namespace llmb
