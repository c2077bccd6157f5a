// The last stage of a pipeline tells all others what steps give.
#pragma once

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>

#include "base/collectives.h"
#include "core/plans_in_flight.h"
#include "core/resolve_step.h"

namespace llmb {

// Whether some entry goes on from what the plan before it gives.
inline bool follows_another(const StepPlan& plan) {
  return std::any_of(plan.entries.begin(), plan.entries.end(),
                     [](const StepEntry& entry) { return entry.follows != kNoGroup; });
}

// Steps count from 0 since the backend was loaded. Each rank takes what each step gave, in order, or gives it.
class StepOutputs {
 public:
  // root: the rank that gives. The channel outlives this.
  StepOutputs(Collectives& channel, int root) : channel_(channel), root_(root) {}
  ~StepOutputs();
  StepOutputs(const StepOutputs&) = delete;
  StepOutputs& operator=(const StepOutputs&) = delete;

  // A thread of this one takes what the first `num_steps` steps give as soon as it is there: whoever gives waits for all
  // that take, and they may be busy with later steps, or idle. REQUIRES: at most kMaxAlternatingPlans steps are in use
  void expect(int64_t num_steps);

  // REQUIRES: this is the root
  void give(const StepOutput& output, const GivenTokens& given);
  // Until all steps before `num_steps` have given. From any thread. Throws RankError.
  void take(int64_t num_steps);

  // REQUIRES: the step was taken, and fewer than kMaxAlternatingPlans behind it
  StepOutput& output(int64_t step) { return outputs_[static_cast<size_t>(step % kMaxAlternatingPlans)]; }
  const GivenTokens& given(int64_t step) const { return given_[static_cast<size_t>(step % kMaxAlternatingPlans)]; }

 private:
  Collectives& channel_;
  const int root_;
  void take_expected();

  std::mutex expected_mutex_;  // of these three
  std::condition_variable expected_;
  int64_t num_expected_ = 0;
  bool stops_ = false;
  std::thread taker_;  // where anything is expected

  std::mutex mutex_;  // of taking
  int64_t num_taken_ = 0;
  std::string bytes_;
  std::array<StepOutput, kMaxAlternatingPlans> outputs_;
  std::array<GivenTokens, kMaxAlternatingPlans> given_;
};

}  // namespace llmb
