// Heads and layers behind a loaded model, the same for every backend. Of several stages of layers the last one has them.
#pragma once

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "base/status.h"
#include "base/thread_pool.h"
#include "core/rank_part.h"
#include "model/eagle_layer.h"
#include "model/medusa_heads.h"
#include "model/transformer.h"
#include "model/weight_files.h"
#include "model/weight_source.h"

namespace llmb {

// Those of options.heads_dir, if any. `maker` makes their weights. share: of a rank; none: all
inline Status add_heads(const LoadOptions& options, const ModelConfig& config, const std::optional<ModelShare>& share,
                        WeightMaker& maker, Transformer* transformer, BackendInfo* info) {
  if (options.heads_dir.empty()) return {};
  LLMB_ASSIGN_OR_RETURN(const MedusaFiles files, MedusaFiles::open(options.heads_dir, config));
  info->num_heads = files.num_heads();
  if (share && !share->draws) return {};
  const Range vocab = share ? share->vocab : Range{0, config.vocab_size};
  LLMB_ASSIGN_OR_RETURN(std::vector<MedusaHead> heads, files.load(maker, vocab));
  transformer->add_heads(std::move(heads));
  return {};
}

// That of options.pooling, if any; random where there are no files. share: of a rank; none: all
inline Status add_pooling_head(const LoadOptions& options, const ModelConfig& config,
                               const std::optional<ModelShare>& share, const std::optional<WeightFiles>& files, ThreadPool& pool, WeightMaker& maker,
                               Transformer* transformer) {
  if (!options.pooling || (share && !share->draws)) return {};
  std::unique_ptr<WeightSource> source;
  if (files) source = files->make_source(pool);
  else source = std::make_unique<RandomSource>(options.dummy_seed, config.dtype, pool);
  Result<PoolingHead> head = PoolingHead::load(*options.pooling, *source, maker);
  if (files) LLMB_RETURN_IF_ERROR(files->still_readable());
  if (!head.ok()) return head.status().with_context(options.model_dir);
  transformer->give_vectors(std::move(*head));
  return {};
}

// That of options.eagle_dir, if any. share: a rank's, of the model with this layer; none: all
inline Status add_eagle_layer(const LoadOptions& options, const ModelConfig& config,
                              const std::optional<ModelShare>& share, ThreadPool& pool, WeightMaker& maker,
                              ModelWeights* weights) {
  if (options.eagle_dir.empty() || (share && !share->draws)) return {};
  LLMB_ASSIGN_OR_RETURN(const EagleFiles files, EagleFiles::open(options.eagle_dir, config));
  return files.load(share ? &*share : nullptr, pool, maker, weights);
}

}  // namespace llmb
