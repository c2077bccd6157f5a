// Quantiles of a stream in constant memory: logarithmic buckets, as in DDSketch (Masson, Rim, Lee, VLDB 2019).
#pragma once

#include <cstdint>
#include <vector>

namespace llmb {

// Counts of values in bins that lie side by side.
struct Histogram {
  std::vector<double> edges;    // [num_bins + 1], ascending; empty: no values
  std::vector<int64_t> counts;  // [num_bins]
};

enum class Spacing { kLinear, kLogarithmic };

// Values in milliseconds or other units, >= 0. Quantiles are within 0.1 % of a value that holds the rank, for values in
// [1 microsecond, 10^8 seconds], that is [10^-3, 10^11]; mean, min and max are exact. About 150 KB each once used. Not thread-safe.
class QuantileSketch {
 public:
  void add(double value);
  int64_t count() const { return count_; }
  double mean() const { return count_ > 0 ? sum_ / static_cast<double>(count_) : 0.0; }
  double max() const { return max_; }
  // q in [0, 1]; 0 where nothing was added.
  double quantile(double q) const;
  // Counts all values in bins from the smallest value to the largest. One bin where all are equal.
  Histogram histogram(int num_bins, Spacing spacing) const;

 private:
  std::vector<int64_t> buckets_;
  int64_t count_ = 0;
  double sum_ = 0, min_ = 0, max_ = 0;
};

// Exact quantile by linear interpolation between closest ranks (numpy's default). Sorts `values`.
double exact_quantile(std::vector<float>& values, double q);

}  // namespace llmb
