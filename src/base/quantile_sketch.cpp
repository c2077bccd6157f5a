#include "base/quantile_sketch.h"

#include <algorithm>
#include <cmath>

namespace llmb {

namespace {
constexpr double kRelativeError = 0.001;
constexpr double kSmallest = 1e-3;  // ms; anything below shares bucket 0
const double kLogGamma = std::log((1 + kRelativeError) / (1 - kRelativeError));
const size_t kNumBuckets = static_cast<size_t>(std::log(1e11 / kSmallest) / kLogGamma) + 2;

// Stands for all values in a bucket.
double middle_of(size_t bucket) {
  return bucket == 0 ? 0.0 : kSmallest * std::exp((static_cast<double>(bucket) - 0.5) * kLogGamma);
}
}  // namespace

void QuantileSketch::add(double value) {
  if (!(value >= 0)) value = 0;
  if (buckets_.empty()) buckets_.resize(kNumBuckets);
  size_t bucket = 0;
  if (value > kSmallest)
    bucket = std::min(kNumBuckets - 1, static_cast<size_t>(std::log(value / kSmallest) / kLogGamma) + 1);
  buckets_[bucket]++;
  min_ = count_ == 0 ? value : std::min(min_, value);
  max_ = std::max(max_, value);
  sum_ += value;
  count_++;
}

double QuantileSketch::quantile(double q) const {
  if (count_ == 0) return 0;
  const auto rank = static_cast<int64_t>(q * static_cast<double>(count_ - 1) + 0.5);
  int64_t seen = 0;
  for (size_t i = 0; i < buckets_.size(); ++i) {
    seen += buckets_[i];
    if (seen <= rank) continue;
    return std::clamp(middle_of(i), min_, max_);
  }
  return max_;
}

Histogram QuantileSketch::histogram(int num_bins, Spacing spacing) const {
  Histogram h;
  if (count_ == 0) return h;
  if (!(max_ > min_)) return {{min_, max_}, {count_}};
  const bool is_log = spacing == Spacing::kLogarithmic;
  const double low = is_log ? std::log(std::max(min_, kSmallest)) : min_;
  const double width = ((is_log ? std::log(std::max(max_, 2 * kSmallest)) : max_) - low) / num_bins;
  if (!(width > 0)) return {{min_, max_}, {count_}};
  for (int i = 0; i <= num_bins; ++i) h.edges.push_back(is_log ? std::exp(low + i * width) : low + i * width);
  h.counts.resize(num_bins);
  for (size_t i = 0; i < buckets_.size(); ++i) {
    if (buckets_[i] == 0) continue;
    const double value = std::clamp(middle_of(i), min_, max_);
    const double place = ((is_log ? std::log(std::max(value, kSmallest)) : value) - low) / width;
    h.counts[static_cast<size_t>(std::clamp(place, 0.0, num_bins - 1.0))] += buckets_[i];
  }
  return h;
}

double exact_quantile(std::vector<float>& values, double q) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const double rank = q * static_cast<double>(values.size() - 1);
  const auto low = static_cast<size_t>(rank);
  const size_t high = std::min(low + 1, values.size() - 1);
  return values[low] + (rank - static_cast<double>(low)) * (values[high] - values[low]);
}

}  // namespace llmb
