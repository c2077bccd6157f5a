// An adapter in the form that the CPU's kernels take.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "backend/cpu/merged_weights.h"
#include "base/thread_pool.h"
#include "kernels/cpu/aligned_buffer.h"
#include "kernels/cpu/linear.h"
#include "kernels/cpu/lora.h"
#include "model/adapter_pool.h"
#include "model/lora_share.h"
#include "model/ops.h"

namespace llmb {

struct CpuPackedAdapter final : PackedAdapter {
  cpu::AlignedBuffer memory;  // of all matrices
  std::vector<cpu::LoraMatrices> matrices;
  // [num_adapted_products() + 2]  into matrices: the products', then the embedding's; then, where the adapter has experts',
  // [layers, num_experts, 2]  those of gate and up, and of down.
  std::vector<int32_t> start;
  int64_t embedding_product = 0;
  int32_t num_experts = 0;  // 0: it has none

  // By adapted_product_index(), in place of the base's weights and without matrices above; empty: the adapter is not
  // merged.
  std::vector<std::optional<cpu::PackedLinear>> merged;

  const cpu::PackedLinear* merged_at(int64_t layer, Projection projection) const {
    if (merged.empty()) return nullptr;
    const auto& weight = merged[static_cast<size_t>(adapted_product_index(layer, projection))];
    return weight ? &*weight : nullptr;
  }
  std::span<const cpu::LoraMatrices> of(int64_t layer, Projection projection) const {
    return of_product(static_cast<size_t>(adapted_product_index(layer, projection)));
  }
  std::span<const cpu::LoraMatrices> embedding() const { return of_product(static_cast<size_t>(embedding_product)); }
  // REQUIRES: num_experts > 0
  std::span<const cpu::LoraMatrices> of_expert(int64_t layer, int64_t expert, bool is_down) const {
    return of_product(
        static_cast<size_t>(embedding_product + 1 + 2 * (layer * num_experts + expert) + (is_down ? 1 : 0)));
  }

 private:
  std::span<const cpu::LoraMatrices> of_product(size_t i) const {
    return std::span(matrices).subspan(start[i], start[i + 1] - start[i]);
  }
};

class CpuAdapterPacker final : public AdapterPacker {
 public:
  // base: outlives this; set before an adapter that is merged is packed. rank: of several, whose parts of products are
  // merged with parts of matrices; none: this one computes the whole model.
  CpuAdapterPacker(int32_t num_layers, int32_t num_experts, const MergeBase& base, std::optional<LoraShare> rank)
      : num_layers_(num_layers), num_experts_(num_experts), base_(base), rank_(std::move(rank)) {}

  int64_t num_bytes(const LoraAdapter& adapter) const override;
  std::shared_ptr<const PackedAdapter> pack(const LoraAdapter& adapter) const override;

 private:
  const cpu::PackedLinear& base_weight(int64_t product) const;
  DType activations_of(int64_t product) const;
  bool merges(const LoraAdapter& adapter, int64_t product) const;
  std::vector<LoraModule> modules_of_product(const LoraAdapter& adapter, int64_t product) const;
  std::vector<LoraModule> modules_at(const LoraAdapter& adapter, int64_t product) const;
  std::span<const LoraModule> expert_modules(const LoraAdapter& adapter, int64_t layer, int32_t expert,
                                             bool is_down) const;
  const LoraModule* embedding_of(const LoraAdapter& adapter) const;
  int64_t next_begin(int64_t bytes) const;

  struct Layout;
  Layout lay_out(const LoraAdapter& adapter) const;

  const int32_t num_layers_, num_experts_;
  const MergeBase& base_;
  const std::optional<LoraShare> rank_;
  mutable std::atomic<uint32_t> num_packed_{0};
};

}  // namespace llmb
