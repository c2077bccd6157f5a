// The best values of a row, found without sorting it.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cpu/logit_passes.h"

namespace llmb::cpu {

// The order of a row's values: value descending, id ascending.
inline bool goes_before(const Cut& a, const Cut& b) { return a.value > b.value || (a.value == b.value && a.id < b.id); }

// Appends all values in [low, high) of indices [begin, end) to candidates, in order of ids.
void collect(const float* values, int64_t begin, int64_t end, float low, float high, std::vector<Cut>& candidates);

// Memory of one thread.
struct BestLogits {
  std::vector<Cut> candidates;
  std::vector<float> maxima;  // of blocks
  std::vector<float> order;   // of maxima

  // Makes the k best the first k candidates, the k-th at its place. REQUIRES: 1 <= k <= n, no NaN or +Inf.
  void select(const float* values,  // [n]
              int64_t n, int64_t k);
};

}  // namespace llmb::cpu
