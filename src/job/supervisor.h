// Runs work on a thread of its own and watches it from the calling one, so that nothing that hangs keeps the process
// from ending when it should: a device, a disk, a pipe whose other end nobody has opened.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>

#include "job/device_watch.h"

namespace llmb {

enum class WorkEnding {
  kReturned,  // the work is done, well or not
  kStalled,   // a step of the device takes longer than allowed
  kOverdue,   // interrupted, and the device did not answer in time: while loading at once, later after the grace
  kBlocked,   // interrupted, and something else than the device holds the work up, far longer than the grace
};

// run() and its caller are one thread; begin_steps() belongs to the work. After kStalled and kOverdue the work's thread
// stands still for ever in a call of the device, and all it used is the caller's; after kBlocked it may still run, and
// the caller may touch only what is thread-safe. In all three cases nothing that the work uses may be destroyed: the
// process ends by _exit().
//
// Time in which this process was stopped (SIGSTOP) does not count.
class Supervisor {
 public:
  // `interrupted` counts the signals that ask the run to end: the second one cuts the grace short. leaves_blocked:
  // whether there is kBlocked.
  Supervisor(DeviceWatch& watch, const std::atomic<int>& interrupted, double grace_ms, bool leaves_blocked)
      : watch_(watch), interrupted_(interrupted), grace_ms_(grace_ms), leaves_blocked_(leaves_blocked) {}

  // Throws what `work` throws. Call once.
  WorkEnding run(std::function<void()> work);

  // May be called while it runs.
  void set_grace_ms(double grace_ms) { grace_ms_.store(grace_ms, std::memory_order_relaxed); }

  // The model is loaded: from now on a call of the device may take watchdog_ms (0: for ever).
  void begin_steps(double watchdog_ms);
  bool has_begun_steps() const { return has_begun_steps_.load(std::memory_order_acquire); }

 private:
  std::optional<WorkEnding> look(double passed_ms);

  DeviceWatch& watch_;
  const std::atomic<int>& interrupted_;
  std::atomic<double> grace_ms_;
  const bool leaves_blocked_;
  std::atomic<bool> has_begun_steps_{false};
  double watchdog_ms_ = 0;  // written before has_begun_steps_

  int64_t last_call_ = 0;
  double in_call_ms_ = 0, since_first_signal_ms_ = 0, since_second_signal_ms_ = 0;

  std::mutex mutex_;
  std::condition_variable changed_;
  bool has_returned_ = false;  // guarded by mutex_, as error_
  std::exception_ptr error_;
};

}  // namespace llmb
