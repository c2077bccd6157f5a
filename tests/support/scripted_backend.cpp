#include "tests/support/scripted_backend.h"

namespace llmb::test {

ScriptedBackend::ScriptedBackend(std::unique_ptr<Backend> inner, BackendScript script)
    : inner_(std::move(inner)), script_(std::move(script)) {}

Status ScriptedBackend::load(const ModelConfig& config, const LoadOptions& options) {
  LLMB_RETURN_IF_ERROR(script_.load_error);
  return inner_->load(config, options);
}

Status ScriptedBackend::submit(const StepPlan& plan) {
  ++step_;
  if (const auto at = script_.submit_errors.find(step_); at != script_.submit_errors.end()) return at->second;
  return inner_->submit(plan);
}

Status ScriptedBackend::wait(StepOutput* output) {
  LLMB_RETURN_IF_ERROR(inner_->wait(output));
  if (script_.stalls.contains(step_)) {
    std::unique_lock lock(mutex_);
    stalled_ = true;
    released_.wait(lock, [this] { return stalls_released_; });
    stalled_ = false;
  }
  if (const auto at = script_.wait_errors.find(step_); at != script_.wait_errors.end()) return at->second;
  for (size_t row = 0; row < output->is_finite.size(); ++row)
    if (script_.nan_rows.contains({step_, static_cast<int32_t>(row)})) output->is_finite[row] = 0;
  return {};
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
