// The forms in which the CPU keeps weights and rows. Private to src/backend/cpu.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "backend/cpu/mapped_floats.h"
#include "kernels/cpu/experts.h"
#include "kernels/cpu/linear.h"
#include "model/ops.h"

namespace llmb {

class CpuLinear final : public LinearWeight {
 public:
  CpuLinear(cpu::PackedLinear packed, WeightRole role)
      : packed_(std::move(packed)), is_partial_sum_(role == WeightRole::kPartialSum) {}
  int64_t resident_bytes() const override { return packed_.resident_bytes(); }
  const cpu::PackedLinear& packed() const { return packed_; }
  bool is_partial_sum() const { return is_partial_sum_; }

 private:
  const cpu::PackedLinear packed_;
  const bool is_partial_sum_;
};

class CpuExperts final : public ExpertsWeight {
 public:
  CpuExperts(std::vector<std::unique_ptr<LinearWeight>> gate_up, std::vector<std::unique_ptr<LinearWeight>> down)
      : gate_up_(std::move(gate_up)), down_(std::move(down)) {
    const auto packed_of = [](const std::unique_ptr<LinearWeight>& weight) {
      return weight ? &static_cast<const CpuLinear&>(*weight).packed() : nullptr;
    };
    for (size_t i = 0; i < gate_up_.size(); ++i) views_.push_back({packed_of(gate_up_[i]), packed_of(down_[i])});
  }
  int64_t resident_bytes() const override {
    int64_t bytes = 0;
    for (const auto* list : {&gate_up_, &down_})
      for (const auto& weight : *list)
        if (weight) bytes += weight->resident_bytes();
    return bytes;
  }
  std::span<const cpu::ExpertView> views() const { return views_; }

 private:
  const std::vector<std::unique_ptr<LinearWeight>> gate_up_, down_;
  std::vector<cpu::ExpertView> views_;
};

class CpuBuffer final : public DeviceBuffer {
 public:
  CpuBuffer(int64_t rows, int64_t width) : width_(width), memory_(rows * width) {}
  Rows rows() const override { return {memory_.data(), DType::kF32, width_}; }
  int64_t resident_bytes() const override { return memory_.size() * int64_t{sizeof(float)}; }

 private:
  const int64_t width_;
  const MappedFloats memory_;
};

inline float* floats(Rows rows) { return static_cast<float*>(rows.data); }

// Every weight here came from make_linear.
inline const cpu::PackedLinear& packed(const LinearWeight& weight) {
  return static_cast<const CpuLinear&>(weight).packed();
}

}  // namespace llmb
