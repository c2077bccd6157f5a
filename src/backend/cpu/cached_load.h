// Loading where packed weights are kept in a file (weight_cache.h).
#pragma once

#include <optional>

#include "backend/backend.h"
#include "backend/cpu/cpu_ops.h"
#include "backend/cpu/weight_cache.h"
#include "base/status.h"
#include "base/thread_pool.h"
#include "core/rank_part.h"
#include "model/model_weights.h"
#include "model/weight_files.h"

namespace llmb {

// Blocks stay as they are stored unless weights are quantised anew, or products take bf16 by bf16.
inline WeightForm weight_form(const LoadOptions& options) {
  const bool are_numbers = options.cpu.quantization != Quantization::kNone || options.dtype == DType::kBF16;
  return are_numbers ? WeightForm::kNumbers : WeightForm::kBlocks;
}

struct CachedLoad {
  ModelWeights weights;
  std::optional<CachedWeights> file;  // what they lie in; to be checked before what was computed with them counts
};

// The weights that load_model_weights gives, bit for bit: of the file in options.cpu.weight_cache_dir where there is
// one of this model, else of the model's own, and then the file is written. What is wrong with the file costs a warning
// only. share, part: of a rank, which has a file of its own; null: it computes the whole model. REQUIRES: ops was made
// with options.cpu.quantization.
Result<CachedLoad> load_model_weights_cached(const ModelConfig& config, const WeightFiles& files,
                                             const LoadOptions& options, CpuOps& ops, ThreadPool& pool,
                                             const ModelShare* share = nullptr, const RankPart* part = nullptr);

}  // namespace llmb
