// Names and values of everything that answers depend on: what a run records in its manifest, and what a later run must
// agree with to continue it. Settings that only change the schedule (batch sizes, threads, order …) are not part of it.
#pragma once

#include <atomic>
#include <future>
#include <string>

#include "base/status.h"
#include "job/job_model.h"
#include "job/job_options.h"
#include "job/run_manifest.h"

namespace llmb {

// Raised whenever the same model and settings would give a line another answer than before. Builds from before it was
// recorded have none of its versions.
inline constexpr int64_t kAnswersVersion = 3;
// The same of runs that do not generate (--task) with models whose prompts are computed in chunks.
inline constexpr int64_t kPromptAnswersVersion = 4;
// The same of all runs on a GPU.
inline constexpr int64_t kGpuAnswersVersion = 9;

// Sets the dtype and the arithmetic that an earlier run chose by itself where none is asked for, so that another
// processor continues in the same. kUnsupported: this one cannot compute it.
Status follow_recorded(const Fingerprint& recorded, const DeviceChoice& device, LoadOptions* load);

// Reads every file of the inventory, several at a time, but for large ones whose size, times and inode are as in
// `recorded` (may be null) on file systems where times can be trusted: elsewhere, and of small files, the content is
// what counts (4 GB/s a core). keep_going is asked by several threads. kCancelled: it said no; kDataLoss: a file is not
// as in the inventory any more.
Result<Fingerprint> compute_fingerprint(const JobOptions& options, const JobModel& model, const Fingerprint* recorded,
                                        const KeepGoing& keep_going);

// The same beside other work: reading all weights takes about as long as loading them. Driven by one thread.
class FingerprintTask {
 public:
  // Starts at once. What it refers to outlives it and does not change.
  FingerprintTask(const JobOptions& options, const JobModel& model, KeepGoing keep_going);
  ~FingerprintTask();  // gives up what is not done
  FingerprintTask(const FingerprintTask&) = delete;
  FingerprintTask& operator=(const FingerprintTask&) = delete;

  Result<Fingerprint> wait();  // call once

 private:
  std::atomic<bool> stop_{false};
  std::future<Result<Fingerprint>> result_;
};

}  // namespace llmb
