// The steps of a rank as they end on its GPU. A thread of their own waits for them, as whoever submits plans may be
// waiting for those of rank 0 meanwhile, and other ranks for what a step gave.
#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "backend/backend.h"
#include "backend/checks.h"
#include "backend/cuda/cuda_ranks.h"
#include "backend/cuda/device.h"
#include "backend/ranks/rank_context.h"
#include "backend/ranks/step_outputs.h"
#include "core/plans_in_flight.h"
#include "core/resolve_step.h"

namespace llmb {

// The status that `body` returns or throws; an error of another rank before this one's, which may follow from it.
// context: null where there are no others.
template <typename Body>
Status guarded_as_rank(const RankContext* context, const Body& body) {
  const auto status_of = [](const std::exception& e) {
    return dynamic_cast<const RankError*>(&e) != nullptr ? status_of_error(e) : status_of_cuda_error(e);
  };
  const Status status = guarded(status_of, body);
  return status.ok() || context == nullptr || context->ranks->failure().ok() ? status : context->ranks->failure();
}

// Steps count from 0. Where layers are divided among stages, the last stage gives all ranks what a step gave
// (backend/ranks/step_outputs.h), and no other one draws tokens.
class RankSteps {
 public:
  // Called for each step in order, by the thread, and never after an error of a step; they may throw.
  struct OnDevice {
    std::function<double(int64_t step)> await;  // until the step has ended; how long this GPU was busy, in ms
    std::function<const GivenTokens&(int64_t step, StepOutput* output)> read;  // what it gave: the last stage's
  };
  RankSteps(std::shared_ptr<RankContext> context, CudaRanks& ranks, OnDevice device);
  ~RankSteps();
  RankSteps(const RankSteps&) = delete;
  RankSteps& operator=(const RankSteps&) = delete;

  // Work of one more step, which a plan calls so, is about to be queued. It counts as begun: whoever queues it may have to
  // wait for a GPU that waits for another rank. REQUIRES: fewer than kMaxAlternatingPlans are in flight
  void begin(int64_t plan_step) { ranks_.begin_step(plan_step); }
  // All of it is queued.
  void add();
  // Until the oldest step in flight has ended. An error is that of all that follow.
  Status wait(StepOutput* output);

 private:
  void see_ends();
  Status see_end(int64_t step);
  bool is_early_stage() const { return outputs_ && !context_->part.is_last_stage(); }

  const std::shared_ptr<RankContext> context_;
  CudaRanks& ranks_;
  const OnDevice device_;
  std::optional<StepOutputs> outputs_;  // where there are several stages
  std::array<StepOutput, kMaxAlternatingPlans> own_;  // of step i in entry i % size, on the last stage

  std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  int64_t num_added_ = 0, num_ended_ = 0, num_fetched_ = 0;
  Status failure_;  // of step num_ended_
  bool stops_ = false;
  std::thread thread_;  // last: it uses the rest
};

}  // namespace llmb
