#include "job/device_watch.h"

#include <unistd.h>

namespace llmb {

namespace {

// Also where the call ends by an exception.
class WatchedCall {
 public:
  explicit WatchedCall(DeviceWatch& watch) : watch_(watch) { watch_.enter(); }
  ~WatchedCall() { watch_.leave(); }
  WatchedCall(const WatchedCall&) = delete;
  WatchedCall& operator=(const WatchedCall&) = delete;

 private:
  DeviceWatch& watch_;
};

}  // namespace

void DeviceWatch::leave() {
  int64_t state = state_.load(std::memory_order_relaxed);
  if (state != kGivenUp && state_.compare_exchange_strong(state, state + 1, std::memory_order_acq_rel)) return;
  while (true) ::pause();
}

Status WatchedBackend::load(const ModelConfig& config, const LoadOptions& options) {
  const WatchedCall call(watch_);
  return inner_.load(config, options);
}

Status WatchedBackend::submit(const StepPlan& plan) {
  const WatchedCall call(watch_);
  return inner_.submit(plan);
}

Status WatchedBackend::wait(StepOutput* output) {
  const WatchedCall call(watch_);
  return inner_.wait(output);
}

}  // namespace llmb
