// Looks, while a rank's GPU computes, whether the ranks live: a kernel that waits for another rank waits for ever.
#pragma once

#include <cstdint>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "backend/ranks/rank_context.h"

namespace llmb {

// A thread gives signs of life and looks at the others' every few milliseconds. Where a rank has failed it calls
// `on_failure`, once. Where a step takes longer than ranks have patience, it says which rank gives no signs, or that
// its own GPU does not answer, as every rank's failure. Time in which this process was stopped does not count.
class RankWatch {
 public:
  RankWatch(std::shared_ptr<RankContext> ranks, std::function<void()> on_failure);
  ~RankWatch();
  RankWatch(const RankWatch&) = delete;
  RankWatch& operator=(const RankWatch&) = delete;

  // From any thread. How many steps are in flight counts: the time of each begins with the end of the one before.
  void begin_step();
  void end_step();

 private:
  struct Seen {
    uint32_t signs = 0;
    double silent_ms = 0;
  };
  void watch();
  void look(double passed_ms);
  void give_up();

  const std::shared_ptr<RankContext> ranks_;
  const std::function<void()> on_failure_;
  std::vector<Seen> seen_;  // [num_ranks]
  std::mutex mutex_;        // of what follows
  std::condition_variable changed_;
  bool stops_ = false;
  int num_in_flight_ = 0;
  double step_ms_ = 0;  // that the oldest step in flight takes so far
  std::thread thread_;
};

}  // namespace llmb
