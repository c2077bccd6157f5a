// Works out on several threads which tokens sequences with constraints may go on with: the device waits for it where all
// of them are seen before a plan is made (waiting_cost.h).
#pragma once

#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/thread_pool.h"
#include "core/token_constraint.h"

namespace llmb {

// Driven by one thread.
class MaskWorkers {
 public:
  struct Row {
    const TokenConstraint* form = nullptr;
    ConstraintState* state = nullptr;
  };

  // num_threads counts the calling one. The clock is thread-safe and outlives it.
  MaskWorkers(int num_threads, const Clock& clock) : num_threads_(num_threads), clock_(clock) {}

  // Calls allowed() of each state, in any order. Other threads take part where that took long lately. Rows of one form
  // share a lock, so one thread takes all of them. REQUIRES: each state once
  void find(std::vector<Row>* rows);

 private:
  double find_alone(const std::vector<Row>& rows, size_t begin, size_t end) const;  // ms that it took

  const int num_threads_;
  const Clock& clock_;
  double mean_ms_ = 0;  // of processor time for a call
  std::unique_ptr<ThreadPool> pool_;  // once it is needed
  std::vector<size_t> forms_;         // where each form's rows begin
  std::vector<double> took_ms_;       // [forms]
};

}  // namespace llmb
