#include "core/row_parts.h"

#include <algorithm>

namespace llmb {

bool can_share_rows(const StepPlan& plan) {
  return plan.parent_rows.empty() && plan.hidden_rows.empty() && !plan.is_mtp &&
         std::none_of(plan.entries.begin(), plan.entries.end(),
                      [](const StepEntry& entry) { return entry.adapter >= 0 || entry.is_indivisible; });
}

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

SampledParts part_samples(std::span<const SampleRow> samples, std::span<const int64_t> row_bounds) {
  const auto part_of = [&](const SampleRow& sample) {
    return std::upper_bound(row_bounds.begin() + 1, row_bounds.end() - 1, sample.token_row) - row_bounds.begin();
  };
  SampledParts parts;
  parts.bounds.assign(row_bounds.size(), 0);
  for (const SampleRow& sample : samples) ++parts.bounds[static_cast<size_t>(part_of(sample))];
  for (size_t part = 1; part < parts.bounds.size(); ++part) parts.bounds[part] += parts.bounds[part - 1];
  std::vector<int64_t> next = parts.bounds;
  parts.rows.resize(samples.size());
  for (const SampleRow& sample : samples) {
    const auto part = static_cast<size_t>(part_of(sample)) - 1;
    const int64_t place = next[part]++;
    parts.places.push_back(static_cast<int32_t>(place));
    parts.rows[static_cast<size_t>(place)] = static_cast<int32_t>(sample.token_row - row_bounds[part]);
  }
  return parts;
}

}  // namespace llmb
