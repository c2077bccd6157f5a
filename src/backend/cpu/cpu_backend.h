// The backend that computes on the host's cores. Results are bit-identical whatever the batch, the chunking and the
// number of threads.
#pragma once

#include <memory>
#include <optional>

#include "backend/backend.h"
#include "backend/ranks/rank_context.h"
#include "base/status.h"
#include "core/arithmetic.h"
#include "core/lent_blocks.h"
#include "core/model_config.h"
#include "core/types.h"

namespace llmb {

// ranks: this one computes a part of the model together with others; null: it computes all.
std::unique_ptr<Backend> make_cpu_backend(std::shared_ptr<RankContext> ranks = nullptr);

// How blocks of a draft model's lie in blocks of this model's pool, but for num_blocks; nothing where they do not fit.
// draft: of its own pool, but for block_size. REQUIRES: neither is one of several ranks
LentBlocks lent_cpu_blocks(const ModelConfig& config, const LoadOptions& options, const ModelConfig& draft_config,
                           LoadOptions draft);
// lend_blocks() (backend/draft_feed.h) of such backends; false: one of them is another.
bool lend_cpu_blocks(Backend& target, Backend& draft, LentBlocks* lent);

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
// Sets options->dtype and what the process computes in; another backend in it that does not care keeps what it has.
Status use_cpu_arithmetic(const ModelConfig& config, LoadOptions* options);
// kUnsupported: this processor cannot compute it.
Status check_cpu_arithmetic(Arithmetic arithmetic);

// The dtype where nothing is said.
DType cpu_activation_dtype(const ModelConfig& config, Quantization quantization);

}  // namespace llmb
