#include "backend/cuda/step_splits.h"

#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/error.h"

namespace llmb {

namespace {

// Multiply-adds of 16 bits in a clock of a multiprocessor, counted as two operations.
constexpr double kFlopsPerClock = 2048, kHopperFlopsPerClock = 4096;

double attribute(cudaDeviceAttr attribute, int device) {
  int value = 0;
  cuda::check(cudaDeviceGetAttribute(&value, attribute, device), "cudaDeviceGetAttribute");
  return value;
}

// As the device's clocks and widths say; clocks are in kHz.
MachineLimits counted_limits(const CudaDevice& device) {
  const double per_clock = device.compute_capability >= 90 ? kHopperFlopsPerClock : kFlopsPerClock;
  MachineLimits limits;
  limits.flops_per_s = per_clock * device.num_sms * 1e3 * attribute(cudaDevAttrClockRate, device.index);
  limits.bytes_per_s = 2 * 1e3 * attribute(cudaDevAttrMemoryClockRate, device.index) *
                       attribute(cudaDevAttrGlobalMemoryBusWidth, device.index) / 8;
  return limits;
}

// Each entry has one row.
bool is_plain_decode(const StepPlan& plan) { return plan.num_tokens() == plan.num_entries(); }

}  // namespace

// Steps that give vectors compute texts whole, encoders' rows see those behind them, and a layer that drafts behind the
// last one needs all rows of that one.
StepSplits::StepSplits(SplitMode mode, const ModelConfig& config, const LoadOptions& options)
    : mode_(options.pooling || config.is_encoder || config.mtp.is_used ? SplitMode::kNever : mode),
      cost_(row_cost(config)),
      has_states_(config.has_states()),
      choice_(mode_, {}) {}

void StepSplits::count(const ModelConfig& config, const BackendInfo& info, const CudaDevice& device,
                       int32_t attention_sms) {
  if (mode_ != SplitMode::kMeasured) return;
  CountedSteps counted = count_steps(config, info.weight_bytes, info.kv.bytes_per_token(), counted_limits(device));
  counted.num_sms = device.num_sms;
  counted.attention_sms = std::min(attention_sms, device.num_sms - 1);
  choice_ = SplitChoice(mode_, counted);
}

StepSplit StepSplits::border(const StepPlan& plan, int64_t recorded_rows, const StepGraphs& graphs) {
  if (!are_possible() || plan.num_tokens() < 2 || !choice_.splits(work_of(plan))) return {};
  SplitLimits limits{.cuts_prompts = !has_states_};
  // One recording serves all steps of a bucket whose entries have one row each.
  if (recorded_rows > 0 && is_plain_decode(plan)) limits.only_row = static_cast<int32_t>(recorded_rows / 2);
  const std::optional<StepSplit> second = split_step(plan, cost_, limits);
  if (!second) return {};
  return recorded_rows == 0 || graphs.may_split(recorded_rows, recorded(*second)) ? *second : StepSplit();
}

}  // namespace llmb
