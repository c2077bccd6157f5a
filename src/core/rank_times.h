// How busy the ranks that compute one model together were.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace llmb {

struct RankTimes {
  double steps_ms = 0;          // while a step was in flight
  std::vector<double> busy_ms;  // [num_ranks]  of these, but for waiting for other ranks; empty: one process computes all

  // The bubbles of rank `rank`, as a share of the steps' time.
  double idle_share(size_t rank) const {
    return steps_ms > 0 ? std::clamp(1 - busy_ms[rank] / steps_ms, 0.0, 1.0) : 0.0;
  }
  // The same ranks' times in another run, or those of another team of as many.
  void add(const RankTimes& other) {
    steps_ms += other.steps_ms;
    if (busy_ms.size() < other.busy_ms.size()) busy_ms.resize(other.busy_ms.size());
    for (size_t i = 0; i < other.busy_ms.size(); ++i) busy_ms[i] += other.busy_ms[i];
  }
};

}  // namespace llmb
