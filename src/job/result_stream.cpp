#include "job/result_stream.h"

#include <chrono>
#include <exception>
#include <new>
#include <utility>

namespace llmb {

namespace {
// How long the writer waits for a record before it looks whether earlier ones are to be synced.
constexpr double kIdleMs = 200;
// Where records come fast, the writer lets some gather instead of being woken for each.
constexpr std::chrono::microseconds kGather{100};
}  // namespace

ResultStream::ResultStream(ResultFormatter formatter, OutputOrder order, bool is_planned, const SloTargets& slo)
    : formatter_(formatter), order_(order), is_planned_(is_planned) {
  metrics_.slo = slo;
}

ResultStream::~ResultStream() {
  queue_.close();
  if (thread_.joinable()) thread_.join();
}

void ResultStream::begin(OutputSink& sink, ErrorFile* errors, const JobStamp& stamp) {
  formatter_.set_stamp(stamp);
  sink_ = &sink;
  errors_ = errors;
  thread_ = std::thread([this] { run(); });
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

bool ResultStream::drain_within(double timeout_ms) {
  queue_.close();
  if (!thread_.joinable()) return true;
  std::unique_lock lock(mutex_);
  return ended_.wait_for(lock, std::chrono::duration<double, std::milli>(timeout_ms), [&] { return has_ended_; });
}

void ResultStream::run() {
  write_all();
  std::lock_guard lock(mutex_);
  has_ended_ = true;
  ended_.notify_all();
}

void ResultStream::write_all() {
  Status status;
  try {
    status = write_queue();
  } catch (const std::bad_alloc&) {
    status = resource_exhausted("out of memory while writing results");
  } catch (const std::exception& e) {
    status = internal_error(std::string("while writing results: ") + e.what());
  }
  if (!status.ok()) fail(std::move(status));
}

Status ResultStream::write_queue() {
  while (!queue_.drained()) {
    auto item = queue_.pop_for(kIdleMs);
    LLMB_RETURN_IF_ERROR(item ? write(*item) : sink_->sync_if_due());
    if (item && queue_.size() == 0) std::this_thread::sleep_for(kGather);
  }
  // An interrupted run leaves gaps: what was held back behind them is still an answer.
  return append_held();
}

Status ResultStream::append_held() {
  while (held_.size() > 0) {
    LLMB_ASSIGN_OR_RETURN(const FormattedRecord record, held_.take_first());
    LLMB_RETURN_IF_ERROR(append(record));
  }
  return {};
}

Status ResultStream::write(const FinishedItem& item) {
  metrics_.add(item);
  FormattedRecord record = {formatter_.format(item.completion), item.completion.error.has_value()};
  is_writing_.store(true, std::memory_order_relaxed);
  if (errors_ != nullptr && record.is_error) LLMB_RETURN_IF_ERROR(errors_->append(record.text));
  is_writing_.store(false, std::memory_order_relaxed);
  const bool goes_as_it_comes = order_ == OutputOrder::kCompletion || !is_in_order();
  return goes_as_it_comes ? append(record) : write_in_order(item.ordinal, std::move(record));
}

Status ResultStream::write_in_order(int64_t ordinal, FormattedRecord record) {
  const size_t max_held = is_planned_ ? 0 : kMaxHeld;
  if (ordinal != next_ordinal_ && !sink_->is_stream() && held_.size() >= max_held) {
    is_in_order_.store(false, std::memory_order_relaxed);
    LLMB_RETURN_IF_ERROR(append_held());
    return append(record);
  }
  if (ordinal != next_ordinal_) {
    const Status status = held_.add(ordinal, record);
    if (status.ok()) return {};
    // There is no room for it: all that there is goes out before the run ends.
    LLMB_RETURN_IF_ERROR(append_held());
    LLMB_RETURN_IF_ERROR(append(record));
    return status;
  }
  LLMB_RETURN_IF_ERROR(append(record));
  while (held_.first() == ++next_ordinal_) {
    LLMB_ASSIGN_OR_RETURN(const FormattedRecord next, held_.take_first());
    LLMB_RETURN_IF_ERROR(append(next));
  }
  return {};
}

Status ResultStream::append(const FormattedRecord& record) {
  is_writing_.store(true, std::memory_order_relaxed);
  LLMB_RETURN_IF_ERROR(sink_->append(record.text));
  is_writing_.store(false, std::memory_order_relaxed);
  num_written_.fetch_add(1, std::memory_order_relaxed);
  num_failed_written_.fetch_add(record.is_error, std::memory_order_relaxed);
  return {};
}

void ResultStream::fail(Status status) {
  {
    std::lock_guard lock(mutex_);
    status_ = std::move(status);
  }
  has_failed_.store(true, std::memory_order_relaxed);
  queue_.close();  // put() drops instead of blocking
}

}  // namespace llmb
