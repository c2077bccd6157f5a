// Products whose weights have an adapter's matrices added, for adapters that a job merges (AdapterLibrary::merge).
#pragma once

#include <cstdint>
#include <span>

#include "base/thread_pool.h"
#include "core/types.h"
#include "kernels/cpu/linear.h"
#include "model/lora_adapter.h"
#include "model/model_weights.h"

namespace llmb {

// The model that adapters are merged with; null weights: nothing may be merged yet.
struct MergeBase {
  const ModelWeights* weights = nullptr;
  DType activations = DType::kF32;  // PackedLinear::pack
};

// Whether a product's weights are kept as numbers of their own, and not in few bits.
bool can_merge(const cpu::PackedLinear& weight);

// W + scale * B A, summed in fp32 in the order of ranks and rounded once, to W's dtype; W's bias stays. The modules lie
// at different columns. REQUIRES: can_merge(weight). Throws std::bad_alloc.
cpu::PackedLinear merged_weight(const cpu::PackedLinear& weight, std::span<const LoraModule> modules, DType activations,
                                ThreadPool& pool);

}  // namespace llmb
