#include "core/row_parts.h"

#include <algorithm>

namespace llmb {

RowCost row_cost(const ModelConfig& config) {
  const int64_t head = int64_t{config.vocab_size} * config.hidden_size;  // of sampled rows alone
  RowCost cost = {std::max<int64_t>(1, config.num_matmul_params() - head), 0};
  for (int32_t layer = 0; layer < config.num_hidden_layers; ++layer)
    cost.of_position += config.q_size_of(layer) + config.gathered_size_of(layer);
  return cost;
}

std::vector<int64_t> divide_rows(std::span<const int32_t> positions, const RowCost& cost, int32_t size) {
  const auto num_rows = static_cast<int64_t>(positions.size());
  const auto cost_of = [&](int64_t row) {
    return cost.of_row + cost.of_position * (positions[static_cast<size_t>(row)] + 1);
  };
  int64_t total = 0;
  for (int64_t row = 0; row < num_rows; ++row) total += cost_of(row);
  std::vector<int64_t> bounds = {0};
  int64_t before = 0, row = 0;
  for (int32_t part = 1; part < size; ++part) {
    // A row that lies across a bound goes to the part that has more of it.
    const int64_t bound = total / size * part + total % size * part / size;
    while (row < num_rows && before + cost_of(row) / 2 < bound) before += cost_of(row++);
    bounds.push_back(std::clamp(row, bounds.back() + 1, num_rows - (size - part)));
  }
  bounds.push_back(num_rows);
  return bounds;
}

}  // namespace llmb
