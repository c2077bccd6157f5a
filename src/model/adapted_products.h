// The products that adapters may add to, and their sizes.
#pragma once

#include <cstdint>
#include <vector>

#include "core/model_config.h"

namespace llmb {

// The products that an adapter may add to: those of a layer, and the LM head, which goes with the last layer.
enum class Projection {
  kQkv,         // of attention, or of a state
  kO,           // of either
  kGateUp,      // of a dense MLP, or of the expert that all tokens go through
  kDown,        // of either
  kMixedGate,   // of attention, or of a state
  kStateGates,  // rates and decays, or steps; of a short convolution its input's gate
  kRouter,      // of experts
  kSharedGate,  // of the expert that all tokens go through
  kLmHead
};
inline constexpr int32_t kNumProjections = 8;  // of each layer
constexpr int64_t num_adapted_products(int64_t num_layers) { return num_layers * kNumProjections + 1; }
constexpr int64_t adapted_product_index(int64_t layer, Projection projection) {
  return layer * kNumProjections + static_cast<int64_t>(projection);
}

// Which rows a product has: the step's tokens, or its sample rows.
enum class RowKind { kTokens, kSamples };

// A product that adapters may add to.
struct AdaptedProduct {
  int32_t layer;
  Projection projection;
  RowKind kind;
  int64_t first_row = 0;  // of its kind, which x and out begin with
};

// Columns of a product's parts, in order, as ranks divide them: q, k and v; gate and up; rates and decays. Sizes may be 0.
std::vector<int64_t> product_parts(const ModelConfig& config, int32_t layer, Projection projection);
// The columns of all parts.
int64_t product_columns(const ModelConfig& config, int32_t layer, Projection projection);
// How much of a row it takes.
int64_t product_inputs(const ModelConfig& config, int32_t layer, Projection projection);
// The size of the dense MLP, or of the expert that all tokens go through, whichever the layer has.
int64_t mlp_size(const ModelConfig& config, int32_t layer);

}  // namespace llmb
