// The ledger on a virtual clock: a step takes the time that a curve says. So a run's time is exact.
#pragma once

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <utility>

#include "backend/ledger/ledger_backend.h"
#include "base/clock.h"

namespace llmb::test {

using Curve = std::function<double(int32_t num_rows)>;  // ms

class PricedBackend final : public Backend {
 public:
  PricedBackend(Curve curve, VirtualClock& clock)
      : inner_(make_ledger_backend({})), curve_(std::move(curve)), clock_(clock) {}

  Status load(const ModelConfig& config, const LoadOptions& options) override { return inner_->load(config, options); }
  const BackendInfo& info() const override { return inner_->info(); }
  Status submit(const StepPlan& plan) override {
    const int32_t step = num_submitted_++ % kMaxPlansInFlight;
    took_[step] = curve_(plan.num_tokens());
    end_ms_ = ends_[step] = std::max(clock_.now_ms(), end_ms_) + took_[step];
    return inner_->submit(plan);
  }
  Status wait(StepOutput* output) override {
    const int32_t step = num_fetched_++ % kMaxPlansInFlight;
    clock_.sleep_until_ms(ends_[step]);
    const Status status = inner_->wait(output);
    output->device_ms = took_[step];
    return status;
  }

 private:
  const std::unique_ptr<Backend> inner_;
  const Curve curve_;
  VirtualClock& clock_;
  double end_ms_ = 0;
  std::array<double, kMaxPlansInFlight> took_ = {}, ends_ = {};
  int64_t num_submitted_ = 0, num_fetched_ = 0;
};

}  // namespace llmb::test
