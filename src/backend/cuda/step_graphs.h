// Steps recorded once as CUDA graphs and replayed: a decode step is some hundred launches, which a host thread cannot
// queue as fast as a GPU runs them.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <vector>

#include "backend/backend.h"
#include "backend/cuda/step_stage.h"
#include "core/step_plan.h"

namespace llmb {

// Batch sizes that steps are padded to: 1, 2, 4, then steps of 8 up to 256, of 16 up to 512, of 64 beyond, and the
// largest itself. REQUIRES: 1 <= size <= max_size.
int64_t graph_bucket(int64_t size, int64_t max_size);
std::vector<int64_t> graph_sizes(int64_t max_size);  // all of them

// Drafts that recorded steps have room for: none where nothing is guessed. Then tokens that a form leaves no choice of go
// along in recorded steps that have room, else in steps that are queued op by op.
inline int32_t num_recorded_drafts(const LoadOptions& options) {
  return options.max_drafts_per_group > 0 ? options.max_num_drafts : 0;
}

// Rows of the largest recorded step.
int64_t largest_graph(const LoadOptions& options);

// How many steps may be recorded in all. may_split: in two parts, too
int64_t max_num_graphs(const ModelConfig& config, const LoadOptions& options, const StepStage& stage, bool may_split);

// Which products adapters of a step's rows add to.
enum class AdapterUse { kNone, kDense, kExperts };  // the last: to experts that a router chooses, too

// A recorded step: it has so many rows, a bucket, and samples all of them.
struct Recording {
  int64_t size = 1;
  bool needs_all = false;  // all that sampling can do; else greedy choice
  StepKind kind;
  int32_t num_layers = 0;  // StepPlan's
  AdapterUse adapters = AdapterUse::kNone;
  StepSplit second;  // StepShape's; entries only where they have states

  auto operator<=>(const Recording&) const = default;
};

// Some of its rows have one.
inline bool has_adapters(const StepPlan& plan) {
  return std::any_of(plan.entries.begin(), plan.entries.end(), [](const StepEntry& e) { return e.adapter >= 0; });
}

// Whether the step can be replayed: one new token for each sequence, chains of drafts, or trees.
inline bool samples_all_rows(const StepPlan& plan) {
  return plan.num_samples() == plan.num_tokens() && plan.hidden_rows.empty();
}

inline constexpr int kMaxRecordedSplits = 2;  // rows at which recorded steps of one size part

// Not thread-safe.
class StepGraphs {
 public:
  StepGraphs() = default;
  StepGraphs(const StepGraphs&) = delete;
  StepGraphs& operator=(const StepGraphs&) = delete;
  ~StepGraphs();

  bool empty() const { return graphs_.empty(); }
  bool holds(const Recording& step) const { return graphs_.contains(step); }
  void clear();

  // Records what `body` queues on `stream`; nothing of it runs. Throws CudaError, and what body throws.
  template <typename Body>
  void record(const Recording& step, cudaStream_t stream, const Body& body) {
    begin(stream);
    try {
      body();
    } catch (...) {
      abandon(stream);
      throw;
    }
    end(step, stream);
  }

  // Whether steps of so many rows that part there are recorded, or may be.
  bool may_split(int64_t size, const StepSplit& second) const;

  // REQUIRES: holds(step)
  void launch(const Recording& step, cudaStream_t stream) const;

 private:
  static void begin(cudaStream_t stream);
  static void abandon(cudaStream_t stream);
  void end(const Recording& step, cudaStream_t stream);

  std::map<Recording, cudaGraphExec_t> graphs_;
};

}  // namespace llmb
