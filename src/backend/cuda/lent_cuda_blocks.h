// A draft model's pool on a GPU, in the pool of the model it drafts for.
#pragma once

#include <cstdint>

#include "backend/backend.h"
#include "core/lent_blocks.h"
#include "core/model_config.h"

namespace llmb {

// A backend that may draft for another one.
class BlockTenant {
 public:
  virtual ~BlockTenant() = default;
  // Its pool will be so many blocks in that one's memory. REQUIRES: it shares that one's queue, and has not loaded
  virtual void borrow(int32_t num_blocks) = 0;
};

// How blocks of a draft model's lie in blocks of this model's pool, but for num_blocks; nothing where they do not fill
// them. draft: of its own pool, but for block_size. REQUIRES: neither is one of several ranks
LentBlocks lent_cuda_blocks(const ModelConfig& config, const LoadOptions& options, const ModelConfig& draft_config,
                            LoadOptions draft);
// lend_blocks() (backend/draft_feed.h); false: the draft model's backend is no GPU's.
bool lend_cuda_blocks(Backend& target, Backend& draft, LentBlocks* lent);

}  // namespace llmb
