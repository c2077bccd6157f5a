// Which part of an adapter each of several ranks adds to its part of the model's products (core/rank_part.h): rows of B
// where the product's rows are divided, columns of A where its columns are, whose sums over ranks are the adapter's.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/model_config.h"
#include "core/rank_part.h"
#include "model/lora_adapter.h"
#include "model/ops.h"

namespace llmb {

struct LoraShare {
  ModelConfig config;  // of the whole model
  ModelShare share;
};

// The modules of a product, whose layer is counted among those of the rank. A module of several parts (q, k and v in
// one) becomes one module for each.
std::vector<LoraModule> modules_of_rank(const LoraAdapter& adapter, const LoraShare& rank, int64_t layer,
                                        Projection projection);
// Likewise of one of the experts that a router chooses: gate and up, or down. Another rank's has none.
std::span<const LoraModule> expert_modules_of_rank(const LoraAdapter& adapter, const LoraShare& rank, int64_t layer,
                                                   int64_t expert, bool is_down);

}  // namespace llmb
