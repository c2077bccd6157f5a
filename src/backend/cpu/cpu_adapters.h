// The adapters that the CPU's steps use, and for each step which rows have which.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "backend/cpu/packed_adapter.h"
#include "base/thread_pool.h"
#include "core/step_plan.h"
#include "kernels/cpu/lora.h"
#include "model/adapter_pool.h"
#include "model/ops.h"

namespace llmb {

// Not thread-safe, but for store().
class CpuAdapters {
 public:
  CpuAdapters(std::shared_ptr<AdapterLibrary> library, int32_t num_layers, int64_t max_bytes);

  AdapterStore& store() { return pool_; }

  // Takes what the plan names. Throws std::runtime_error where a file cannot be read.
  void begin_step(const StepPlan& plan);
  void end_step() { adapters_.clear(); }
  bool has_any() const { return !ids_.empty(); }

  // Begins a product of x: what its tasks add to it (kernels/cpu/linear.h). Null: nothing. Valid until the next call.
  const cpu::LoraWork* shrink(const AdaptedProduct& product,
                              const float* x,  // [rows of the product's kind, in_features]
                              int64_t in_features, ThreadPool& pool);

 private:
  // The rows of one kind that have adapters: those of ids_[i] are [start[i], start[i + 1]) of row_ids.
  struct RowsByAdapter {
    std::vector<int32_t> row_ids, start;
  };

  void lay_out(const StepPlan& plan);
  template <typename EntryOfRow>
  void lay_out(int32_t num_rows, const EntryOfRow& entry_of, RowsByAdapter* rows) const;

  AdapterPool pool_;

  // The step in progress.
  std::vector<int32_t> ids_;               // in order
  std::vector<std::shared_ptr<const CpuPackedAdapter>> adapters_;  // of ids_
  std::array<RowsByAdapter, 2> rows_;      // by kind
  std::vector<int32_t> index_of_entry_;    // into ids_, or -1
  std::vector<int32_t> entry_of_token_;
  cpu::LoraWork work_;
};

}  // namespace llmb
