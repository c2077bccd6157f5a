// Where the modules of adapters belong in a model: which products each adds to, and how its rows are ordered there.
// Private to src/model.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "core/model_config.h"
#include "model/architecture.h"
#include "model/ops.h"

namespace llmb {

// A product, or a part of one, and the rows of B that are added there.
struct LoraTarget {
  Projection projection = Projection::kQkv;
  int64_t out_column = 0;
  std::vector<int32_t> rows = {};  // by the product's columns from out_column on; empty: all, as they are
};

// A module's sizes, and where it belongs.
struct LoraPlace {
  bool is_embedding = false;  // the rows of tokens, and no product
  int32_t layer = 0;
  int64_t in_features = 0, out_features = 0;
  std::vector<LoraTarget> targets = {};  // at least one, but for embeddings and stacks of experts
  int32_t expert = -1;                   // >= 0: the targets are in that one of the experts that a router chooses
  bool is_stack = false;  // of all experts of a layer; sizes and target are as stacked_experts() says

  bool is_lm_head() const { return !targets.empty() && targets[0].projection == Projection::kLmHead; }
};

class LoraPlaces {
 public:
  // `model` must outlive this.
  LoraPlaces(const ModelConfig& model, const Architecture& architecture)
      : model_(model), names_(architecture.weights) {}

  // A module's place, by its path in the model. kUnsupported: nothing is computed there.
  Result<LoraPlace> find(std::string_view module) const;
  // A stack's place, by the columns of A and the rows of B; none: neither of the two has these.
  std::optional<LoraPlace> stacked_experts(int32_t layer, int64_t in_features, int64_t out_features) const;
  // A product of attention, of a dense MLP or of the LM head: of those that every architecture has.
  bool is_common(const LoraPlace& place) const;
  // The names of the model's tensor behind an embedding or LM head, the likeliest first.
  std::vector<std::string> tables_of(const LoraPlace& place) const;
  // Every module of a linear product that an adapter of this model may have, by the first of its names; some may have no
  // place in some layers.
  std::vector<std::string> linear_modules() const;

 private:
  using Found = std::optional<LoraPlace>;

  std::optional<std::pair<int32_t, std::string_view>> find_layer(std::string_view module) const;
  Result<LoraPlace> find_in_layer(std::string_view module, int32_t layer, std::string_view name) const;
  Found find_attention(int32_t layer, std::string_view name) const;
  Found find_mlp(int32_t layer, std::string_view name) const;
  // The router's place, and those in the expert that all tokens go through.
  Found find_beside_experts(int32_t layer, std::string_view name) const;
  Found find_expert(int32_t layer, std::string_view name) const;
  Found gated_q(int32_t layer) const;
  std::vector<int32_t> rows_of_heads(int32_t layer, int64_t out_column, int64_t out_features) const;
  std::vector<std::pair<int32_t, bool>> heads_of(int32_t layer, int64_t out_column, int64_t out_features) const;

  // lora_places_state.cpp
  Found find_state(int32_t layer, std::string_view name) const;
  Found find_delta(int32_t layer, std::string_view name) const;
  Found delta_joined(int32_t layer, bool is_of_gates) const;
  Found mamba2_inputs(int32_t layer) const;
  std::vector<std::string> state_names() const;  // of modules in a layer with a state

  const ModelConfig& model_;
  const WeightNames& names_;
};

}  // namespace llmb
