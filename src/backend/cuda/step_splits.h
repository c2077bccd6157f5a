// Which steps of a backend run in two parts, and where these part. No device.
#pragma once

#include <cstdint>
#include <optional>

#include "backend/backend.h"
#include "backend/cuda/device.h"
#include "backend/cuda/split_choice.h"
#include "backend/cuda/step_graphs.h"
#include "core/row_parts.h"
#include "core/step_split.h"

namespace llmb {

// A step that was submitted, for observe().
struct SubmittedWork {
  StepWork work;
  bool is_split = false;
};

// Not thread-safe.
class StepSplits {
 public:
  StepSplits() = default;  // all steps are in one part
  StepSplits(SplitMode mode, const ModelConfig& config, const LoadOptions& options);

  bool are_possible() const { return mode_ != SplitMode::kNever; }
  // Where there is a table: what it begins with.
  void count(const ModelConfig& config, const BackendInfo& info, const CudaDevice& device, int32_t attention_sms);

  // The step is queued op by op, or replayed with so many rows (> 0). Row 0: it is in one part.
  StepSplit border(const StepPlan& plan, int64_t recorded_rows, const StepGraphs& graphs);
  // As a recording has it: what its kernels see.
  StepSplit recorded(const StepSplit& second) const { return {second.row, has_states_ ? second.entry : 0}; }

  SubmittedWork submitted(const StepPlan& plan, const StepSplit& second) const {
    return mode_ == SplitMode::kMeasured ? SubmittedWork{work_of(plan), second.row > 0} : SubmittedWork();
  }
  void observe(const SubmittedWork& step, double device_ms) { choice_.observe(step.work, step.is_split, device_ms); }

 private:
  SplitMode mode_ = SplitMode::kNever;
  RowCost cost_;
  bool has_states_ = false;
  SplitChoice choice_;
};

}  // namespace llmb
