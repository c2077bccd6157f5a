// Which steps are run in two parts (core/step_split.h): those of which the table of what steps take says that they gain by
// it. Weights are read twice then, so only steps gain whose products are bound by multiply-adds. Pure: no device, no clock.
#pragma once

#include <array>
#include <cstdint>

#include "backend/backend.h"
#include "core/model_config.h"
#include "core/step_cost.h"
#include "core/step_plan.h"

namespace llmb {

enum class SplitMode {
  kNever,
  kMeasured,  // by the table
  kAlways,    // wherever there is a border: for tests and benches
};

// The work of a step, as the table sees it.
struct StepWork {
  int32_t num_rows = 0;
  double num_positions = 0;  // that sequences read from the KV cache
  double num_pairs = 0;      // of rows of prompts and the positions that each sees
};
StepWork work_of(const StepPlan& plan);

// The time that steps take by counting, on a device of which nothing was measured yet.
struct CountedSteps {
  double weight_bytes = 0, kv_bytes_per_position = 0;
  double flops_per_row = 0, flops_per_pair = 0;
  MachineLimits machine;
  int32_t num_sms = 0, attention_sms = 0;  // all, and those that attention has in steps of two parts

  double whole_ms(const StepWork& work) const;
  double split_ms(const StepWork& work) const;  // of even parts
};
CountedSteps count_steps(const ModelConfig& config, int64_t weight_bytes, int64_t kv_bytes_per_position,
                         const MachineLimits& machine);  // without the multiprocessors

// Not thread-safe.
class SplitChoice {
 public:
  SplitChoice() = default;
  SplitChoice(SplitMode mode, const CountedSteps& counted) : mode_(mode), counted_(counted) {}

  SplitMode mode() const { return mode_; }
  // Whether a step that has a border is to run in two parts. What was never run so, of about as many rows, is tried where
  // counting says that it may pay; now and then the other way is looked at again. No step of a --deterministic run gives
  // other bytes by it.
  bool splits(const StepWork& work);
  void observe(const StepWork& work, bool was_split, double ms);

 private:
  static constexpr int kLeastSteps = 4, kLookAgain = 64;
  static constexpr size_t kNumSizes = 32;  // by powers of two
  struct Seen {
    std::array<int32_t, kNumSizes> num_steps = {};
    StepCost cost;
  };
  static size_t size_of(const StepWork& work);

  SplitMode mode_ = SplitMode::kNever;
  CountedSteps counted_;
  Seen whole_, split_;
  std::array<int32_t, kNumSizes> num_asked_ = {};
};

}  // namespace llmb
