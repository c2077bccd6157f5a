#include "planner/forecast.h"

#include <algorithm>
#include <cmath>
#include <vector>

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

Forecast Forecaster::estimate(const RunLimits& limits, bool is_planned, const StepCost& cost) const {
  Forecast forecast = this->forecast();
  std::vector<SimulatedRow> rows = lengths_.open_rows();
  if (is_planned)
    std::stable_sort(rows.begin(), rows.end(), [](const SimulatedRow& a, const SimulatedRow& b) {
      return int64_t{a.num_output_tokens} * a.num_choices > int64_t{b.num_output_tokens} * b.num_choices;
    });
  RunLimits run_limits = limits;
  run_limits.knows_ends = forecast.knows_lengths || forecast.is_limit;  // else the token says it
  const SimulatedRun run = simulate_run(rows, run_limits, cost);
  forecast.peak_kv_tokens = run.peak_kv_tokens;
  forecast.peak_kv_answers = run.peak_kv_answers;
  forecast.peak_kv_slots = run.peak_kv_slots;
  if (cost.is_known()) forecast.seconds = run.ms / 1000;
  return forecast;
}

}  // namespace llmb
