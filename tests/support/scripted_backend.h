// A backend that wraps another one and fails on purpose: stalls, errors and NaN logits at chosen steps.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <utility>

#include "backend/backend.h"

namespace llmb::test {

// Steps are counted from 0 by calls of submit().
struct BackendScript {
  Status load_error;                               // not ok: what load() returns
  bool load_stalls = false;                        // load() blocks until release_stalls()
  std::map<int64_t, Status> submit_errors;         // by step
  std::map<int64_t, Status> wait_errors;           // by step
  std::set<int64_t> stalls;                        // wait() of these steps blocks until release_stalls()
  std::set<int64_t> submit_stalls;                 // submit() of these
  std::set<std::pair<int64_t, int32_t>> nan_groups;  // (step, group): gives nothing, its first row is not finite
  int32_t max_plans_in_flight = 2;                 // no more than the wrapped backend's
};

// Driven by one thread; release_stalls() and is_stalled() may be called from any.
class ScriptedBackend final : public Backend {
 public:
  ScriptedBackend(std::unique_ptr<Backend> inner, BackendScript script);

  Status load(const ModelConfig& config, const LoadOptions& options) override;
  const BackendInfo& info() const override { return info_; }
  Status submit(const StepPlan& plan) override;
  Status wait(StepOutput* output) override;
  MachineLimits measure_limits() override { return inner_->measure_limits(); }

  void release_stalls();  // the current stall and all later ones
  bool is_stalled() const;
  // Belongs to the driving thread.
  int32_t num_in_flight() const { return static_cast<int32_t>(in_flight_.size()); }
  const std::map<SeqId, int64_t>& num_sampled() const { return num_sampled_; }  // tokens that wait() has given

 private:
  struct Step {
    int64_t number;
    const StepPlan* plan;
  };

  void stall();

  const std::unique_ptr<Backend> inner_;
  const BackendScript script_;
  BackendInfo info_;
  int64_t next_step_ = 0;
  std::deque<Step> in_flight_;
  std::map<SeqId, int64_t> num_sampled_;
  mutable std::mutex mutex_;
  std::condition_variable released_;
  bool stalls_released_ = false, stalled_ = false;
};

}  // namespace llmb::test
