// One run, stage by stage: batch_run.cpp opens the output, looks at what earlier runs left, and loads; run_steps.cpp
// computes and brings the run to its end. One thread drives it; from run_supervised() on, the supervised one as well.
// Any thread may ask for a snapshot.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "backend/backend.h"
#include "backend/make_backend.h"
#include "base/clock.h"
#include "cli/options.h"
#include "cli/progress.h"
#include "cli/run.h"
#include "engine/engine.h"
#include "io/line_reader.h"
#include "job/coordinator.h"
#include "job/device_watch.h"
#include "job/error_file.h"
#include "job/final_report.h"
#include "job/fingerprint.h"
#include "job/model_files.h"
#include "job/model_inventory.h"
#include "job/output_job.h"
#include "job/output_sink.h"
#include "job/supervisor.h"

namespace llmb {

// Where a run stands.
struct RunSnapshot {
  FinalReport report;  // with the records that are written by now
  std::string doing = "starting";
};

// Executes once.
class BatchRun {
 public:
  // `make_backend` outlives it.
  BatchRun(Options options, const BackendFactory& make_backend) : o_(std::move(options)), make_backend_(make_backend) {
    report_.output = o_.output;
  }

  int execute();  // the exit code; throws std::bad_alloc, and std::system_error where no thread can be started
  RunSnapshot snapshot() const;
  // A thread hangs in a call: nothing that it uses may be destroyed.
  bool must_end_process() const { return must_end_process_; }

 private:
  using End = std::optional<int>;  // the exit code, where a stage ends the run

  End open_output();
  Status open_error_file();
  int refuse_input(const Status& status);
  void report_skipped();
  End choose_arithmetic();
  End refuse_new_lines();
  End examine_output();
  End wait_for_new_line();
  int finish_without_new_lines();
  End load_backend();
  End start_output();
  int run_supervised();
  End run_steps(Status* engine_status, Status* output_status);
  int finish(const Status& engine_status, Status output_status);
  int finish_blocked();
  int exit_code(const Status& engine_status, const Status& output_status, const Status& input_status,
                bool too_many_errors) const;
  void count_results();
  void fill_report(bool is_complete);
  void enter(const char* stage) { stage_.store(stage); }
  template <typename Change>
  void change_report(const Change& change) {
    std::lock_guard lock(report_mutex_);
    change(report_);
  }
  bool over_error_budget(int64_t num_failed) const { return o_.max_errors && num_failed > *o_.max_errors; }

  // What computes, once the model is loaded.
  struct Work {
    Work(BatchRun& run, const EngineOptions& options);
    Progress progress;
    Engine engine;
    const double start_ms;
  };
  EngineOptions engine_options() const;
  CoordinatorOptions coordinator_options() const;

  Options o_;
  const BackendFactory& make_backend_;
  mutable std::mutex report_mutex_;             // for snapshot(); who drives the run reads without it
  FinalReport report_;                          // changed by change_report() alone, as the next
  const ResultStream* live_results_ = nullptr;  // whose records report_ does not count yet
  std::atomic<const char*> stage_{"starting"};
  const std::shared_ptr<Clock> clock_ = std::make_shared<SteadyClock>();
  std::unique_ptr<LineReader> reader_;
  OutputTarget target_;
  std::unique_ptr<OutputJob> job_;  // null where the output is a stream
  std::unique_ptr<ErrorFile> errors_;
  std::unique_ptr<OutputSink> sink_;
  DeviceChoice device_;
  Status cannot_compute_;  // what the output was begun with
  ModelInventory inventory_;
  ModelFiles model_;
  std::optional<Fingerprint> fingerprint_;
  int64_t created_ = 0;                              // when the job began, in seconds since 1970
  std::optional<FingerprintTask> fingerprint_task_;  // beside the loading of the weights
  std::optional<int64_t> num_lines_;                 // of all inputs
  std::unique_ptr<Coordinator> coordinator_;
  std::unique_ptr<Backend> backend_;
  DeviceWatch watch_;
  std::optional<WatchedBackend> watched_backend_;
  std::optional<Supervisor> supervisor_;
  std::unique_ptr<Work> work_;
  bool was_interrupted_ = false;  // before all lines were answered
  bool must_end_process_ = false;
};

}  // namespace llmb
