#include "job/live_report.h"

namespace llmb {

void LiveReport::count(const ResultStream& results) {
  std::lock_guard lock(mutex_);
  results_ = &results;
}

void LiveReport::fold() {
  std::lock_guard lock(mutex_);
  if (results_ == nullptr) return;
  const int64_t num_written = results_->num_written();
  report_.done += num_written;
  if (report_.left) *report_.left -= num_written;
  report_.failed += results_->num_failed_written();
  results_ = nullptr;
}

JobSnapshot LiveReport::snapshot() const {
  std::lock_guard lock(mutex_);
  JobSnapshot now = {report_, stage_.load()};
  if (results_ == nullptr) return now;
  const int64_t num_written = results_->num_written();
  now.report.done += num_written;
  now.report.failed += results_->num_failed_written();
  if (now.report.left) *now.report.left -= num_written;
  if (results_->is_writing()) now.doing = "writing results";
  return now;
}

}  // namespace llmb
