// How far a job has come, for whoever looks at it from outside.
#pragma once

#include <atomic>
#include <mutex>
#include <string>

#include "job/job_ending.h"
#include "job/result_stream.h"

namespace llmb {

struct JobSnapshot {
  JobReport report;   // with the records that are written by now
  std::string doing;  // "loading the model"
};

// Thread-safe.
class LiveReport {
 public:
  // `stage` outlives it.
  void enter(const char* stage) { stage_.store(stage); }

  template <typename Change>
  void change(const Change& change) {
    std::lock_guard lock(mutex_);
    change(report_);
  }
  // Without the records of results that still count.
  JobReport report() const {
    std::lock_guard lock(mutex_);
    return report_;
  }

  // The records of `results` count from now on, until fold() adds them for good.
  void count(const ResultStream& results);
  void fold();

  JobSnapshot snapshot() const;

 private:
  std::atomic<const char*> stage_{"starting"};
  mutable std::mutex mutex_;
  JobReport report_;                       // guarded by mutex_, as the next
  const ResultStream* results_ = nullptr;  // whose records report_ does not count yet
};

}  // namespace llmb
