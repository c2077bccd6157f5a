// A second queue to a backend, for those of its plans that draft (OwnDrafts).
#pragma once

#include <cstdint>
#include <functional>
#include <utility>

#include "backend/backend.h"

namespace llmb {

class OwnQueue final : public Backend {
 public:
  using Submit = std::function<Status(const StepPlan&)>;
  using Wait = std::function<Status(StepOutput*)>;
  // info: the backend's
  OwnQueue(const BackendInfo& info, int32_t max_plans_in_flight, Submit submit, Wait wait)
      : info_(info), submit_(std::move(submit)), wait_(std::move(wait)) {
    info_.max_plans_in_flight = max_plans_in_flight;
  }

  Status load(const ModelConfig&, const LoadOptions&) override { return internal_error("it is loaded"); }
  const BackendInfo& info() const override { return info_; }
  Status submit(const StepPlan& plan) override { return submit_(plan); }
  Status wait(StepOutput* output) override { return wait_(output); }

 private:
  BackendInfo info_;
  const Submit submit_;
  const Wait wait_;
};

}  // namespace llmb
