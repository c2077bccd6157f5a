#include "kernels/cpu/best_logits.h"

#include <algorithm>
#include <functional>
#include <limits>

#include "core/types.h"

namespace llmb::cpu {

namespace {
constexpr float kInfinity = std::numeric_limits<float>::infinity();
}  // namespace

void collect(const float* values, int64_t begin, int64_t end, float low, float high, std::vector<Cut>& candidates) {
  for (int64_t i = begin; (i = find_in_range(values, i, end, low, high)) < end; ++i)
    candidates.push_back({values[i], static_cast<int32_t>(i)});
}

void BestLogits::select(const float* values, int64_t n, int64_t k) {
  maxima.resize(static_cast<size_t>(ceil_div(n, kMaxBlock)));
  block_maxima(values, n, maxima.data());
  float threshold = -kInfinity;
  if (k <= static_cast<int64_t>(maxima.size())) {  // the k best blocks each hold a value >= the k-th best maximum
    order = maxima;
    std::nth_element(order.begin(), order.begin() + (k - 1), order.end(), std::greater<>());
    threshold = order[static_cast<size_t>(k - 1)];
  }
  candidates.clear();
  for (int64_t b = 0; b < ceil_div(n, kMaxBlock); ++b)
    if (maxima[static_cast<size_t>(b)] >= threshold)
      collect(values, b * kMaxBlock, std::min(n, (b + 1) * kMaxBlock), threshold, kInfinity, candidates);
  std::nth_element(candidates.begin(), candidates.begin() + (k - 1), candidates.end(), goes_before);
}

}  // namespace llmb::cpu
