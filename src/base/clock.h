// Time as a dependency: the engine reads it from here, so tests and the ledger backend can run on a virtual clock.
#pragma once

#include <chrono>
#include <thread>

namespace llmb {

// Milliseconds since the clock was made; never goes backwards (wall-clock jumps do not reach it).
class Clock {
 public:
  virtual ~Clock() = default;
  virtual double now_ms() const = 0;
  virtual void sleep_until_ms(double t_ms) = 0;
};

class SteadyClock final : public Clock {
 public:
  double now_ms() const override {
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start_).count();
  }
  void sleep_until_ms(double t_ms) override {
    std::this_thread::sleep_until(start_ + std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                                               std::chrono::duration<double, std::milli>(t_ms)));
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

// Moves only when told. Not thread-safe.
class VirtualClock final : public Clock {
 public:
  double now_ms() const override { return now_ms_; }
  void sleep_until_ms(double t_ms) override { now_ms_ = t_ms > now_ms_ ? t_ms : now_ms_; }
  void advance_ms(double d_ms) { now_ms_ += d_ms; }

 private:
  double now_ms_ = 0;
};

}  // namespace llmb
