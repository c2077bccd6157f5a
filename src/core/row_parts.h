// Which rows of a step each of several ranks computes that have the same part of the model (context parallel).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/model_config.h"
#include "core/step_plan.h"

namespace llmb {

// Whether the rows of a plan may be shared out. Trees, adapters, and heads and layers behind the last one that draft
// look at all rows: there each rank computes all of them.
bool can_share_rows(const StepPlan& plan);

// Multiply-adds of a row: with the weights of all layers, and with each position that it sees.
struct RowCost {
  int64_t of_row = 1, of_position = 0;
};
RowCost row_cost(const ModelConfig& config);

// Bounds of `size` parts of rows that follow each other, each about as costly as the others: part r is the rows from
// bounds[r] up to before bounds[r + 1], at least one. Every rank finds the same: whole numbers only. REQUIRES: as many
// rows as parts
std::vector<int64_t> divide_rows(std::span<const int32_t> positions, const RowCost& cost, int32_t size);

// Sample rows by the part that has their rows, in each in the plan's order.
struct SampledParts {
  std::vector<int64_t> bounds;  // [parts + 1]  part r's are from bounds[r] up to before bounds[r + 1]
  std::vector<int32_t> rows;    // [num_samples]  each counted from the first row of its part
  std::vector<int32_t> places;  // [num_samples]  of each of the plan's, among these
};
SampledParts part_samples(std::span<const SampleRow> samples, std::span<const int64_t> row_bounds);

}  // namespace llmb
