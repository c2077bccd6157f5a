// One run of a job, stage by stage: opens the output, chooses device and model, looks at what earlier runs left, begins
// to read, loads, computes, and makes the output durable.
//
// The coordinator owns input, numbers, output and durability; a worker owns backend and engine, in this process or, with
// others, in processes of their own (workforce.h). They meet in two queues of values (coordinator.h).
#pragma once

#include <atomic>
#include <memory>
#include <optional>

#include "base/clock.h"
#include "io/line_filter.h"
#include "job/coordinator.h"
#include "job/done_rows.h"
#include "job/fingerprint.h"
#include "job/job_ending.h"
#include "job/job_model.h"
#include "job/job_options.h"
#include "job/job_progress.h"
#include "job/live_report.h"
#include "job/merge_choice.h"
#include "job/output_stage.h"
#include "job/rank_team.h"
#include "job/supervisor.h"
#include "job/worker.h"
#include "job/worker_process.h"
#include "job/workforce.h"

namespace llmb {

// Is told how a job proceeds. Called by the thread that drives the job at the time.
class JobObserver {
 public:
  virtual ~JobObserver() = default;
  // The worker is ready. `options` with names of models resolved.
  virtual void on_loaded(const JobOptions& options, const ModelFiles& model, const BackendInfo& backend) = 0;
  // Once, when all rows are read.
  virtual void on_forecast(const Forecast& forecast, const BackendInfo& backend) = 0;
  // After every step and while idle.
  virtual void on_progress(const JobProgress& progress) = 0;
  // No step follows.
  virtual void on_computed() = 0;
  // A line has failed otherwise than all before it. From any thread, one call at a time, from the reading of the first
  // line on.
  virtual void on_new_error(const ErrorCount&) {}
  // The job goes on. Options are named as in JobEnding::message.
  virtual void on_warning(const std::string& /*message*/) {}
};

// A job gets this from its process. All of it outlives the job.
struct JobEnvironment {
  const BackendFactory& make_backend;
  const std::atomic<int>& interrupted;  // how often the job was asked to end; the second time cuts the grace short
  JobObserver& observer;
  StartWorker start_worker = {};  // null: there are no workers but this process
  StartRank start_rank = {};      // null: this process computes the whole model
};

// One thread drives it; while the worker loads and computes, another one that it starts. Any thread may ask for a
// snapshot.
class Job {
 public:
  Job(JobOptions options, const JobEnvironment& environment);

  // Call once. Throws std::bad_alloc, and std::system_error where no thread can be started.
  JobEnding run();
  JobSnapshot snapshot() const { return live_.snapshot(); }
  // A thread hangs in a call, so nothing that it uses may be destroyed.
  bool must_end_process() const { return must_end_process_; }

 private:
  // The errors of the two sides.
  struct Outcome {
    Status engine, output;
    double start_ms = 0;
    bool was_interrupted = false;  // before all lines were answered
  };

  // A stage that ends the job returns the end.
  std::optional<JobStop> prepare();
  std::optional<JobStop> find_device();
  std::optional<JobStop> read_model();
  std::optional<JobStop> choose_arithmetic();
  Status load_context();
  std::optional<JobStop> read_done();
  std::optional<JobStop> choose_rows();
  std::optional<JobStop> follow_recorded_merging();
  std::optional<JobStop> merge_adapters();
  std::optional<JobStop> examine_output();
  std::optional<JobStop> begin_reading();
  std::optional<JobStop> wait_for_new_line();
  StageRows expected_rows() const;
  JobEnding compute();
  std::optional<JobStop> load_and_run(Outcome* outcome);
  std::optional<JobStop> start_output();
  Forecast estimate() const;
  void report_progress(const EngineProgress& engine, std::optional<int64_t> num_lines);

  JobEnding finish(Outcome outcome);
  JobEnding finish_blocked();
  JobStop stop_of(const Outcome& outcome) const;
  void count_results();
  void report_rest(bool is_complete);
  JobMetrics metrics(const Outcome& outcome);
  JobEnding ending(JobStop stop) const;

  bool is_interrupted() const { return environment_.interrupted.load() > 0; }
  std::optional<JobStop> stop_unless_ok(const Status& status, JobStop (*stop)(const Status&)) const;

  JobOptions options_;
  const JobEnvironment environment_;
  const KeepGoing keep_going_ = [this] { return !is_interrupted(); };
  const std::shared_ptr<Clock> clock_ = std::make_shared<SteadyClock>();
  LiveReport live_;
  OutputStage output_;
  JobModel model_;
  DoneRows done_;                              // in other outputs
  std::shared_ptr<const LineFilter> filter_;   // null: all lines
  std::optional<MergeChoice> merging_;  // none: no adapter is merged, or not yet chosen
  std::unique_ptr<LineReader> reader_;  // null once the coordinator has it
  std::optional<Fingerprint> fingerprint_;
  std::optional<FingerprintTask> fingerprint_task_;  // beside the loading of the weights
  std::unique_ptr<Coordinator> coordinator_;
  std::unique_ptr<Workforce> workers_;
  std::optional<Supervisor> supervisor_;
  bool has_forecast_ = false;  // told to the observer
  bool must_end_process_ = false;
};

}  // namespace llmb
