// Makes nothing of anything: a load with it looks which tensors there are, and of which shapes. Private to src/model.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "model/ops.h"

namespace llmb {

class NoWeights final : public WeightMaker {
 public:
  std::unique_ptr<LinearWeight> make_linear(std::span<const TensorView>, std::span<const TensorView>,
                                            WeightRole) override {
    return {};
  }
  std::unique_ptr<ExpertsWeight> make_experts(std::vector<std::unique_ptr<LinearWeight>>,
                                              std::vector<std::unique_ptr<LinearWeight>>) override {
    return {};
  }
  std::unique_ptr<DeviceBuffer> make_vector(const TensorView&) override { return {}; }
};

}  // namespace llmb
