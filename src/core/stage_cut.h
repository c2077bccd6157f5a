// Where the stages of a pipeline part a model's layers: what layers and the LM head cost, and the division that costs least.
#pragma once

#include <cstdint>
#include <vector>

#include "core/model_config.h"

namespace llmb {

// The costs of a step's rows, each kind of step in a unit of its own. No cost is below 0.
struct StageCosts {
  std::vector<int64_t> prompts;  // [num_layers]  of each layer in a step of prompts
  std::vector<int64_t> answers;  // [num_layers]  of each layer in a step of answers
  int64_t head = 0;              // in that step, of LM head and drawing; of prompts hardly any row is drawn
};

// In multiply-adds of a row at this position: with the weights, and with the positions that it sees.
StageCosts counted_costs(const ModelConfig& config, int32_t position);

// The layers at which stages begin, and the end of the last one. A step takes as long as the stage with the most to do, the
// head's work among the last one's: that has as little as may be, in steps of both kinds as far as there are such, and the
// others are as even as may be then. prompt_permille: of the time that layers take, in steps of prompts. Every rank finds
// the same. REQUIRES: at least as many layers as stages
std::vector<int64_t> cut_layers(const StageCosts& costs, int32_t prompt_permille, int32_t num_stages);  // [num_stages + 1]

}  // namespace llmb
