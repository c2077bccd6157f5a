#include "backend/cuda/split_choice.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "core/row_parts.h"

namespace llmb {

namespace {

// One multiprocessor reads so much at most, whatever the others do: weights, by tensor copies on an H200
// (kernels/README.md, linear_wgmma).
constexpr double kSmBytesPerS = 35e9;

}  // namespace

StepWork work_of(const StepPlan& plan) {
  StepWork work;
  work.num_rows = plan.num_tokens();
  for (int32_t e = 0; e < plan.num_entries(); ++e) {
    const double rows = plan.num_rows(e), before = plan.entries[e].max_base();
    work.num_positions += before + rows;
    if (rows > 1) work.num_pairs += rows * (before + (rows + 1) / 2);
  }
  return work;
}

CountedSteps count_steps(const ModelConfig& config, int64_t weight_bytes, int64_t kv_bytes_per_position,
                         const MachineLimits& machine) {
  const RowCost cost = row_cost(config);
  CountedSteps counted;
  counted.weight_bytes = static_cast<double>(weight_bytes);
  counted.kv_bytes_per_position = static_cast<double>(kv_bytes_per_position);
  counted.flops_per_row = 2.0 * static_cast<double>(cost.of_row);
  counted.flops_per_pair = 2.0 * static_cast<double>(cost.of_position);
  counted.machine = machine;
  return counted;
}

double CountedSteps::whole_ms(const StepWork& work) const {
  const double products = std::max(weight_bytes / machine.bytes_per_s, work.num_rows * flops_per_row / machine.flops_per_s);
  const double attention = std::max(work.num_positions * kv_bytes_per_position / machine.bytes_per_s,
                                    work.num_pairs * flops_per_pair / machine.flops_per_s);
  return 1e3 * (products + attention);
}

// Multiply-adds take as much longer as multiprocessors are fewer. So do reads, but that some multiprocessors may be enough
// for the memory's rate.
double CountedSteps::split_ms(const StepWork& work) const {
  const auto limits = [&](int32_t sms) {
    return MachineLimits{machine.flops_per_s * sms / num_sms, std::min(machine.bytes_per_s, sms * kSmBytesPerS)};
  };
  const MachineLimits of_products = limits(num_sms - attention_sms), of_attention = limits(attention_sms);
  const double products = std::max(2 * weight_bytes / of_products.bytes_per_s,
                                   work.num_rows * flops_per_row / of_products.flops_per_s);
  const double attention = std::max(work.num_positions * kv_bytes_per_position / of_attention.bytes_per_s,
                                    work.num_pairs * flops_per_pair / of_attention.flops_per_s);
  return 1e3 * std::max(products, attention);
}

size_t SplitChoice::size_of(const StepWork& work) {
  return static_cast<size_t>(std::bit_width(static_cast<uint32_t>(work.num_rows)));
}

bool SplitChoice::splits(const StepWork& work) {
  if (mode_ != SplitMode::kMeasured) return mode_ == SplitMode::kAlways;
  if (!(counted_.split_ms(work) < counted_.whole_ms(work))) return false;
  const size_t size = size_of(work);
  if (whole_.num_steps[size] < kLeastSteps) return false;
  if (split_.num_steps[size] < kLeastSteps) return true;
  const double whole = whole_.cost.ms(work.num_rows, work.num_positions, work.num_pairs);
  const double split = split_.cost.ms(work.num_rows, work.num_positions, work.num_pairs);
  const bool gains = split < whole;
  return ++num_asked_[size] % kLookAgain == 0 ? !gains : gains;
}

void SplitChoice::observe(const StepWork& work, bool was_split, double ms) {
  if (mode_ != SplitMode::kMeasured || !(ms > 0)) return;
  Seen& seen = was_split ? split_ : whole_;
  ++seen.num_steps[size_of(work)];
  seen.cost.observe(work.num_rows, work.num_positions, ms, 0, work.num_pairs);
}

}  // namespace llmb
