// One side of a run: a backend and the engine that drives it. It takes requests from one queue and puts completions
// into another; the coordinator is at the other ends of both. All else that passes between the two is plain values, so
// that a worker may also be in another process.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "backend/backend.h"
#include "base/clock.h"
#include "base/status.h"
#include "core/step_cost.h"
#include "engine/engine.h"
#include "job/device_watch.h"
#include "job/draft_model.h"
#include "job/job_ending.h"
#include "job/job_options.h"
#include "speculation/speculator.h"

namespace llmb {

using BackendFactory = std::function<Result<std::unique_ptr<Backend>>(std::string_view device)>;

struct WorkerOptions {
  std::string device;  // DeviceChoice::name
  ModelConfig model;
  LoadOptions load;
  SchedulerConfig scheduler;  // but for the pool, which the backend gives
  SpeculationOptions speculation;
  std::vector<std::vector<TokenId>> corpus;  // of the speculation
  std::optional<DraftModel> draft_model;
  double grace_ms = 0;  // Engine
};

// Calls in this order: load(), run(). Any thread may ask for watch(). Where the watch gives up a call, the thread that
// gave it up may read what the worker measured.
class Worker {
 public:
  explicit Worker(WorkerOptions options) : options_(std::move(options)) {}

  // Makes the backend and loads the weights. An error of the device ends the job otherwise than one of the model.
  std::optional<JobStop> load(const BackendFactory& make_backend);
  const BackendInfo& info() const { return backend_->info(); }

  // Answers requests until the source ends, the sink is closed, or the run is interrupted (Engine). Everything outlives
  // the worker; the tokenizer may be null.
  Status run(RequestSource& requests, CompletionSink& completions, const Tokenizer* tokenizer, Clock& clock,
             const std::atomic<int>& interrupted, const std::function<void(const EngineProgress&)>& on_progress);

  // REQUIRES: run() was called.
  const StepMetrics& metrics() const { return engine_->metrics(); }
  SpeculationMetrics speculation() const { return speculator_ ? speculator_->metrics() : SpeculationMetrics(); }
  int64_t num_left() const { return engine_->num_left(); }
  // Earlier steps of this model on this device. Before run().
  void set_step_cost(const StepCost& cost) { step_cost_ = cost; }
  const StepCost& step_cost() const { return step_cost_; }
  MachineLimits measure_limits() { return backend_->measure_limits(); }

  DeviceWatch& watch() { return watch_; }

 private:
  const WorkerOptions options_;
  DeviceWatch watch_;
  std::unique_ptr<Backend> backend_;
  std::optional<WatchedBackend> watched_backend_;
  Status load_draft_model(const BackendFactory& make_backend);

  std::unique_ptr<Backend> draft_backend_;  // until the speculator has it
  StepCost step_cost_;
  std::unique_ptr<Speculator> speculator_;  // null: none
  std::unique_ptr<Engine> engine_;
};

}  // namespace llmb
