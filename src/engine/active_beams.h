// A beam search while it runs: which sequence of the request computes which beam.
#pragma once

#include <cstdint>
#include <vector>

#include "core/request.h"
#include "core/step_plan.h"
#include "engine/beam_search.h"
#include "scheduler/scheduler.h"

namespace llmb {

// Not thread-safe. The request outlives it.
class ActiveBeams {
 public:
  // REQUIRES: the request has beams and max_tokens
  explicit ActiveBeams(const Request& request);

  // Takes the tokens [begin, end) of the output, the best to come next after the beam of `choice`. True: they are there
  // for all beams.
  bool add(int32_t choice, const StepOutput& output, int32_t begin, int32_t end);

  // A step of the search, which ends at `now_ms`. False: it is over. REQUIRES: add() has said true since the last one
  bool advance(double now_ms);

  // The beams that the choices compute next. A beam stays with the choice that has computed the most of it, if that
  // choice is free.
  const std::vector<BeamFork>& forks() const { return forks_; }

  const std::vector<BeamAnswer>& answers() const { return search_.answers(); }
  double step_ms(size_t step) const { return step_ms_[step]; }  // when the step ended

 private:
  void assign_choices();

  const Request& request_;
  BeamSearch search_;
  std::vector<int32_t> choices_;  // of each beam
  std::vector<std::vector<BeamCandidate>> candidates_;
  int32_t num_missing_ = 1;  // beams without candidates
  std::vector<BeamFork> forks_;
  std::vector<double> step_ms_;
};

}  // namespace llmb
