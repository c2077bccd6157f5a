// An adapter in the form that the CPU's kernels take.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/cpu/aligned_buffer.h"
#include "kernels/cpu/lora.h"
#include "model/adapter_pool.h"
#include "model/ops.h"

namespace llmb {

struct CpuPackedAdapter final : PackedAdapter {
  cpu::AlignedBuffer memory;  // of all matrices
  std::vector<cpu::LoraMatrices> matrices;
  std::vector<int32_t> start;  // [layers * projections + 1]  into matrices

  std::span<const cpu::LoraMatrices> of(int64_t layer, Projection projection) const {
    const int64_t i = layer * kNumProjections + static_cast<int64_t>(projection);
    return std::span(matrices).subspan(start[i], start[i + 1] - start[i]);
  }
};

class CpuAdapterPacker final : public AdapterPacker {
 public:
  explicit CpuAdapterPacker(int32_t num_layers) : num_layers_(num_layers) {}

  int64_t num_bytes(const LoraAdapter& adapter) const override;
  std::shared_ptr<const PackedAdapter> pack(const LoraAdapter& adapter) const override;

 private:
  const int32_t num_layers_;
};

}  // namespace llmb
