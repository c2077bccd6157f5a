#include "job/coordinator.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace llmb {

Coordinator::Coordinator(std::unique_ptr<RequestIntake> intake, const CoordinatorOptions& options)
    : intake_(std::move(intake)),
      max_errors_(options.max_errors),
      results_(ResultFormatter(options.format), options.order, options.slo),
      work_(options.window),
      reader_([this] { read(); }) {}

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
  }
  work_.close();  // whoever finds it closed finds the status, and who knows that all is read finds it closed
  {
    std::lock_guard lock(mutex_);
    has_read_all_ = true;
  }
  changed_.notify_all();
}

bool Coordinator::take(IntakeItem item) {
  const int64_t ordinal = num_read_.load(std::memory_order_relaxed);
  if (is_closed() || !results_.wait_for_room(ordinal)) return false;
  input_bytes_.store(item.input_bytes, std::memory_order_relaxed);
  num_read_.store(ordinal + 1, std::memory_order_relaxed);
  if (ordinal == 0) {
    {
      std::lock_guard lock(mutex_);
      has_line_ = true;
    }
    changed_.notify_all();
  }
  if (item.request) {
    count_repeated(*item.request);
    return work_.push({ordinal, std::move(item.request), item.arrival_ms, item.arrival_is_clock_time});
  }
  put({ordinal, std::move(item.failure), {}});
  return true;
}

// The last token of a prompt is computed for what it samples, once for all choices.
void Coordinator::count_repeated(const Request& request) {
  if (request.is_indivisible) return;
  const auto num_tokens = static_cast<int32_t>(request.prompt_tokens.size());
  const int32_t num_shared = std::min(prompts_.add(request.prompt_tokens).num_tokens, num_tokens - 1);
  const int64_t num_more_choices = request.params.sampling.num_choices - 1;
  num_repeated_tokens_.fetch_add(num_shared + num_more_choices * num_tokens, std::memory_order_relaxed);
  repeated_granularity_.store(prompts_.granularity(), std::memory_order_relaxed);
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
  return input_status_;
}

void Coordinator::stop() {
  intake_->stop();
  results_.close_window();
  work_.close();
  while (work_.pop_for(0)) {
  }
}

// An error record takes its turn before it is put, so that two threads cannot put more than there may be; it counts
// afterwards, so that whoever sees the sink closed finds it among the records.
void Coordinator::put(FinishedItem item) {
  const bool is_error = item.completion.error.has_value();
  if (is_error && max_errors_ && num_error_turns_.fetch_add(1) > *max_errors_) return;
  results_.put(std::move(item));
  num_done_.fetch_add(1, std::memory_order_relaxed);
  num_failed_.fetch_add(is_error);
}

}  // namespace llmb
