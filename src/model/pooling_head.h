// How a forward pass's hidden states become vectors: core/pooling.h, but for the length, which is each text's own.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"
#include "core/model_config.h"
#include "core/pooling.h"
#include "model/model_weights.h"
#include "model/ops.h"
#include "model/weight_source.h"

namespace llmb {

// Driven by the thread that drives the transformer.
class PoolingHead {
 public:
  // Takes layers from `model`, or the files that pooling.layers name, and checks their shapes. kNotFound, kDataLoss.
  static Result<PoolingHead> load(const Pooling& pooling, WeightSource& model, WeightMaker& maker);

  PoolingKind kind() const { return kind_; }
  void allocate(const ModelConfig& config, Ops& ops, int64_t max_rows);

  // Hands out a vector for each sample row. hidden: states behind the last norm, of all tokens, or of the sample rows
  // where kind() is kLast.
  void forward(Rows hidden, int64_t num_samples, Ops& ops);

 private:
  struct Layer {
    std::unique_ptr<LinearWeight> weight;  // [out, in], with its bias
    int64_t width = 0;                     // out
    std::optional<Activation> activation;
    NormWeights norm;                            // [width], or null
    std::unique_ptr<DeviceBuffer> product,
        out;  // [max_rows, width]  fp32 where given out; out: null without activation
  };

  static Result<Layer> load_layer(const PoolingLayer& layer, WeightSource& model, WeightMaker& maker);

  PoolingKind kind_ = PoolingKind::kLast;
  float norm_eps_ = 0;
  std::vector<Layer> layers_;
  std::unique_ptr<DeviceBuffer> pooled_;  // [max_rows, hidden_size]  fp32 where given out; or null
};

}  // namespace llmb
