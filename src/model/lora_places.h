// Where the modules of adapters belong in a model: which product each adds to, and how its rows are ordered there.
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

// A product, or a part of one.
struct LoraPlace {
  bool is_embedding = false;  // the rows of tokens; else:
  int32_t layer = 0;
  Projection projection = Projection::kQkv;
  int64_t in_features = 0, out_features = 0, out_column = 0;
};

class LoraPlaces {
 public:
  // `model` must outlive this.
  LoraPlaces(const ModelConfig& model, const Architecture& architecture)
      : model_(model), names_(architecture.weights) {}

  // A module's place, by its path in the model. kUnsupported: nothing is computed there.
  Result<LoraPlace> find(std::string_view module) const;
  // B's rows in the order of the product's columns; empty: as they are.
  std::vector<int32_t> rows_of(const LoraPlace& place) const;
  // The names of the model's tensor behind an embedding or LM head, the likeliest first.
  std::vector<std::string> tables_of(const LoraPlace& place) const;
  // Every module of a linear product that an adapter of this model may have, by the first of its names.
  std::vector<std::string> linear_modules() const;

 private:
  std::optional<std::pair<int32_t, std::string_view>> find_layer(std::string_view module) const;
  Result<LoraPlace> find_in_layer(std::string_view module, int32_t layer, std::string_view name) const;
  std::vector<std::pair<int32_t, bool>> heads_of(const LoraPlace& place) const;

  const ModelConfig& model_;
  const WeightNames& names_;
};

}  // namespace llmb
