#include "planner/run_simulation.h"

#include <algorithm>
#include <deque>
#include <functional>
#include <queue>
#include <utility>
#include <vector>

#include "core/types.h"

namespace llmb {

namespace {

class Simulation {
 public:
  Simulation(std::span<const SimulatedRow> rows, const RunLimits& limits, const StepCost& cost)
      : rows_(rows), limits_(limits), cost_(cost), num_filling_(static_cast<size_t>(limits.block_size)) {}

  SimulatedRun run() {
    while (has_waiting() || num_decoding_ > 0 || prompt_left_ > 0) {
      preempt();
      join();
      if (prompt_left_ > 0) step_with_prompts();
      else decode_until_end();
      end_jobs();
    }
    if (cost_.is_known()) run_.ms = cost_.wall_ms(ms_);
    run_.peak_kv_slots *= limits_.block_size;
    return run_;
  }

 private:
  // A row that has joined, or what was left of it when it was preempted.
  struct Job {
    int32_t num_shared_tokens, num_prompt_tokens;  // that it stores, behind those
    int32_t num_output_tokens, num_choices;
    int32_t prompt_left;            // to compute
    int64_t num_stored_before = 0;  // tokens that all had stored when it was preempted
    bool is_over = false;           // ended or preempted

    int64_t whole_prompt() const { return int64_t{num_shared_tokens} + num_prompt_tokens; }
  };
  using End = std::pair<int64_t, size_t>;  // after this step; job

  bool has_waiting() const { return !again_.empty() || next_ < rows_.size(); }
  int64_t room() const {
    const int64_t unused = num_running_ * (limits_.block_size / 2);
    return limits_.pool_tokens - unused - kv_tokens_ - prompt_left_ - num_decoding_;
  }

  // Until each row that decodes has room for its next token; the last of them has it in any case.
  void preempt() {
    while (room() < 0 && num_decoding_ > 0) {
      while (jobs_[decoding_.back()].is_over) decoding_.pop_back();
      const Job& job = jobs_[decoding_.back()];
      if (num_decoding_ == job.num_choices) return;
      const auto given = static_cast<int32_t>(job.num_output_tokens - (end_of_[decoding_.back()] - run_.num_steps));
      Job rest = job;
      rest.num_prompt_tokens += job.num_choices * given;
      rest.num_output_tokens -= given;
      rest.num_stored_before = num_stored_;
      leave(decoding_.back(), given);
      decoding_.pop_back();
      again_.push_front(rest);
    }
  }

  // Who was preempted finds what others did not need room for since.
  Job next_job() const {
    if (!again_.empty()) {
      Job job = again_.front();
      job.prompt_left =
          static_cast<int32_t>(std::clamp<int64_t>(num_stored_ - job.num_stored_before, 1, job.num_prompt_tokens));
      return job;
    }
    const SimulatedRow& row = rows_[next_];
    return {row.num_shared_tokens, row.num_prompt_tokens, row.num_output_tokens, row.num_choices,
            row.num_prompt_tokens};
  }

  // A prompt that is computed in parts lets nobody join behind it.
  void join() {
    while (has_waiting() && prompt_left_ < limits_.max_step_tokens - num_decoding_) {
      const Job job = next_job();
      const bool is_empty = num_decoding_ == 0 && prompt_left_ == 0;
      if (!is_empty && (num_running_ + job.num_choices > limits_.num_slots || job.num_prompt_tokens > room())) return;
      if (again_.empty()) ++next_;
      else again_.pop_front();
      num_running_ += job.num_choices;
      prompt_left_ += job.prompt_left;
      kv_tokens_ += job.num_prompt_tokens - job.prompt_left;
      num_blocks_ += num_prompt_blocks(job);
      prefilling_.push(jobs_.size());
      jobs_.push_back(job);
      end_of_.push_back(0);
    }
  }

  void step_with_prompts() {
    fill_blocks(1);
    int64_t budget = std::max<int64_t>(1, limits_.max_step_tokens - num_decoding_);
    const int64_t num_prompt = std::min(budget, prompt_left_), num_decoding = num_decoding_;
    double context = context_tokens_, pairs = 0;
    context_tokens_ += static_cast<double>(num_decoding);
    kv_tokens_ += num_prompt;
    num_stored_ += num_prompt + num_decoding;
    prompt_left_ -= num_prompt;
    while (!prefilling_.empty() && budget > 0) {
      Job& job = jobs_[prefilling_.front()];
      const int64_t count = std::min<int64_t>(budget, job.prompt_left);
      budget -= count;
      num_blocks_ -= num_prompt_blocks(job);
      job.prompt_left -= static_cast<int32_t>(count);
      num_blocks_ += num_prompt_blocks(job);
      const auto end = static_cast<double>(job.whole_prompt() - job.prompt_left);
      context += end;
      if (count > 1) pairs += static_cast<double>(count) * (end - static_cast<double>(count - 1) / 2);
      if (job.prompt_left > 0) break;
      end_prompt(prefilling_.front());
      prefilling_.pop();
    }
    add_steps(1, num_decoding + num_prompt, context, pairs);
    kv_tokens_ += num_decoding;
    note_peak();
  }

  // In this step, which gives the first token of each answer.
  void end_prompt(size_t id) {
    const Job& job = jobs_[id];
    num_decoding_ += job.num_choices;
    num_blocks_ += num_blocks_of(job, 1) - num_prompt_blocks(job);
    context_tokens_ += static_cast<double>(job.num_choices * (job.whole_prompt() + 1));
    end_of_[id] = run_.num_steps + job.num_output_tokens;
    num_filling_[filling_step(id)] += job.num_choices;
    ends_.emplace(end_of_[id], id);
    decoding_.push_back(id);
  }

  // As far as nobody ends and the pool has room.
  void decode_until_end() {
    while (!ends_.empty() && jobs_[ends_.top().second].is_over) ends_.pop();
    if (ends_.empty()) return;
    const int64_t until_full = 1 + std::max<int64_t>(0, room()) / num_decoding_;
    const int64_t count = std::min(ends_.top().first - run_.num_steps, until_full);
    if (count <= 0) return;
    fill_blocks(1);
    note_blocks();
    fill_blocks(count - 1);
    const auto more = static_cast<double>(num_decoding_ * count);
    add_steps(count, num_decoding_, context_tokens_ + (more - static_cast<double>(num_decoding_)) / 2, 0);
    context_tokens_ += more;
    num_stored_ += num_decoding_ * count;
    kv_tokens_ += num_decoding_ * count;
    note_peak();
  }

  // Blocks that are touched by the prompt's tokens that are computed, but for full ones that another row stores.
  int64_t num_prompt_blocks(const Job& job) const {
    return ceil_div(job.whole_prompt() - job.prompt_left, int64_t{limits_.block_size}) -
           job.num_shared_tokens / limits_.block_size;
  }

  // With the prompt computed, after so many tokens of each answer. Answers share the prompt's full blocks only.
  int64_t num_blocks_of(const Job& job, int64_t num_given) const {
    const int64_t size = limits_.block_size, prompt = job.whole_prompt();
    const int64_t own = ceil_div(prompt + num_given - 1, size) - prompt / size;
    return prompt / size - job.num_shared_tokens / size + job.num_choices * own;
  }

  // Steps with this remainder by the block's size begin a block for each answer of the job.
  size_t filling_step(size_t id) const {
    const int64_t size = limits_.block_size;
    const int64_t first_given = end_of_[id] - jobs_[id].num_output_tokens + 1;
    return static_cast<size_t>(((first_given + 1 - jobs_[id].whole_prompt()) % size + size) % size);
  }

  // In the next steps, of rows that decode.
  void fill_blocks(int64_t num_steps) {
    const int64_t size = limits_.block_size, rest = num_steps % size;
    num_blocks_ += num_steps / size * num_decoding_;
    for (int64_t step = 1; step <= rest; ++step)
      num_blocks_ += num_filling_[static_cast<size_t>((num_filled_steps_ + step) % size)];
    num_filled_steps_ += num_steps;
  }

  // After a step. The blocks of those that ended with the one before are free from now on.
  void note_blocks() {
    run_.peak_kv_slots = std::max(run_.peak_kv_slots, num_blocks_ + num_ended_blocks_);
    num_ended_blocks_ = 0;
  }

  void note_peak() {
    note_blocks();
    if (kv_tokens_ <= run_.peak_kv_tokens) return;
    run_.peak_kv_tokens = kv_tokens_;
    run_.peak_kv_answers = num_running_;
  }

  void end_jobs() {
    while (!ends_.empty() && (jobs_[ends_.top().second].is_over || ends_.top().first <= run_.num_steps)) {
      const size_t id = ends_.top().second;
      const Job& job = jobs_[id];
      ends_.pop();
      if (job.is_over) continue;
      if (limits_.knows_ends) num_ended_blocks_ += num_blocks_of(job, job.num_output_tokens);
      leave(id, job.num_output_tokens);
    }
    while (!decoding_.empty() && jobs_[decoding_.back()].is_over) decoding_.pop_back();
  }

  // After so many tokens of each answer, the last of which was never computed.
  void leave(size_t id, int64_t num_given) {
    Job& job = jobs_[id];
    job.is_over = true;
    num_blocks_ -= num_blocks_of(job, num_given);
    num_filling_[filling_step(id)] -= job.num_choices;
    num_decoding_ -= job.num_choices;
    num_running_ -= job.num_choices;
    context_tokens_ -= static_cast<double>(job.num_choices * (job.whole_prompt() + num_given));
    kv_tokens_ -= job.num_prompt_tokens + job.num_choices * (num_given - 1);
  }

  void add_steps(int64_t count, int64_t num_rows, double num_context_tokens, double num_pairs) {
    run_.num_steps += count;
    ms_ += static_cast<double>(count) * cost_.ms(static_cast<int32_t>(num_rows), num_context_tokens, num_pairs);
  }

  const std::span<const SimulatedRow> rows_;
  const RunLimits& limits_;
  const StepCost& cost_;
  SimulatedRun run_;
  double ms_ = 0;
  size_t next_ = 0;              // row to join
  std::deque<Job> again_;        // before it
  std::vector<Job> jobs_;        // in the order in which they joined
  std::vector<int64_t> end_of_;  // [jobs] after this step
  int64_t num_running_ = 0;      // answers of jobs that have joined
  int64_t num_decoding_ = 0;     // of these, of jobs whose prompt is computed
  int64_t prompt_left_ = 0;      // tokens of prompts that have joined and are not computed
  int64_t kv_tokens_ = 0;        // that the jobs hold
  int64_t num_blocks_ = 0;       // in which they hold them
  int64_t num_ended_blocks_ = 0;   // of jobs that ended with the last step, while the next one is planned
  int64_t num_filled_steps_ = 0;   // whose blocks are counted
  std::vector<int64_t> num_filling_;  // [block_size] answers that begin a block in steps with this remainder
  int64_t num_stored_ = 0;       // all that were ever stored
  double context_tokens_ = 0;    // that a step's decoding rows look back on, their own included
  std::queue<size_t> prefilling_;
  std::vector<size_t> decoding_;  // in the order in which they joined
  std::priority_queue<End, std::vector<End>, std::greater<>> ends_;
};

}  // namespace

SimulatedRun simulate_run(std::span<const SimulatedRow> rows, const RunLimits& limits, const StepCost& cost) {
  return Simulation(rows, limits, cost).run();
}

}  // namespace llmb
