// The adapters that the CPU's steps use: packed when a step first needs one, kept until others need the memory, and for
// each step which rows have which.
#pragma once

#include <array>
#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/thread_pool.h"
#include "core/step_plan.h"
#include "kernels/cpu/aligned_buffer.h"
#include "kernels/cpu/lora.h"
#include "model/adapter_library.h"
#include "model/ops.h"

namespace llmb {

// Not thread-safe. Invariant: beside the adapters of the step in progress, those that are kept take at most max_bytes.
class CpuAdapters {
 public:
  // library: null: plans have no adapters
  CpuAdapters(std::shared_ptr<AdapterLibrary> library, int32_t num_layers, int64_t max_bytes)
      : library_(std::move(library)), num_layers_(num_layers), max_bytes_(max_bytes) {}

  // Loads what the plan names. Throws std::bad_alloc, and std::runtime_error where a file can no longer be read.
  void begin_step(const StepPlan& plan, ThreadPool& pool);
  bool has_any() const { return !ids_.empty(); }

  // Begins a product of x: what its tasks add to it (kernels/cpu/linear.h). Null: nothing. Valid until the next call.
  const cpu::LoraWork* shrink(const AdaptedProduct& product,
                              const float* x,  // [rows of the product's kind, in_features]
                              int64_t in_features, ThreadPool& pool);

 private:
  struct Loaded {
    cpu::AlignedBuffer memory;  // of all matrices
    std::vector<cpu::LoraMatrices> matrices;
    std::vector<int32_t> start;        // [layers * projections + 1]  into matrices
    std::list<int32_t>::iterator use;  // in uses_

    std::span<const cpu::LoraMatrices> of(int64_t layer, Projection projection) const {
      const int64_t i = layer * kNumProjections + static_cast<int64_t>(projection);
      return std::span(matrices).subspan(start[i], start[i + 1] - start[i]);
    }
  };

  // The rows of one kind that have adapters: those of ids_[i] are [start[i], start[i + 1]) of row_ids.
  struct RowsByAdapter {
    std::vector<int32_t> row_ids, start;
  };

  Loaded& load(int32_t id, ThreadPool& pool);
  void make_room();
  void lay_out(const StepPlan& plan);
  template <typename EntryOfRow>
  void lay_out(int32_t num_rows, const EntryOfRow& entry_of, RowsByAdapter* rows) const;

  const std::shared_ptr<AdapterLibrary> library_;
  const int32_t num_layers_;
  const int64_t max_bytes_;
  std::unordered_map<int32_t, Loaded> loaded_;
  std::list<int32_t> uses_;  // ids of loaded_, the latest used last
  int64_t num_bytes_ = 0;

  // The step in progress.
  std::vector<int32_t> ids_;               // in order
  std::vector<const Loaded*> adapters_;    // of ids_
  std::array<RowsByAdapter, 2> rows_;      // by kind
  std::vector<int32_t> index_of_entry_;    // into ids_, or -1
  std::vector<int32_t> entry_of_token_;
  cpu::LoraWork work_;
};

}  // namespace llmb
