// Goes through the requests of a run's input as they are read: what each has in common with earlier ones, and what all of
// them will take (planner/forecast.h).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/completion.h"
#include "core/request.h"
#include "planner/forecast.h"
#include "planner/prefix_index.h"
#include "planner/row_order.h"

namespace llmb {

// add() and add_equal() belong to the thread that reads, the rest to any.
class InputForecast {
 public:
  // shares_prefixes: what prompts have in common is computed once.
  explicit InputForecast(bool shares_prefixes) : shares_prefixes_(shares_prefixes) {}

  // The next row that is to be computed, in the order of the input.
  PlannedRow add(const Request& request);
  // One that gets the answer to another.
  void add_equal(int32_t num_prompt_tokens) { forecaster_.add_equal(num_prompt_tokens); }
  void end_input() { forecaster_.end_input(); }
  void end_row(const Completion& completion) {
    forecaster_.end_row(completion.line.index, completion.error ? 0 : completion.num_output_tokens());
  }

  void set_running(int64_t num_answers, int64_t num_tokens) { forecaster_.set_running(num_answers, num_tokens); }

  const Forecaster& forecaster() const { return forecaster_; }
  // Prompt tokens of rows to compute that a row before has, as far as a table of kPrefixIndexBytes knows; and by how many
  // tokens a prompt's share of them may be rounded down, and 1.
  int64_t num_repeated_tokens() const { return num_repeated_tokens_.load(std::memory_order_relaxed); }
  int32_t repeated_granularity() const { return repeated_granularity_.load(std::memory_order_relaxed); }

 private:
  static constexpr size_t kPrefixIndexBytes = 48 << 20;  // exact for 3 million different prompt tokens

  PlannedRow index_prompt(const Request& request);

  const bool shares_prefixes_;
  PrefixIndex prompts_{kPrefixIndexBytes};
  std::vector<TokenId> adapter_prompt_;  // of the row being added
  Forecaster forecaster_;
  std::atomic<int64_t> num_repeated_tokens_{0};
  std::atomic<int32_t> repeated_granularity_{1};
};

}  // namespace llmb
