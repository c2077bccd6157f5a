// A layer that was trained behind a finished model to guess the tokens behind the next one (EAGLE: Li et al. 2024,
// arXiv:2401.15077): from a token's embedding and the hidden state before it, neither of them normalised, it makes the
// hidden state behind the token, for which the model's own head gives a token. So it runs as a layer for multi-token
// prediction does (MtpConfig), without that one's norms.
#pragma once

#include <string>

#include "base/status.h"
#include "base/thread_pool.h"
#include "core/model_config.h"
#include "model/model_weights.h"
#include "model/ops.h"
#include "model/weight_files.h"

namespace llmb {

// A folder as published: config.json of a model of one layer, and in safetensors fc.weight [hidden_size,
// 2 * hidden_size], fc.bias or none, and the tensors of layers.0, which has no norm in front of attention.
class EagleFiles {
 public:
  // Only headers are read. Every tensor is there, in the shape that a layer behind this model has. kNotFound, kDataLoss,
  // kInvalidArgument (another model's layer), kUnsupported (EAGLE-3; a pickled file, with how to convert it; a model that
  // is not built as Llama is).
  static Result<EagleFiles> open(const std::string& dir, const ModelConfig& model);

  // Says in the model's config that such a layer is used, of which sizes.
  void describe(ModelConfig* model) const;
  // Adds the layer behind those that are there. kDataLoss.
  Status load(ThreadPool& pool, WeightMaker& maker, ModelWeights* weights) const;

 private:
  EagleFiles(ModelConfig config, WeightFiles files) : config_(std::move(config)), files_(std::move(files)) {}

  ModelConfig config_;  // of the layer, as if it were a model
  WeightFiles files_;
};

}  // namespace llmb
