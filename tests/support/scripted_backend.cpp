#include "tests/support/scripted_backend.h"

#include <algorithm>

#include "base/check.h"
#include "tests/support/step_output.h"

namespace llmb::test {

ScriptedBackend::ScriptedBackend(std::unique_ptr<Backend> inner, BackendScript script)
    : inner_(std::move(inner)), script_(std::move(script)) {}

Status ScriptedBackend::load(const ModelConfig& config, const LoadOptions& options) {
  if (script_.load_stalls) stall();
  LLMB_RETURN_IF_ERROR(script_.load_error);
  LLMB_RETURN_IF_ERROR(inner_->load(config, options));
  info_ = inner_->info();
  info_.max_plans_in_flight = std::min(info_.max_plans_in_flight, script_.max_plans_in_flight);
  return {};
}

Status ScriptedBackend::submit(const StepPlan& plan) {
  const int64_t step = next_step_++;
  if (script_.submit_stalls.contains(step)) stall();
  if (const auto at = script_.submit_errors.find(step); at != script_.submit_errors.end()) return at->second;
  LLMB_CHECK(static_cast<int32_t>(in_flight_.size()) < info_.max_plans_in_flight);
  LLMB_RETURN_IF_ERROR(inner_->submit(plan));
  in_flight_.push_back({step, &plan});
  return {};
}

Status ScriptedBackend::wait(StepOutput* output) {
  LLMB_CHECK(!in_flight_.empty());
  const auto [step, plan] = in_flight_.front();
  in_flight_.pop_front();
  LLMB_RETURN_IF_ERROR(inner_->wait(output));
  if (script_.stalls.contains(step)) stall();
  if (const auto at = script_.wait_errors.find(step); at != script_.wait_errors.end()) {
    for (StepOutput dropped; !in_flight_.empty(); in_flight_.pop_front()) LLMB_RETURN_IF_ERROR(inner_->wait(&dropped));
    return at->second;
  }
  for (size_t group = 0; group < output->is_finite.size(); ++group)
    if (script_.nan_groups.contains({step, static_cast<int32_t>(group)})) take_back(static_cast<int32_t>(group), output);
  for (const SampleGroup& group : plan->groups) ++num_sampled_[group.seq];
  return {};
}

void ScriptedBackend::stall() {
  std::unique_lock lock(mutex_);
  stalled_ = true;
  released_.wait(lock, [this] { return stalls_released_; });
  stalled_ = false;
}

void ScriptedBackend::release_stalls() {
  std::lock_guard lock(mutex_);
  stalls_released_ = true;
  released_.notify_all();
}

bool ScriptedBackend::is_stalled() const {
  std::lock_guard lock(mutex_);
  return stalled_;
}

}  // namespace llmb::test
