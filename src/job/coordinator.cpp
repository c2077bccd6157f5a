#include "job/coordinator.h"

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

namespace llmb {

namespace {

// Rows whose place in the plan is final: few, so that it can follow what is learned about lengths.
constexpr size_t kPlannedWindow = 32;

}  // namespace

Coordinator::Coordinator(std::unique_ptr<RequestIntake> intake, const CoordinatorOptions& options)
    : intake_(std::move(intake)),
      max_errors_(options.max_errors),
      results_(ResultFormatter(options.format), options.order, options.schedule != Schedule::kFile, options.slo),
      errors_(options.on_new_error),
      work_(options.schedule == Schedule::kFile ? options.window : kPlannedWindow),
      reader_of_rows_(options.reader),
      input_forecast_(options.shares_prefixes) {
  if (options.schedule != Schedule::kFile) {
    equal_rows_.emplace(options.plan_bytes / 3);
    planner_.emplace(RowPlannerOptions{options.schedule, options.plan_bytes / 3 * 2, options.num_slots,
                                       reader_of_rows_.get(), options.packs_input,
                                       &input_forecast_.forecaster().lengths()},
                     work_);
  }
  reader_ = std::thread([this] { read(); });
}

Coordinator::~Coordinator() {
  stop();
  results_.close();
  reader_.join();
}

void Coordinator::read() {
  Status status = intake_->run([this](IntakeItem item) { return take(std::move(item)); });
  {
    std::lock_guard lock(mutex_);
    input_status_ = std::move(status);
    if (input_status_.ok()) fields_never_kept_ = intake_->fields_never_kept();
  }
  input_forecast_.end_input();
  // Whoever finds the queue closed finds the status.
  if (planner_) planner_->end();
  else work_.close();
  {
    std::lock_guard lock(mutex_);
    has_read_all_ = true;
  }
  changed_.notify_all();
}

bool Coordinator::take(IntakeItem item) {
  const int64_t ordinal = num_read_.load(std::memory_order_relaxed);
  if (is_closed()) return false;
  input_bytes_.store(item.input_bytes, std::memory_order_relaxed);
  num_read_.store(ordinal + 1, std::memory_order_relaxed);
  if (ordinal == 0) {
    {
      std::lock_guard lock(mutex_);
      has_line_ = true;
    }
    changed_.notify_all();
  }
  return answer(ordinal, std::move(item));
}

bool Coordinator::answer(int64_t ordinal, IntakeItem item) {
  EqualRows::Key key;
  if (item.input) {
    const bool arrives_later = item.arrival_ms > 0 && !item.arrival_is_clock_time;
    if (equal_rows_ && !arrives_later) key = EqualRows::key_of(*item.input);
    if (key) {
      if (auto equal = equal_rows_->find_equal(key, ordinal, *item.input)) {
        input_forecast_.add_equal(equal->prompt.num_tokens);
        if (equal->answer) put_one(std::move(*equal->answer));
        return true;
      }
    }
    intake_->prepare(&item);
  }
  if (!item.request) {
    put_one({ordinal, std::move(item.failure), {}});
    return true;
  }
  if (key)
    equal_rows_->compute(key, ordinal, {static_cast<int32_t>(item.request->num_prompt_tokens()),
                                        item.request->num_truncated_tokens});
  return hand_on({ordinal, std::move(item.request), item.arrival_ms, item.arrival_is_clock_time,
                  std::move(item.packed_input)});
}

bool Coordinator::hand_on(WorkItem item) {
  const PlannedRow row = input_forecast_.add(*item.request);
  return planner_ ? planner_->add(std::move(item), row) : work_.push(std::move(item));
}

std::optional<WorkItem> Coordinator::next(double timeout_ms) {
  if (planner_) planner_->begin_engine();
  return work_.pop_for(timeout_ms);
}

bool Coordinator::wait_for_line(double timeout_ms) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, std::chrono::duration<double, std::milli>(timeout_ms),
                    [&] { return has_line_ || has_read_all_; });
  return has_line_;
}

bool Coordinator::has_read_all() const {
  std::lock_guard lock(mutex_);
  return has_read_all_;
}

Status Coordinator::input_status() const {
  std::lock_guard lock(mutex_);
  return input_status_.ok() && planner_ ? planner_->status() : input_status_;
}

std::vector<std::string> Coordinator::fields_never_kept() const {
  std::lock_guard lock(mutex_);
  return fields_never_kept_;
}

void Coordinator::stop() {
  intake_->stop();
  if (planner_) planner_->stop();
  work_.close();
  while (work_.pop_for(0)) {
  }
}

void Coordinator::put(FinishedItem item) {
  input_forecast_.end_row(item.completion);
  num_finished_tokens_.fetch_add(item.completion.num_prompt_tokens + item.completion.num_output_tokens(),
                                 std::memory_order_relaxed);
  std::vector<FinishedItem> like;
  if (equal_rows_) like = equal_rows_->answers_like(item);
  put_one(std::move(item));
  for (FinishedItem& other : like) put_one(std::move(other));
}

// An error record takes its turn before it is put, so that two threads cannot put more than there may be; it counts
// afterwards, so that whoever sees the sink closed finds it among the records.
void Coordinator::put_one(FinishedItem item) {
  const bool is_error = item.completion.error.has_value();
  if (is_error && max_errors_ && num_error_turns_.fetch_add(1) > *max_errors_) return;
  if (is_error) errors_.count(item.completion.line, *item.completion.error);
  results_.put(std::move(item));
  num_done_.fetch_add(1, std::memory_order_relaxed);
  num_failed_.fetch_add(is_error);
}

}  // namespace llmb
