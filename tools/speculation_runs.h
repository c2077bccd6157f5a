// Runs of an engine over listed requests, with drafts and without, for a bench.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "backend/make_backend.h"
#include "base/check.h"
#include "base/clock.h"
#include "engine/engine.h"
#include "speculation/speculator.h"
#include "tools/scripted_drafters.h"

namespace llmb {

constexpr int32_t kMaxStepTokens = 64;

inline void require(const Status& status) { LLMB_CHECK_MSG(status.ok(), status.message()); }

class Source final : public RequestSource {
 public:
  explicit Source(const std::vector<std::shared_ptr<Request>>& requests) : requests_(requests) {}
  std::optional<WorkItem> next(double) override {
    if (at_end()) return std::nullopt;
    const auto ordinal = static_cast<int64_t>(next_);
    return WorkItem{ordinal, requests_[next_++], 0, false};
  }
  bool at_end() const override { return next_ == requests_.size(); }
  void stop() override { next_ = requests_.size(); }

 private:
  const std::vector<std::shared_ptr<Request>>& requests_;
  size_t next_ = 0;
};

class Sink final : public CompletionSink {
 public:
  void put(FinishedItem item) override { answers[item.ordinal] = std::move(item.completion.choices.at(0).token_ids); }
  bool is_closed() const override { return false; }
  Answers answers;
};

inline std::unique_ptr<Backend> backend_on(const std::string& device) {
  auto backend = make_backend(device);
  require(backend.status());
  return std::move(*backend);
}

struct Target {
  explicit Target(const std::string& device) : backend(backend_on(device)) {}

  std::unique_ptr<Backend> backend;
  ModelConfig config;
  LoadOptions load;
  std::vector<std::shared_ptr<Request>> requests;
  StepCost curve;  // of all runs
  int32_t max_tokens = 16;  // drafted for a sequence in a step
};

struct Run {
  double ms = 0, gap_ms = 0;  // gap: between steps
  int64_t num_steps = 0;
  Answers answers;
  SpeculationMetrics speculation;
};

using MakeDrafters = std::function<std::vector<std::unique_ptr<Drafter>>(const Clock&)>;

inline Run run(Target* target, int32_t batch, const MakeDrafters& make, bool drafts_always) {
  SteadyClock clock;
  EngineOptions options;
  options.scheduler.max_num_seqs = batch;
  options.scheduler.max_num_batched_tokens = target->load.max_num_batched_tokens;
  options.scheduler.max_model_len = target->load.max_model_len;
  options.scheduler.block_size = target->backend->info().kv.block_size;
  options.scheduler.num_blocks = target->backend->info().kv.num_blocks - 2 * 64;  // the rest: of layers that draft
  options.scheduler.enable_prefix_caching = false;
  options.model = target->config;
  StepCost cost = target->curve;
  options.step_cost = &cost;
  std::unique_ptr<Speculator> speculator;
  if (make) {
    SpeculatorOptions speculation;
    speculation.max_tokens = target->max_tokens;
    speculation.max_step_tokens = kMaxStepTokens;
    speculation.drafts_always = drafts_always;
    speculator = std::make_unique<Speculator>(speculation, make(clock), cost, clock);
    options.proposer = speculator.get();
    options.scheduler.max_num_drafts = kMaxStepTokens;
    options.scheduler.allows_trees = true;
  }
  Source source(target->requests);
  Sink sink;
  const std::atomic<int> interrupted{0};
  Engine engine(options, *target->backend, nullptr, clock, source, sink, interrupted, [](const EngineProgress&) {});
  const double begin_ms = clock.now_ms();
  require(engine.run());
  Run done;
  done.ms = clock.now_ms() - begin_ms;
  done.num_steps = engine.metrics().num_steps;
  done.gap_ms = engine.metrics().times.gap_ms;
  done.answers = std::move(sink.answers);
  if (speculator) done.speculation = speculator->metrics();
  target->curve = cost;
  return done;
}

}  // namespace llmb
