// Which rows of a step each of several ranks computes that have the same part of the model (context parallel).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/model_config.h"

namespace llmb {

// Multiply-adds of a row: with the weights of all layers, and with each position that it sees.
struct RowCost {
  int64_t of_row = 1, of_position = 0;
};
RowCost row_cost(const ModelConfig& config);

// Bounds of `size` parts of rows that follow each other, each about as costly as the others: part r is the rows from
// bounds[r] up to before bounds[r + 1], at least one. Every rank finds the same: whole numbers only. REQUIRES: as many
// rows as parts
std::vector<int64_t> divide_rows(std::span<const int32_t> positions, const RowCost& cost, int32_t size);

}  // namespace llmb
