// The backend that computes on the host's cores. Results are bit-identical whatever the batch, the chunking and the
// number of threads.
#pragma once

#include <memory>
#include <optional>

#include "backend/backend.h"
#include "backend/ranks/rank_context.h"
#include "base/status.h"
#include "core/arithmetic.h"
#include "core/model_config.h"
#include "core/types.h"

namespace llmb {

// ranks: this one computes a part of the model together with others; null: it computes all.
std::unique_ptr<Backend> make_cpu_backend(std::shared_ptr<RankContext> ranks = nullptr);

// The dtype and the arithmetic that a model is computed in, where flags leave them open.
struct CpuArithmetic {
  DType dtype;  // of the activations that enter products
  Arithmetic arithmetic;
};

// dtype: unless it is given, what the arithmetic wants; bf16 where the weights stay bf16 and this processor multiplies
// bf16 faster than fp32. arithmetic: unless it is given, the fastest here for that. kInvalidArgument: the arithmetic
// does not fit dtype or weights.
Result<CpuArithmetic> choose_cpu_arithmetic(const ModelConfig& config, Quantization quantization,
                                            std::optional<DType> dtype, std::optional<Arithmetic> arithmetic);
// kUnsupported: this processor cannot compute it.
Status check_cpu_arithmetic(Arithmetic arithmetic);

// The dtype where nothing is said.
DType cpu_activation_dtype(const ModelConfig& config, Quantization quantization);

}  // namespace llmb
