#include "job/supervisor.h"

#include <algorithm>
#include <thread>
#include <utility>

namespace llmb {

namespace {
constexpr double kTickMs = 100;
// The engine itself gets so long to notice that time is up, before it is done for it.
constexpr double kMarginMs = 500;
// After that it is left, whatever it does: half a second of the two is for the last words and the exit.
constexpr double kLastMarginMs = 1500;
}  // namespace

WorkEnding Supervisor::run(std::function<void()> work) {
  using SteadyTime = std::chrono::steady_clock;
  std::thread thread([this, work = std::move(work)] {
    std::exception_ptr error;
    try {
      work();
    } catch (...) {
      error = std::current_exception();
    }
    std::lock_guard lock(mutex_);
    error_ = error;
    has_returned_ = true;
    changed_.notify_all();
  });
  auto last_look = SteadyTime::now();
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, std::chrono::duration<double, std::milli>(kTickMs), [&] { return has_returned_; })) {
    const auto now = SteadyTime::now();
    const double passed_ms = std::chrono::duration<double, std::milli>(now - std::exchange(last_look, now)).count();
    if (const auto ending = look(std::min(passed_ms, 2 * kTickMs))) {
      thread.detach();
      return *ending;
    }
  }
  lock.unlock();
  thread.join();
  if (error_) std::rethrow_exception(error_);
  return WorkEnding::kReturned;
}

void Supervisor::begin_steps(double watchdog_ms) {
  watchdog_ms_ = watchdog_ms;
  has_begun_steps_.store(true, std::memory_order_release);
}

std::optional<WorkEnding> Supervisor::look(double passed_ms) {
  const bool is_loading = !has_begun_steps();
  const int64_t call = watch_.current_call();
  in_call_ms_ = call != 0 && call == last_call_ ? in_call_ms_ + passed_ms : 0;
  last_call_ = call;
  const bool is_stalled = !is_loading && watchdog_ms_ > 0 && in_call_ms_ >= watchdog_ms_;
  if (is_stalled && watch_.give_up(call)) return WorkEnding::kStalled;

  const int num_signals = interrupted_.load(std::memory_order_relaxed);
  if (num_signals == 0) return {};
  since_first_signal_ms_ += passed_ms;
  if (num_signals > 1) since_second_signal_ms_ += passed_ms;
  const double late_ms =
      std::max(since_first_signal_ms_ - grace_ms_.load(std::memory_order_relaxed), since_second_signal_ms_);
  if (call != 0 && (is_loading || late_ms >= kMarginMs) && watch_.give_up(call)) return WorkEnding::kOverdue;
  if (leaves_blocked_ && late_ms >= kLastMarginMs) return WorkEnding::kBlocked;
  return {};
}

}  // namespace llmb
