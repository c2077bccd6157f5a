// The backend that computes on the host's cores. Results are bit-identical whatever the batch, the chunking and the
// number of threads.
#pragma once

#include <memory>

#include "backend/backend.h"
#include "core/model_config.h"
#include "core/types.h"

namespace llmb {

std::unique_ptr<Backend> make_cpu_backend();

// What the activations that enter products are rounded to where nobody says: bf16 where the weights stay bf16 and this
// machine multiplies bf16 faster than fp32.
DType cpu_activation_dtype(const ModelConfig& config, Quantization quantization);

}  // namespace llmb
