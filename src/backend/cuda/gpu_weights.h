// In which form a GPU takes the weights of a checkpoint.
#pragma once

#include <cstdint>
#include <memory>

#include "backend/backend.h"
#include "base/thread_pool.h"
#include "core/model_config.h"
#include "model/quantization_config.h"
#include "model/weight_files.h"
#include "model/weight_source.h"

namespace llmb {

// The bits of a weight, at least. stored: how the checkpoint has what the device multiplies as it is
int64_t least_weight_bits(const StoredQuantization& stored, Quantization quantization, DType dtype);

// files: null for weights that are made up. dtype: of activations
std::unique_ptr<WeightSource> make_gpu_source(const WeightFiles* files, const ModelConfig& config,
                                              const LoadOptions& options, DType dtype,
                                              const StoredQuantization& stored, ThreadPool& pool);

}  // namespace llmb
