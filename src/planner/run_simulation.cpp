#include "planner/run_simulation.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <utility>
#include <vector>

namespace llmb {

namespace {

class Simulation {
 public:
  Simulation(std::span<const SimulatedRow> rows, const RunLimits& limits, const StepCost& cost)
      : rows_(rows), limits_(limits), cost_(cost) {}

  SimulatedRun run() {
    while (next_ < rows_.size() || num_decoding_ > 0 || prompt_left_ > 0) {
      join();
      if (prompt_left_ > 0) step_with_prompts();
      else decode_until_end();
      while (!ends_.empty() && ends_.top().first <= run_.num_steps) end_first();
    }
    if (cost_.is_known()) run_.ms = cost_.wall_ms(ms_);
    return run_;
  }

 private:
  using End = std::pair<int64_t, size_t>;  // after this step; row

  // A prompt that is computed in parts lets nobody join behind it.
  void join() {
    while (next_ < rows_.size() && prompt_left_ < limits_.max_step_tokens - num_decoding_) {
      const SimulatedRow& row = rows_[next_];
      const bool is_empty = num_decoding_ == 0 && prompt_left_ == 0;
      if (!is_empty && (num_running_ + row.num_choices > limits_.num_slots ||
                        kv_tokens_ + prompt_left_ + row.num_prompt_tokens > limits_.pool_tokens))
        return;
      num_running_ += row.num_choices;
      prompt_left_ += row.num_prompt_tokens;
      prefilling_.emplace(next_++, row.num_prompt_tokens);
    }
  }

  void step_with_prompts() {
    int64_t budget = std::max<int64_t>(1, limits_.max_step_tokens - num_decoding_);
    const int64_t num_prompt = std::min(budget, prompt_left_);
    const int64_t num_decoding = num_decoding_;
    kv_tokens_ += num_prompt;
    add_steps(1, num_decoding + num_prompt, kv_tokens_);
    kv_tokens_ += num_decoding;
    prompt_left_ -= num_prompt;
    while (!prefilling_.empty() && budget > 0) {
      auto& [row, left] = prefilling_.front();
      const int64_t count = std::min<int64_t>(budget, left);
      budget -= count;
      left -= static_cast<int32_t>(count);
      if (left > 0) break;
      // The step that ends the prompt gives the first token.
      num_decoding_ += rows_[row].num_choices;
      ends_.emplace(run_.num_steps + rows_[row].num_output_tokens - 1, row);
      prefilling_.pop();
    }
    note_peak();
  }

  void decode_until_end() {
    const int64_t count = ends_.empty() ? 0 : ends_.top().first - run_.num_steps;
    if (count <= 0) return;
    add_steps(count, num_decoding_, static_cast<double>(kv_tokens_) + static_cast<double>(num_decoding_ * (count + 1)) / 2);
    kv_tokens_ += num_decoding_ * count;
    note_peak();
  }

  void note_peak() {
    if (kv_tokens_ <= run_.peak_kv_tokens) return;
    run_.peak_kv_tokens = kv_tokens_;
    run_.peak_kv_answers = num_running_;
  }

  void end_first() {
    const SimulatedRow& row = rows_[ends_.top().second];
    ends_.pop();
    num_decoding_ -= row.num_choices;
    num_running_ -= row.num_choices;
    // The last token is never computed.
    kv_tokens_ -= row.num_prompt_tokens + int64_t{row.num_choices} * (row.num_output_tokens - 1);
  }

  void add_steps(int64_t count, int64_t num_rows, double num_context_tokens) {
    run_.num_steps += count;
    ms_ += static_cast<double>(count) * cost_.ms(static_cast<int32_t>(num_rows), num_context_tokens);
  }

  const std::span<const SimulatedRow> rows_;
  const RunLimits& limits_;
  const StepCost& cost_;
  SimulatedRun run_;
  double ms_ = 0;
  size_t next_ = 0;            // row to join
  int64_t num_running_ = 0;    // answers of rows that have joined
  int64_t num_decoding_ = 0;   // of these, of rows whose prompt is computed
  int64_t prompt_left_ = 0;    // tokens of prompts that have joined and are not computed
  int64_t kv_tokens_ = 0;
  std::queue<std::pair<size_t, int32_t>> prefilling_;  // rows; prompt tokens left
  std::priority_queue<End, std::vector<End>, std::greater<>> ends_;
};

}  // namespace

SimulatedRun simulate_run(std::span<const SimulatedRow> rows, const RunLimits& limits, const StepCost& cost) {
  return Simulation(rows, limits, cost).run();
}

}  // namespace llmb
