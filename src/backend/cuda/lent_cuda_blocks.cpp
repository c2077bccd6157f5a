#include "backend/cuda/lent_cuda_blocks.h"

#include "backend/cuda/kv_planes.h"
#include "core/kv_layout.h"

namespace llmb {

namespace {

KvLayout kv_layout(const ModelConfig& config, const LoadOptions& options) {
  const DType dtype = options.kv_cache_dtype.value_or(options.dtype.value_or(config.gpu_dtype()));
  return make_kv_layout(config, options.block_size, dtype, layer_groups(config, options));
}

PoolArrays arrays_of(const KvLayout& layout) {
  const KvPlanes planes(layout);
  return {planes.num_arrays(), planes.block_bytes(), layout.block_size};
}

}  // namespace

// Kernels take blocks that are dense, or whose distance goes by the layers' own sizes.
LentBlocks lent_cuda_blocks(const ModelConfig& config, const LoadOptions& options, const ModelConfig& draft_config,
                            LoadOptions draft) {
  const PoolArrays lending = arrays_of(kv_layout(config, options));
  LentBlocks best;
  for (const int32_t size : kLentBlockSizes) {
    draft.block_size = size;
    const KvLayout kv = kv_layout(draft_config, draft);
    if (kv.groups.num_groups() > 1 || kv.hidden_size > 0 || lending.block_bytes == 0) return {};
    const LentBlocks lent = fit_blocks(lending, arrays_of(kv), /*may_pad=*/false);
    if (lent && (!best || lent.num_tokens() > best.num_tokens())) best = lent;
  }
  return best;
}

bool lend_cuda_blocks(Backend& target, Backend& draft, LentBlocks* lent) {
  auto* const tenant = dynamic_cast<BlockTenant*>(&draft);
  if (tenant == nullptr) return false;
  lent->num_blocks = target.info().kv.num_blocks;
  tenant->borrow(static_cast<int32_t>(lent->num_own()));
  return true;
}

}  // namespace llmb
