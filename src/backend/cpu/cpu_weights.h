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
  explicit CpuLinear(cpu::PackedLinear packed) : packed_(std::move(packed)) {}
  int64_t resident_bytes() const override { return packed_.resident_bytes(); }
  const cpu::PackedLinear& packed() const { return packed_; }

 private:
  const cpu::PackedLinear packed_;
};

class CpuExperts final : public ExpertsWeight {
 public:
  CpuExperts(std::vector<std::unique_ptr<LinearWeight>> gate_up, std::vector<std::unique_ptr<LinearWeight>> down)
      : gate_up_(std::move(gate_up)), down_(std::move(down)) {
    for (size_t i = 0; i < gate_up_.size(); ++i)
      views_.push_back(
          {&static_cast<const CpuLinear&>(*gate_up_[i]).packed(), &static_cast<const CpuLinear&>(*down_[i]).packed()});
  }
  int64_t resident_bytes() const override {
    int64_t bytes = 0;
    for (const auto* list : {&gate_up_, &down_})
      for (const auto& weight : *list) bytes += weight->resident_bytes();
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
