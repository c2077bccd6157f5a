// Whoever answers the rows of a job: one worker in this process (worker.h), or several in others (worker_pool.h).
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>

#include "backend/backend.h"
#include "base/clock.h"
#include "base/status.h"
#include "core/step_cost.h"
#include "engine/engine.h"
#include "job/device_watch.h"
#include "job/job_ending.h"
#include "speculation/speculator.h"

namespace llmb {

using BackendFactory = std::function<Result<std::unique_ptr<Backend>>(std::string_view device)>;

// Calls in this order: load(), run(). Any thread may ask for watch().
class Workforce {
 public:
  virtual ~Workforce() = default;

  // Loads the weights. An error of the device ends the job otherwise than one of the model.
  virtual std::optional<JobStop> load(const BackendFactory& make_backend) = 0;
  virtual const BackendInfo& info() const = 0;  // of one worker
  virtual int count() const = 0;

  // Answers requests until the source ends, the sink is closed, or the run is interrupted (Engine). Everything outlives
  // the workforce; the tokenizer may be null.
  virtual Status run(RequestSource& requests, CompletionSink& completions, const Tokenizer* tokenizer, Clock& clock,
                     const std::atomic<int>& interrupted,
                     const std::function<void(const EngineProgress&)>& on_progress) = 0;

  // REQUIRES: run() was called.
  virtual StepMetrics metrics() const = 0;
  virtual SpeculationMetrics speculation() const = 0;
  virtual int64_t num_left() const = 0;
  // Earlier steps of this model on this device. Before run().
  virtual void set_step_cost(const StepCost& cost) = 0;
  virtual const StepCost& step_cost() const = 0;
  virtual MachineLimits measure_limits() = 0;
  virtual double ending_ms() const = 0;  // that run() took beyond its work

  virtual DeviceWatch& watch() = 0;
};

}  // namespace llmb
