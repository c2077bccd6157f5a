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
#include "backend/draft_feed.h"
#include "base/clock.h"
#include "base/status.h"
#include "core/step_cost.h"
#include "engine/engine.h"
#include "job/device_watch.h"
#include "backend/ranks/ranked_backend.h"
#include "job/draft_model.h"
#include "job/job_ending.h"
#include "job/job_options.h"
#include "job/rank_team.h"
#include "job/workforce.h"
#include "speculation/speculator.h"

namespace llmb {

struct WorkerOptions {
  std::string device;  // DeviceChoice::name
  ModelConfig model;
  LoadOptions load;
  SchedulerConfig scheduler;  // but for the pool, which the backend gives
  SpeculationOptions speculation;
  std::vector<std::vector<TokenId>> corpus;  // of the speculation
  std::optional<DraftModel> draft_model;
  RankOptions ranks;
  double grace_ms = 0;        // Engine
  bool gives_blocks = false;  // likewise
};

// The options that the backend of the model that answers is loaded with.
LoadOptions target_load_options(const WorkerOptions& options);

// Any thread may ask for watch(). Where the watch gives up a call, the thread that gave it up may read what the worker
// measured.
class Worker final : public Workforce {
 public:
  explicit Worker(WorkerOptions options) : options_(std::move(options)) {}

  // Makes the backend.
  std::optional<JobStop> load(const BackendFactory& make_backend) override;
  const BackendInfo& info() const override { return backend_->info(); }
  int count() const override { return 1; }

  Status run(RequestSource& requests, CompletionSink& completions, const Tokenizer* tokenizer, Clock& clock,
             const std::atomic<int>& interrupted,
             const std::function<void(const EngineProgress&)>& on_progress) override;

  StepMetrics metrics() const override;
  SpeculationMetrics speculation() const override {
    return speculator_ ? speculator_->metrics() : SpeculationMetrics();
  }
  int64_t num_left() const override { return engine_->num_left(); }
  void set_step_cost(const StepCost& cost) override { step_cost_ = cost; }
  const StepCost& step_cost() const override { return step_cost_; }
  MachineLimits measure_limits() override { return backend_->measure_limits(); }
  double ending_ms() const override { return 0; }

  DeviceWatch& watch() override { return watch_; }

 private:
  const WorkerOptions options_;
  DeviceWatch watch_;
  std::unique_ptr<Backend> backend_;
  const RankedBackend* ranked_backend_ = nullptr;  // the same, where it is one
  std::optional<WatchedBackend> watched_backend_;
  template <typename Made>  // of a backend; `also` gets it as what it is
  Status take_backend(Result<std::unique_ptr<Made>> made, const Made** also = nullptr) {
    LLMB_RETURN_IF_ERROR(made.status());
    if (also != nullptr) *also = made->get();
    backend_ = std::move(*made);
    return {};
  }
  Status load_draft_model(const BackendFactory& make_backend);

  std::unique_ptr<Backend> draft_backend_;  // until the speculator has it
  std::unique_ptr<DraftFeed> draft_feed_;   // the same; null: none
  LentBlocks lent_;                         // to it
  StepCost step_cost_;
  std::unique_ptr<Speculator> speculator_;  // null: none
  std::unique_ptr<Engine> engine_;
};

}  // namespace llmb
