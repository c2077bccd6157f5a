// Steps that are run before the first request: the largest there can be, to see what memory it takes, and decode steps
// of every batch size, to choose algorithms for them.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "backend/backend.h"
#include "backend/cuda/cuda_ops.h"
#include "core/model_config.h"
#include "core/step_plan.h"
#include "model/transformer.h"

namespace llmb {

// As many tokens and samples as a step can have, of sequences that start with it; every sampling feature is used.
StepPlan worst_case_plan(const ModelConfig& config, const LoadOptions& options, int32_t num_layer_groups);

// num_seqs sequences of one token each.
StepPlan decode_plan(const ModelConfig& config, const LoadOptions& options, int32_t num_seqs, int32_t num_layer_groups);

// Chooses the matrix products' algorithms for decode steps of this many rows, such as `plan`. Throws CudaError
void tune_products(const StepPlan& plan, int32_t rows, bool has_mtp, CudaOps& ops, Transformer& transformer,
                   cudaStream_t stream);

// Blocks 0 … n - 1 are what the plans above use.
int32_t num_blocks_of(const StepPlan& plan);

// Bandwidth of a copy within device memory (bytes read and written) and the rate of a large matrix product; nothing where
// no memory is left for it: then it means nothing.
MachineLimits measure_device(DType dtype, cudaStream_t stream);

}  // namespace llmb
