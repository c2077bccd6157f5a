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
  bool has_any() const { return !segments_.empty(); }

  void add(int32_t layer, Projection projection, RowKind kind, const float* x, int64_t in_features, float* out,
           int64_t out_features, ThreadPool& pool);

 private:
  struct Loaded {
    std::vector<std::vector<cpu::LoraMatrices>> matrices;  // [layers * projections]
    int64_t bytes = 0;
    std::list<int32_t>::iterator use;  // in uses_
  };
  // The rows of an adapter: a range of row_ids_ of each kind.
  struct AdapterRows {
    const Loaded* adapter = nullptr;
    std::array<int32_t, 2> begin = {}, end = {};
  };

  Loaded& load(int32_t id, ThreadPool& pool);
  void make_room();
  void lay_out(const StepPlan& plan);

  const std::shared_ptr<AdapterLibrary> library_;
  const int32_t num_layers_;
  const int64_t max_bytes_;
  std::unordered_map<int32_t, Loaded> loaded_;
  std::list<int32_t> uses_;  // ids of loaded_, the latest used last
  int64_t num_bytes_ = 0;

  // The step in progress.
  std::vector<int32_t> ids_;                     // in order
  std::vector<AdapterRows> segments_;            // one for each of ids_
  std::array<std::vector<int32_t>, 2> row_ids_;  // by kind
  std::vector<cpu::LoraSegment> scratch_;
};

}  // namespace llmb
