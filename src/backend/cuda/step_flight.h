// Plans on their way through the device, and where their results arrive.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <deque>

#include "backend/cuda/step_splits.h"
#include "core/resolve_step.h"
#include "core/step_plan.h"
#include "kernels/cuda/memory.h"

namespace llmb {

struct StepFlight {
  // Throws CudaError. sampled_bytes: CudaOps::sampled_bytes_with_top()
  StepFlight(int64_t sampled_bytes, int64_t max_num_tokens)
      : host(sampled_bytes), tokens(max_num_tokens * int64_t{sizeof(TokenId)}) {}

  // Until the step has ended; how long the device took, in ms.
  double await() const {
    sent.synchronize();
    float ms = 0;
    cuda::check(cudaEventElapsedTime(&ms, begin.get(), end.get()), "cudaEventElapsedTime");
    return ms;
  }

  const StepPlan* plan = nullptr;
  cuda::PinnedMemory host, tokens;  // sampled, and the step's own
  // Around what this GPU computes; waiting for another stage is not that.
  cuda::Event begin{cudaEventBlockingSync}, end{cudaEventBlockingSync}, sent{cudaEventBlockingSync};
  SubmittedWork work;
};

// Those of one who submits and waits. A step's number is how many came before it.
class FlightQueue {
 public:
  // Throws CudaError.
  void make_room(int32_t num_plans, int64_t sampled_bytes, int64_t max_num_tokens) {
    for (int32_t i = 0; i < num_plans; ++i) flights_.emplace_back(sampled_bytes, max_num_tokens);
  }

  bool has_room() const { return num_submitted - num_fetched < static_cast<int64_t>(flights_.size()); }
  void forget_all() { num_fetched = num_submitted; }  // that are in flight
  bool empty() const { return num_submitted == num_fetched; }
  StepFlight& of(int64_t step) { return flights_[static_cast<size_t>(step) % flights_.size()]; }
  const StepPlan* newest_plan() { return empty() ? nullptr : of(num_submitted - 1).plan; }  // null: none is in flight

  // Where its plans draft for those of another queue: whether its next plan follows the newest of those, which came after
  // the newest of its own that gives anything.
  bool follows_target() const { return target != nullptr && num_behind_ != target->num_submitted; }
  bool passes_on() const { return target != nullptr && !follows_target(); }  // DraftRules'
  FlightQueue& before() { return follows_target() ? *target : *this; }  // that its next plan may follow the newest of
  void count(const StepPlan& plan) {
    ++num_submitted;
    if (target != nullptr && plan.num_groups() > 0) num_behind_ = target->num_submitted;
  }

  FlightQueue* target = nullptr;  // that its plans draft for; null: they do not
  int64_t num_submitted = 0, num_fetched = 0;
  GivenTokens given;  // by the last one that was fetched

 private:
  int64_t num_behind_ = -1;        // of the target's plans, when the newest one came
  std::deque<StepFlight> flights_;  // step i in entry i % size
};

}  // namespace llmb
