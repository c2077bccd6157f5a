// Who runs a step: a thread of the backend's, so that its caller may plan the next one meanwhile, or that caller, in
// wait(), which saves two changes of threads. Steps with drafts are seen before the next is planned: nothing is lost there.
#pragma once

#include "base/clock.h"

namespace llmb {

// Guarded by the backend's mutex.
class WaitingCaller {
 public:
  // A step was submitted. is_alone: none is in flight before it. It is left to the caller where that has waited for the
  // last one at once, and until another is submitted.
  void submit(bool is_alone) {
    has_step_ = is_alone && waits_at_once_;
    waits_at_once_ = false;
    submitted_ms_ = clock_.now_ms();
  }
  bool has_step() const { return has_step_; }

  // The caller waits for the oldest step; true: it is to run it, and remains the only one who may, until the next submit().
  bool wait(bool is_alone) {
    waits_at_once_ = is_alone && clock_.now_ms() - submitted_ms_ < kAtOnceMs;
    return has_step_;
  }

 private:
  static constexpr double kAtOnceMs = 0.02;

  SteadyClock clock_;
  bool has_step_ = false, waits_at_once_ = false;
  double submitted_ms_ = 0;
};

}  // namespace llmb
