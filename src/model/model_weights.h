// The weights of a model in a backend's form, fused for the forward pass: q, k and v are one matrix, gate and up
// another.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"
#include "core/model_config.h"
#include "model/ops.h"
#include "model/weight_source.h"

namespace llmb {

struct LayerWeights {
  std::unique_ptr<DeviceBuffer> input_norm;           // [hidden_size]
  std::unique_ptr<LinearWeight> qkv;                  // [q_size + 2 * kv_size, hidden_size]
  std::unique_ptr<LinearWeight> o;                    // [hidden_size, q_size]
  std::unique_ptr<DeviceBuffer> post_attention_norm;  // [hidden_size]
  std::unique_ptr<LinearWeight> gate_up;              // [2 * intermediate_size, hidden_size]
  std::unique_ptr<LinearWeight> down;                 // [hidden_size, intermediate_size]
};

struct ModelWeights {
  std::unique_ptr<LinearWeight> embed_tokens;  // [vocab_size, hidden_size]
  std::vector<LayerWeights> layers;            // [num_hidden_layers]
  std::unique_ptr<DeviceBuffer> norm;          // [hidden_size]
  std::unique_ptr<LinearWeight> lm_head;       // [vocab_size, hidden_size]; null: embed_tokens is tied to it

  const LinearWeight& output_projection() const { return lm_head ? *lm_head : *embed_tokens; }
  int64_t resident_bytes() const;
};

// Takes every tensor from `source`, checking its dtype and shape. The message of an error names the tensor.
Result<ModelWeights> load_model_weights(const ModelConfig& config, WeightSource& source, Ops& ops);

// Bytes of all parameters in their stored dtype: what load_model_weights will need, about.
int64_t stored_weight_bytes(const ModelConfig& config);

}  // namespace llmb
