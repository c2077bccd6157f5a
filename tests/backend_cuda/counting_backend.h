// Counts the steps of a CUDA backend on the host layer that are replayed, by the calls of the runtime that they take.
#pragma once

#include <doctest/doctest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "backend/backend.h"
#include "kernels/simt/settings.h"

namespace llmb::test {

// A replayed step is a handful of calls; two layers op by op are some thirty.
constexpr uint64_t kMostCallsOfReplay = 12;

struct Counts {
  int64_t num_steps = 0, num_replayed = 0;  // of those that are looked at
};

// Counts steps of one kind, and those that are replayed. The first of each size is recorded.
class Counting final : public Backend {
 public:
  Counting(std::unique_ptr<Backend> inner, std::function<bool(const StepPlan&)> is_counted, Counts* counts)
      : inner_(std::move(inner)), is_counted_(std::move(is_counted)), counts_(*counts) {}
  Status load(const ModelConfig& config, const LoadOptions& options) override { return inner_->load(config, options); }
  const BackendInfo& info() const override { return inner_->info(); }
  Status submit(const StepPlan& plan) override {
    const uint64_t before = simt::num_calls();
    const Status status = inner_->submit(plan);
    if (is_counted_(plan)) {
      ++counts_.num_steps;
      counts_.num_replayed += simt::num_calls() - before < kMostCallsOfReplay;
    }
    return status;
  }
  Status wait(StepOutput* output) override { return inner_->wait(output); }
  Backend& inner() { return *inner_; }

 private:
  const std::unique_ptr<Backend> inner_;
  const std::function<bool(const StepPlan&)> is_counted_;
  Counts& counts_;
};

inline void check_replayed(const Counts& counts, int64_t num_sizes) {
  CAPTURE(counts.num_steps);
  CAPTURE(counts.num_replayed);
  CHECK(counts.num_steps >= 2 * num_sizes);
  CHECK(counts.num_steps - counts.num_replayed <= num_sizes);
}

}  // namespace llmb::test
