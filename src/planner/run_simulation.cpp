#include "planner/run_simulation.h"

#include <algorithm>
#include <deque>
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
    while (has_waiting() || num_decoding_ > 0 || prompt_left_ > 0) {
      preempt();
      join();
      if (prompt_left_ > 0) step_with_prompts();
      else decode_until_end();
      end_jobs();
    }
    if (cost_.is_known()) run_.ms = cost_.wall_ms(ms_);
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
      Job& job = jobs_[decoding_.back()];
      if (num_decoding_ == job.num_choices) return;
      const auto given = static_cast<int32_t>(job.num_output_tokens - (end_of_[decoding_.back()] - run_.num_steps));
      Job rest = job;
      rest.num_prompt_tokens += job.num_choices * given;
      rest.num_output_tokens -= given;
      rest.num_stored_before = num_stored_;
      leave(job, given);
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
      prefilling_.push(jobs_.size());
      jobs_.push_back(job);
      end_of_.push_back(0);
    }
  }

  void step_with_prompts() {
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
      job.prompt_left -= static_cast<int32_t>(count);
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
    context_tokens_ += static_cast<double>(job.num_choices * (job.whole_prompt() + 1));
    end_of_[id] = run_.num_steps + job.num_output_tokens;
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
    const auto more = static_cast<double>(num_decoding_ * count);
    add_steps(count, num_decoding_, context_tokens_ + (more - static_cast<double>(num_decoding_)) / 2, 0);
    context_tokens_ += more;
    num_stored_ += num_decoding_ * count;
    kv_tokens_ += num_decoding_ * count;
    note_peak();
  }

  void note_peak() {
    if (kv_tokens_ <= run_.peak_kv_tokens) return;
    run_.peak_kv_tokens = kv_tokens_;
    run_.peak_kv_answers = num_running_;
  }

  void end_jobs() {
    while (!ends_.empty() && (jobs_[ends_.top().second].is_over || ends_.top().first <= run_.num_steps)) {
      Job& job = jobs_[ends_.top().second];
      ends_.pop();
      if (!job.is_over) leave(job, job.num_output_tokens);
    }
    while (!decoding_.empty() && jobs_[decoding_.back()].is_over) decoding_.pop_back();
  }

  // After so many tokens of each answer, the last of which was never computed.
  void leave(Job& job, int64_t num_given) {
    job.is_over = true;
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
