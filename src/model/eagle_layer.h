// A layer that was trained behind a finished model to guess the tokens behind the next one. It runs as a layer for
// multi-token prediction does (MtpConfig):
// - EAGLE (Li et al. 2024, arXiv:2401.15077; EAGLE-2 has the same layers): from a token's embedding and the hidden state
//   before it, neither of them normalised, it makes the hidden state behind the token, for which the model's own head
//   gives a token.
// - EAGLE-3 (Li et al. 2025, arXiv:2503.01840): in place of the hidden state stands a mixture of the residual streams in
//   front of three of the model's layers, and the layer has a norm and a head of its own, for the more frequent tokens.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "base/thread_pool.h"
#include "core/model_config.h"
#include "core/rank_part.h"
#include "model/model_weights.h"
#include "model/ops.h"
#include "model/weight_files.h"

namespace llmb {

// A folder as published: config.json of a model of one layer, and in safetensors
// - EAGLE: fc.weight [hidden_size, 2 * hidden_size], fc.bias or none, and the tensors of layers.0, which has no norm in
//   front of attention;
// - EAGLE-3: fc.weight [hidden_size, 3 * hidden_size], the tensors of midlayer (or layers.0), norm.weight, lm_head.weight
//   [draft_vocab_size, hidden_size], and d2t [draft_vocab_size], which says how far each row's token lies behind the row.
class EagleFiles {
 public:
  // No weights are read. Every tensor is there, in the shape that a layer behind this model has. kNotFound, kDataLoss,
  // kInvalidArgument (another model's layer), kUnsupported (a pickled file, with how to convert it; a model that is not
  // built as Llama is).
  static Result<EagleFiles> open(const std::string& dir, const ModelConfig& model);

  // Says in the model's config that such a layer is used, of which sizes.
  void describe(ModelConfig* model) const;
  // Adds the layer behind those that are there. share: a rank's, of the model that is described so; null: all. kDataLoss.
  Status load(const ModelShare* share, ThreadPool& pool, WeightMaker& maker, ModelWeights* weights) const;

 private:
  EagleFiles(ModelConfig config, WeightFiles files) : config_(std::move(config)), files_(std::move(files)) {}
  Status read_eagle3(const std::string& dir, const ModelConfig& model);
  Status load_layer(const ModelShare* share, WeightSource& source, WeightMaker& maker, ModelWeights* weights) const;

  ModelConfig config_;  // of the layer, as if it were a model
  WeightFiles files_;
  // EAGLE-3's:
  int32_t num_head_tokens_ = 0;
  std::vector<TokenId> head_tokens_;  // of the head's rows; empty: all tokens
};

}  // namespace llmb
