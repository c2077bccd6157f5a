// Slots of recurrent states in device memory, for tests of the kernels over them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/state_layout.h"
#include "kernels/cuda/state_entries.h"
#include "tests/support/device_array.h"
#include "tests/support/test_rng.h"

namespace llmb::test {

// The slots hold NaN at first. Entries without rows are padding.
class DeviceStates {
 public:
  DeviceStates(const StateLayout& layout, int32_t num_slots)
      : slot_floats_(cuda::state_slot_floats(layout)), pool_(static_cast<size_t>(num_slots * slot_floats_)) {}

  // The entries of a step, valid until the next call; positions: of its rows.
  const cuda::StateEntry* resolve(const std::vector<cuda::StateRows>& rows, const std::vector<int32_t>& positions) {
    const DeviceArray<cuda::StateRows> on_device(rows);
    const DeviceArray<int32_t> places(positions);
    entries_.emplace(rows.size());
    cuda::resolve_states(on_device.data(), static_cast<int32_t>(rows.size()), places.data(), pool_.data(), slot_floats_,
                         entries_->data(), nullptr);
    cuda::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    return entries_->data();
  }
  // One entry: `count` rows of the sequence in the first slot, behind `position` others.
  const cuda::StateEntry* resolve(int32_t position, int32_t count, int32_t num_drafts) {
    return resolve({{0, count, num_drafts, 0}}, std::vector<int32_t>(static_cast<size_t>(count), position));
  }
  bool check_guards() const { return pool_.check_guards() && entries_->check_guards(); }

 private:
  const int64_t slot_floats_;
  DeviceArray<float> pool_;
  std::optional<DeviceArray<cuda::StateEntry>> entries_;
};

// How a sequence is cut into steps: tokens of a step, and drafts behind them of which so many are right.
struct DraftedStep {
  int32_t position, num_known, num_drafts, num_right;

  int32_t count() const { return num_known + num_drafts; }
  int32_t num_good() const { return num_known + num_right; }  // rows whose inputs are the sequence's
};

inline std::vector<DraftedStep> drafted_steps(int32_t num_tokens, double right, uint64_t seed) {
  TestRng rng(seed);
  std::vector<DraftedStep> steps;
  for (int32_t position = 0; position < num_tokens; position += steps.back().num_good()) {
    DraftedStep& step = steps.emplace_back(DraftedStep{position, 0, 0, 0});
    step.num_known = std::min(rng.log_between(1, 20), num_tokens - position);
    step.num_drafts = std::min(rng.between(0, kMaxStateDrafts), num_tokens - position - step.num_known);
    while (step.num_right < step.num_drafts && rng.chance(right)) ++step.num_right;
  }
  return steps;
}

// Steps of so many tokens in turn.
inline std::vector<DraftedStep> steps_of(int32_t num_tokens, const std::vector<int32_t>& sizes) {
  std::vector<DraftedStep> steps;
  for (int32_t position = 0; position < num_tokens; position += steps.back().num_known)
    steps.push_back({position, std::min(sizes[steps.size() % sizes.size()], num_tokens - position), 0, 0});
  return steps;
}

}  // namespace llmb::test
