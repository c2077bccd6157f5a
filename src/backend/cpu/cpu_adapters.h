// The adapters that the CPU's steps use, and for each step which rows have which.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "backend/adapter_rows.h"
#include "backend/cpu/packed_adapter.h"
#include "base/thread_pool.h"
#include "core/step_plan.h"
#include "kernels/cpu/experts.h"
#include "kernels/cpu/lora.h"
#include "model/adapter_pool.h"
#include "model/ops.h"

namespace llmb {

// Not thread-safe, but for store().
class CpuAdapters {
 public:
  // rank: CpuAdapterPacker
  CpuAdapters(std::shared_ptr<AdapterLibrary> library, int32_t num_layers, int32_t num_experts, int64_t max_bytes,
              std::optional<LoraShare> rank = std::nullopt);

  AdapterStore& store() { return pool_; }

  // Before a plan names an adapter that is merged.
  void set_merge_base(const ModelWeights& weights, DType activations) { base_ = {&weights, activations}; }

  // Takes what the plan names. Throws std::runtime_error where a file cannot be read.
  void begin_step(const StepPlan& plan);
  void end_step() { adapters_.clear(); }
  bool has_merged() const;  // in the step
  bool has_any() const { return !rows_.ids().empty(); }

  // Begins a product of x: what its tasks add to it (kernels/cpu/linear.h). Null: nothing. Valid until the next call.
  const cpu::LoraWork* shrink(const AdaptedProduct& product,
                              const float* x,  // [rows, in_features]
                              int64_t in_features, int64_t rows, ThreadPool& pool);
  // The weights of a product in which all `rows` rows have one adapter that is merged there; null: there is no such.
  const cpu::PackedLinear* merged_for_all(const AdaptedProduct& product, int64_t rows) const;
  // Computes the rows of other such adapters anew, each by its own weights.
  void compute_merged_rows(const AdaptedProduct& product,
                           const float* x,  // [rows, in_features]
                           float* out,      // [rows, out_features]  in and out
                           ThreadPool& pool);

  // For the products of a layer's experts. Null: nothing. Valid until the next call.
  const cpu::ExpertAdapters* of_experts(const AdaptedProduct& product, int64_t rows);

  // Adds to embeddings.
  void add_embedding(const TokenId* tokens,  // [rows]
                     int64_t rows,
                     float* out,  // [rows, hidden_size]  in and out
                     int64_t hidden_size, ThreadPool& pool);

 private:
  template <typename MatricesOf>
  bool begin_work(const AdapterRows::OfKind& rows, const MatricesOf& matrices_of);
  void keep_rows(int64_t begin, int64_t end);

  const int32_t num_experts_;
  MergeBase base_;  // of the packer in pool_
  AdapterPool pool_;

  // The step in progress.
  AdapterRows rows_;
  std::vector<std::shared_ptr<const CpuPackedAdapter>> adapters_;  // of rows_.ids()
  cpu::LoraWork work_;
  cpu::ExpertAdapters of_experts_;
  std::vector<int32_t> kept_ids_;
  std::vector<float> merged_x_, merged_out_;
};

}  // namespace llmb
