#include "planner/forecast.h"

#include <cmath>

namespace llmb {

void Forecaster::add(const ExpectedRow& row) {
  lengths_.add(row);
  std::lock_guard lock(mutex_);
  ++counts_.num_rows;
  counts_.num_prompt_tokens += row.num_prompt_tokens;
  counts_.num_shared_tokens += row.num_shared_tokens;
}

void Forecaster::add_equal(int64_t num_prompt_tokens) {
  std::lock_guard lock(mutex_);
  ++counts_.num_rows;
  ++counts_.num_equal_rows;
  counts_.num_prompt_tokens += num_prompt_tokens;
  counts_.num_equal_tokens += num_prompt_tokens;
}

void Forecaster::end_input() {
  std::lock_guard lock(mutex_);
  counts_.has_all_rows = true;
}

Forecast Forecaster::forecast() const {
  const LengthPredictor::Totals lengths = lengths_.totals();
  std::lock_guard lock(mutex_);
  Forecast forecast = counts_;
  forecast.num_output_tokens = lengths.num_ended_tokens + std::llround(lengths.num_open_tokens);
  forecast.knows_lengths = lengths.are_exact;
  forecast.is_limit = !lengths.are_exact && lengths.are_limits;
  return forecast;
}

}  // namespace llmb
