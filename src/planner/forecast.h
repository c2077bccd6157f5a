// The work of a run in tokens: how much there is, how much of it is saved, how much is left to guess.
#pragma once

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <optional>

#include "core/step_cost.h"
#include "planner/length_predictor.h"
#include "planner/run_simulation.h"

namespace llmb {

// Counts rows that were read so far and need an answer.
struct Forecast {
  int64_t num_rows = 0;
  int64_t num_equal_rows = 0;     // of these, that get the answer to another one
  int64_t num_prompt_tokens = 0;  // of all rows
  int64_t num_equal_tokens = 0;   // of these, in equal rows
  int64_t num_shared_tokens = 0;  // of the others, in a prefix that an earlier prompt has: computed once where the pool
                                  // holds it until then
  int64_t num_output_tokens = 0;  // expected to be computed, those that are computed included
  bool has_all_rows = false;      // the input was read to its end
  bool knows_lengths = false;     // num_output_tokens is what rows ask for
  bool is_limit = false;          // it is the most that they may get: no answer was seen yet to learn from

  // Set by estimate() only, for the rows that had not ended:
  std::optional<int64_t> peak_kv_tokens;  // that rows running at one time hold at most; kept prefixes come on top
  int64_t peak_kv_answers = 0;            // with it; that run then
  int64_t peak_kv_slots = 0;              // with it; in whole blocks, those included that are not free yet as others join
  std::optional<double> seconds;          // not set where no step of this model on this device was measured

  int64_t num_computed_prompt_tokens() const { return num_prompt_tokens - num_equal_tokens - num_shared_tokens; }
  // The mean of the rows that are computed; >= 1.
  int64_t mean_row_tokens() const {
    const int64_t num_computed = std::max<int64_t>(1, num_rows - num_equal_rows);
    return std::max<int64_t>(1, (num_prompt_tokens - num_equal_tokens + num_output_tokens) / num_computed);
  }
  // Prompt and output; a bar's full length.
  int64_t num_computed_tokens() const { return num_computed_prompt_tokens() + num_output_tokens; }
};

// Counts what is read and what is answered. Thread-safe.
class Forecaster {
 public:
  // A row that is to be computed, in the order of the input.
  void add(const ExpectedRow& row);
  // One that gets the answer to another.
  void add_equal(int64_t num_prompt_tokens);
  // The input has no more rows.
  void end_input();
  // A row has its answer, with so many tokens in all. Does nothing for rows that are not computed.
  void end_row(int64_t line, int64_t num_output_tokens) { lengths_.end(line, num_output_tokens); }

  // LengthPredictor::set_running()
  void set_running(int64_t num_answers, int64_t num_tokens) { lengths_.set_running(num_answers, num_tokens); }

  Forecast forecast() const;
  const LengthPredictor& lengths() const { return lengths_; }
  // Goes through the run as well (simulate_run): takes a second for a few million rows. is_planned: long answers come
  // first; else in the order of the input.
  Forecast estimate(const RunLimits& limits, bool is_planned, const StepCost& cost) const;

 private:
  LengthPredictor lengths_;
  mutable std::mutex mutex_;
  Forecast counts_;  // guarded by mutex_; but for the output tokens
};

}  // namespace llmb
