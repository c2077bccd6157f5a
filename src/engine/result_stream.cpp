#include "engine/result_stream.h"

#include <exception>
#include <utility>

namespace llmb {

namespace {
// How long the writer waits for a record before it looks whether earlier ones are to be synced.
constexpr double kIdleMs = 200;
}  // namespace

ResultStream::ResultStream(OutputSink& sink, ErrorFile* errors, ResultFormatter formatter, OutputOrder order)
    : sink_(sink), errors_(errors), formatter_(std::move(formatter)), order_(order), thread_([this] { run(); }) {}

ResultStream::~ResultStream() {
  queue_.close();
  if (thread_.joinable()) thread_.join();
}

bool ResultStream::has_room(int64_t ordinal) const {
  return order_ == OutputOrder::kCompletion || ordinal < next_ordinal_.load(std::memory_order_acquire) + kOrderWindow;
}

Status ResultStream::put(int64_t ordinal, Completion completion) {
  if (!queue_.push({ordinal, std::move(completion)})) return status();
  return {};
}

Status ResultStream::status() const {
  std::lock_guard lock(mutex_);
  return status_;
}

Status ResultStream::drain() {
  queue_.close();
  if (thread_.joinable()) thread_.join();
  return status();
}

void ResultStream::run() {
  while (!queue_.drained()) {
    auto item = queue_.pop_for(kIdleMs);
    Status status;
    try {
      status = item ? write(std::move(*item)) : sink_.sync_if_due();
    } catch (const std::exception& e) {
      status = internal_error(std::string("while writing results: ") + e.what());
    }
    if (!status.ok()) return fail(std::move(status));
  }
  // An interrupted run leaves gaps: what was held back behind them is still an answer.
  for (auto& [ordinal, record] : held_)
    if (Status status = append(record); !status.ok()) return fail(std::move(status));
}

Status ResultStream::write(Item item) {
  std::string record = formatter_.format(item.completion);
  if (errors_ != nullptr && item.completion.error) LLMB_RETURN_IF_ERROR(errors_->append(record));
  if (order_ == OutputOrder::kCompletion) return append(record);
  held_.emplace(item.ordinal, std::move(record));
  while (!held_.empty() && held_.begin()->first == next_ordinal_.load(std::memory_order_relaxed)) {
    LLMB_RETURN_IF_ERROR(append(held_.begin()->second));
    held_.erase(held_.begin());
    next_ordinal_.fetch_add(1, std::memory_order_release);
  }
  return {};
}

Status ResultStream::append(const std::string& record) {
  LLMB_RETURN_IF_ERROR(sink_.append(record));
  num_written_.fetch_add(1, std::memory_order_relaxed);
  return {};
}

void ResultStream::fail(Status status) {
  {
    std::lock_guard lock(mutex_);
    status_ = std::move(status);
  }
  queue_.close();  // put() returns the error instead of blocking
}

}  // namespace llmb
