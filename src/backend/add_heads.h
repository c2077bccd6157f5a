// What drafts behind a loaded model, the same for every backend.
#pragma once

#include <utility>
#include <vector>

#include "backend/backend.h"
#include "base/status.h"
#include "base/thread_pool.h"
#include "model/eagle_layer.h"
#include "model/medusa_heads.h"
#include "model/transformer.h"

namespace llmb {

// Those of options.heads_dir, if any. `maker` makes their weights.
inline Status add_heads(const LoadOptions& options, const ModelConfig& config, WeightMaker& maker,
                        Transformer* transformer, BackendInfo* info) {
  if (options.heads_dir.empty()) return {};
  LLMB_ASSIGN_OR_RETURN(const MedusaFiles files, MedusaFiles::open(options.heads_dir, config));
  LLMB_ASSIGN_OR_RETURN(std::vector<MedusaHead> heads, files.load(maker));
  transformer->add_heads(std::move(heads));
  info->num_heads = files.num_heads();
  return {};
}

// That of options.eagle_dir, if any.
inline Status add_eagle_layer(const LoadOptions& options, const ModelConfig& config, ThreadPool& pool, WeightMaker& maker,
                              ModelWeights* weights) {
  if (options.eagle_dir.empty()) return {};
  LLMB_ASSIGN_OR_RETURN(const EagleFiles files, EagleFiles::open(options.eagle_dir, config));
  return files.load(pool, maker, weights);
}

}  // namespace llmb
