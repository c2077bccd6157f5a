// Runs the threads of one block at a time: which one is next, who waits for what, what is wrong. See block.h.
// Not thread-safe.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>

#include "kernels/simt/block.h"

namespace llmb::simt {

constexpr uint32_t kMaxThreads = 1024;
constexpr uint32_t kWarpLanes = 32;
// 16 that kernels may name, then one for each warpgroup.
constexpr uint32_t kNumBarriers = 16 + kMaxThreads / 128;

// xorshift64*: the order of threads has to vary, not to be random in earnest.
class Random {
 public:
  explicit Random(uint64_t seed) : state_((seed + 1) * 0x9E3779B97F4A7C15u | 1) {}
  uint32_t next() {
    state_ ^= state_ >> 12;
    state_ ^= state_ << 25;
    state_ ^= state_ >> 27;
    return static_cast<uint32_t>((state_ * 0x2545F4914F6CDD1Du) >> 32);
  }
  uint32_t below(uint32_t bound) { return static_cast<uint32_t>((uint64_t{next()} * bound) >> 32); }

 private:
  uint64_t state_;
};

class BlockRunner {
 public:
  BlockRunner(const Grid& grid, const std::function<void()>& body);

  void run_block(uint3 block);
  void sync(uint32_t id, uint32_t num_threads, Site site, bool wait);
  void meet(uint32_t mask, Collective collective, void* argument, Site site);
  void wait_until(bool (*ready)(void*), void* argument, Site site);
  void wake_conditions();
  void run_thread();  // what a fiber does, again for every block
  [[noreturn]] void fail(const std::string& what) const;

  void* shared() const { return shared_.get(); }
  const Grid& grid() const { return grid_; }
  Random& random() { return random_; }

 private:
  struct Barrier {
    uint32_t arrived = 0;
    uint32_t expected = 0;
    Site site{};
  };

  void start_block(uint3 block);
  void set_ready(Thread& thread);
  Thread* next_thread();
  void suspend();
  bool all_met(uint32_t warp, uint32_t mask) const;
  void complete_meeting(uint32_t warp, uint32_t mask);
  void leave_thread();
  void cancel_all();
  Thread& pool_thread(uint32_t warp, uint32_t lane) const { return threads_[warp * kWarpLanes + lane]; }
  void check_same_site(const Barrier& barrier, uint32_t id, Site site) const;
  std::string where_threads_are() const;
  std::string place() const;

  const Grid grid_;
  const std::function<void()>& body_;
  Thread* const threads_;  // kMaxThreads of them, kept with their fibers for the next block
  const uint32_t num_threads_;
  const uint32_t num_warps_;
  std::unique_ptr<void, void (*)(void*)> shared_;
  Random random_;
  Fiber host_;

  uint32_t ready_warps_ = 0;
  uint32_t ready_lanes_[kMaxThreads / kWarpLanes] = {};
  uint32_t live_lanes_[kMaxThreads / kWarpLanes] = {};
  uint32_t meeting_lanes_[kMaxThreads / kWarpLanes] = {};
  uint32_t num_live_ = 0;
  uint32_t current_warp_ = 0;
  Barrier barriers_[kNumBarriers];
  bool cancelled_ = false;
  std::exception_ptr error_;
};

// The runner whose fibers are running.
extern BlockRunner* g_runner;

}  // namespace llmb::simt
