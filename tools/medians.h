// The median of repeated measurements, and how well they tell it.
#pragma once

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

namespace llmb {

inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return (values[(values.size() - 1) / 2] + values[values.size() / 2]) / 2;
}

// Between these the median of what six values or more are drawn from lies, with 95 %; by ranks, so of whatever distribution.
inline std::pair<double, double> interval_of_median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const auto count = static_cast<double>(values.size());
  const auto below = static_cast<size_t>(std::max(0.0, std::floor(count / 2 - 0.98 * std::sqrt(count))));
  return {values[below], values[values.size() - 1 - below]};
}

}  // namespace llmb
