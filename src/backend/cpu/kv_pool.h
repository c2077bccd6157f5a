// The KV cache's memory on the CPU: how many blocks it gets, and where each layer's blocks are.
#pragma once

#include <cstdint>

#include "backend/backend.h"
#include "backend/cpu/mapped_floats.h"
#include "base/status.h"
#include "core/kv_layout.h"
#include "core/model_config.h"
#include "kernels/cpu/kv_cache.h"

namespace llmb {

// The layout with num_blocks chosen: options.num_blocks_override, or what fits options.kv_cache_bytes, or enough for
// max_num_seqs sequences of max_model_len within a fixed share of `available_bytes` (0: unknown, no limit).
// kResourceExhausted where that is more than is available, or where not even one sequence of max_model_len fits a pool
// that was not given in blocks.
Result<KvLayout> plan_kv_layout(const ModelConfig& config, const LoadOptions& options, int64_t available_bytes);

// Memory is touched, and so resident, only as blocks are written. Move-only.
class KvPool {
 public:
  KvPool() = default;
  explicit KvPool(const KvLayout& layout);  // throws std::bad_alloc
  cpu::KvCacheView layer(int32_t layer);

 private:
  cpu::KvCacheView view(uint8_t* data) const;
  int64_t layer_bytes() const;
  KvLayout layout_;
  MappedFloats memory_;  // [num_layers, layer_bytes() / 4]
};

}  // namespace llmb
