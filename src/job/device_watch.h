// Notices when a call of the device does not return, so that another thread can go on without it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "backend/backend.h"
#include "core/types.h"

namespace llmb {

// enter() and leave() belong to the thread that drives the device; the rest may be called from any. Invariant: after
// give_up() the driving thread never leaves the call that it is in, even if the device answers after all. So whoever
// gave it up may go on with everything that the driving thread used; the process must end by _exit(), as that thread
// cannot.
class DeviceWatch {
 public:
  void enter() { state_.fetch_add(1, std::memory_order_acq_rel); }
  void leave();

  // The call under way, by a number that no other call has; 0: none.
  int64_t current_call() const {
    const int64_t state = state_.load(std::memory_order_acquire);
    return state % 2 == 1 ? state : 0;
  }
  // False: the call has returned meanwhile.
  bool give_up(int64_t call) { return state_.compare_exchange_strong(call, kGivenUp, std::memory_order_acq_rel); }

 private:
  static constexpr int64_t kGivenUp = -1;
  std::atomic<int64_t> state_{0};  // odd in a call
};

// A backend whose calls are watched. The same thread may drive it as the one inside.
class WatchedBackend final : public Backend {
 public:
  // Both outlive it.
  WatchedBackend(Backend& inner, DeviceWatch& watch) : inner_(inner), watch_(watch) {}
  // The watch outlives it.
  WatchedBackend(std::unique_ptr<Backend> inner, DeviceWatch& watch)
      : owned_(std::move(inner)), inner_(*owned_), watch_(watch) {}

  Status load(const ModelConfig& config, const LoadOptions& options) override;
  const BackendInfo& info() const override { return inner_.info(); }
  Status submit(const StepPlan& plan) override;
  Status wait(StepOutput* output) override;
  bool read_blocks(std::span<const BlockId> blocks, int32_t state, std::span<uint8_t> bytes) override {
    return inner_.read_blocks(blocks, state, bytes);
  }
  void write_host_blocks(std::span<const BlockId> blocks, int32_t state, std::span<const uint8_t> bytes) override {
    inner_.write_host_blocks(blocks, state, bytes);
  }
  AdapterStore* adapters() override { return inner_.adapters(); }
  MachineLimits measure_limits() override { return inner_.measure_limits(); }

 private:
  const std::unique_ptr<Backend> owned_;
  Backend& inner_;
  DeviceWatch& watch_;
};

}  // namespace llmb
