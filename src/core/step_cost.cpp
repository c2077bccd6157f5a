#include "core/step_cost.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

namespace llmb {

namespace {

// Until there are two points: a step's cost grows as if four rows more were there.
double assumed_growth(double from_rows, double to_rows) { return (to_rows + 4) / (from_rows + 4); }

// A slope counts that is larger than so many of its standard errors.
constexpr double kCertain = 3;
// Steps of earlier runs weigh as much as so many new ones at most.
constexpr double kMostKept = 4096;
// Steps after which slopes are found anew for the next predictions, as that takes some microseconds.
constexpr int64_t kFitEvery = 32;

}  // namespace

int32_t StepCost::bin_of(int32_t num_rows) {
  if (num_rows <= 8) return num_rows - 1;
  const auto bin = static_cast<int32_t>(std::lround(7 + 4 * std::log2(num_rows / 8.0)));
  return std::min(bin, kNumPoints - 1);
}

double StepCost::rows_of(int32_t bin) { return bin < 8 ? bin + 1 : 8 * std::exp2((bin - 7) / 4.0); }

StepCost::StepCost(const Curve& curve) {
  for (const Point& point : curve.points) {
    if (point.num_rows < 1 || !(point.ms > 0)) continue;
    Bin& bin = bins_[bin_of(point.num_rows)];
    bin.newest.fill({static_cast<float>(point.ms), static_cast<float>(point.num_rows),
                     static_cast<float>(point.num_context_tokens), static_cast<float>(point.num_pairs)});
    bin.count = 2;
    bin.ms = bin.mean_ms = point.ms;
    bin.context = point.num_context_tokens;
    bin.rows = point.num_rows;
    bin.pairs = point.num_pairs;
  }
  if (curve.deviations.size() == kNumSums) {
    const double* sum = curve.deviations.data();
    num_deviations_ = std::min(kMostKept, sum[13]);
    const double share = sum[13] > 0 ? num_deviations_ / sum[13] : 0;
    for (auto& row : products_)
      for (double& product : row) product = share * *sum++;
    for (double& product : with_times_) product = share * *sum++;
    times_ = share * *sum;
  }
  // As much as some hundred steps: a few new ones change little.
  for (const Point& point : curve.points)
    predicted_ms_ += std::max(0.0, 256 * point.ms / static_cast<double>(curve.points.size()));
  taken_ms_ = predicted_ms_ * curve.wall_share;
  fit();
  find_usual();
}

StepCost::Curve StepCost::curve() const {
  fit();
  Curve curve;
  for (int32_t i = 0; i < kNumPoints; ++i) {
    if (!is_known(i)) continue;
    const Bin& bin = bins_[i];
    // The contexts for which the lower quartile is right.
    Point point = {static_cast<int32_t>(std::lround(rows_of(i))), bin.ms, bin.context, bin.pairs};
    const double rest = bin.ms - bare_[i] - fitted_.context * bin.context - fitted_.pairs * bin.pairs;
    if (fitted_.context > 0) point.num_context_tokens += rest / fitted_.context;
    else if (fitted_.pairs > 0) point.num_pairs += rest / fitted_.pairs;
    curve.points.push_back(point);
  }
  for (const auto& row : products_) curve.deviations.insert(curve.deviations.end(), row.begin(), row.end());
  curve.deviations.insert(curve.deviations.end(), with_times_.begin(), with_times_.end());
  curve.deviations.insert(curve.deviations.end(), {times_, num_deviations_});
  curve.wall_share = wall_share();
  return curve;
}

void StepCost::observe(int32_t num_rows, double num_context_tokens, double ms, double gap_ms, double num_pairs) {
  if (!(ms > 0)) return;
  Bin& bin = bins_[bin_of(num_rows)];
  const Step step = {static_cast<float>(ms), static_cast<float>(num_rows), static_cast<float>(num_context_tokens),
                     static_cast<float>(num_pairs)};
  // Many old ones may have been delayed: in the place of most of them a faster one is the lower quartile at once, while
  // a slower one leaves that to an old one.
  constexpr int kMost = 10;
  if (bin.count > 0 && is_old(bin)) std::fill_n(bin.newest.begin(), kMost, step);
  bin.last = ++num_observed_;
  // A bin that knows nothing yet tells little about the pauses.
  if (is_known(bin_of(num_rows))) {
    if (static_cast<int64_t>(num_deviations_) % kFitEvery == 0) fit();
    predicted_ms_ += fitted_ms(num_rows, num_context_tokens, num_pairs);
    taken_ms_ += ms + gap_ms;
  }
  is_fitted_ = false;
  bin.newest[bin.count++ % bin.newest.size()] = step;
  bin.ms = lower_quartile(bin, {}, 0);
  find_usual();
  // Contexts grow slowly: a mean of all would lag behind the newest times.
  const double weight = std::max(1.0 / bin.count, 1.0 / static_cast<double>(bin.newest.size()));
  const double usual_ms = bin.count == 1 ? ms : std::min(ms, 2 * bin.ms);  // what else the machine does
  const std::array<double, kNumFactors> before = {num_rows - bin.rows, num_context_tokens - bin.context,
                                                  num_pairs - bin.pairs};
  const double dt = usual_ms - bin.mean_ms;
  bin.rows += weight * before[0];
  bin.context += weight * before[1];
  bin.pairs += weight * before[2];
  bin.mean_ms += weight * dt;
  if (bin.count == 1) return;
  const double rest = 1 - weight;  // of the deviations from the new means
  for (int i = 0; i < kNumFactors; ++i) {
    for (int j = 0; j < kNumFactors; ++j) products_[i][j] += rest * before[i] * before[j];
    with_times_[i] += rest * before[i] * dt;
  }
  times_ += rest * dt * dt;
  ++num_deviations_;
  if (bin.count == 2) fit();  // it is known from now on
}

// The plane through the deviations that fits best. A factor whose share may as well be chance, or negative, is left out.
StepCost::Slopes StepCost::slopes() const {
  std::array<bool, kNumFactors> is_used;
  for (int i = 0; i < kNumFactors; ++i) is_used[i] = products_[i][i] > 0;
  while (true) {
    const auto [values, errors] = fit_plane(is_used);
    int worst = -1;
    double least = kCertain;  // standard errors
    for (int i = 0; i < kNumFactors; ++i) {
      if (!is_used[i]) continue;
      const double certainty = values[i] <= 0 ? values[i] : values[i] / std::max(errors[i], 1e-12 * values[i]);
      if (certainty < least) worst = i, least = certainty;
    }
    if (worst < 0) return {values[0], values[1], values[2]};
    is_used[worst] = false;
  }
}

// Gauss-Jordan over the factors that are used, [products | with_times, identity].
StepCost::Plane StepCost::fit_plane(const std::array<bool, kNumFactors>& is_used) const {
  std::array<std::array<double, 2 * kNumFactors + 1>, kNumFactors> m = {};
  for (int i = 0; i < kNumFactors; ++i) {
    for (int j = 0; j < kNumFactors; ++j) m[i][j] = is_used[i] && is_used[j] ? products_[i][j] : i == j;
    m[i][kNumFactors] = is_used[i] ? with_times_[i] : 0;
    m[i][kNumFactors + 1 + i] = 1;
    if (is_used[i]) m[i][i] *= 1 + 1e-9;  // where factors go together
  }
  for (int i = 0; i < kNumFactors; ++i) {
    const double pivot = m[i][i];
    for (double& value : m[i]) value /= pivot;
    for (int j = 0; j < kNumFactors; ++j) {
      if (j == i) continue;
      const double factor = m[j][i];
      for (size_t k = 0; k < m[j].size(); ++k) m[j][k] -= factor * m[i][k];
    }
  }
  Plane plane;
  double left = times_;
  for (int i = 0; i < kNumFactors; ++i) {
    plane.values[i] = m[i][kNumFactors];
    left -= plane.values[i] * with_times_[i];
  }
  const double variance = num_deviations_ > kNumFactors ? std::max(0.0, left) / (num_deviations_ - kNumFactors) : 0;
  for (int i = 0; i < kNumFactors; ++i) plane.errors[i] = std::sqrt(variance * std::max(0.0, m[i][kNumFactors + 1 + i]));
  return plane;
}

// Taken over the newest steps, without what contexts and pairs took by these slopes.
double StepCost::lower_quartile(const Bin& bin, const Slopes& slopes, double middle) const {
  std::array<double, std::tuple_size_v<decltype(bin.newest)>> sorted;
  const auto count = std::min<size_t>(static_cast<size_t>(bin.count), sorted.size());
  for (size_t i = 0; i < count; ++i) {
    const Step& step = bin.newest[i];
    sorted[i] = double{step.ms} - slopes.rows * (step.rows - middle) - slopes.context * step.context - slopes.pairs * step.pairs;
  }
  const auto quartile = sorted.begin() + static_cast<std::ptrdiff_t>(count / 4);
  std::nth_element(sorted.begin(), quartile, sorted.begin() + static_cast<std::ptrdiff_t>(count));
  return *quartile;
}

// Steps of more rows take no less. Where they took less than half, those of fewer rows were delayed by something else if
// they are few: else what was an accident would be believed of all numbers of rows above, and these not be tried again.
void StepCost::make_rising(Values* values) const {
  double least = std::numeric_limits<double>::infinity();
  for (int32_t i = kNumPoints - 1; i >= 0; --i) {
    if (!is_known(i)) continue;
    double& value = (*values)[i];
    if (!is_sure(i) && value > 2 * least) value = least;
    least = std::min(least, value);
  }
  double most = 0;
  for (int32_t i = 0; i < kNumPoints; ++i)
    if (is_known(i)) most = (*values)[i] = std::max(most, (*values)[i]);
}

void StepCost::find_usual() {
  for (int32_t i = 0; i < kNumPoints; ++i) usual_[i] = bins_[i].ms;
  make_rising(&usual_);
  find_hopeful();
}

void StepCost::find_hopeful() {
  hopeful_ = usual_;
  double ms_per_row = std::numeric_limits<double>::infinity(), most = 0;
  for (int32_t i = 0; i < kNumPoints; ++i) {
    if (!is_known(i)) continue;
    double& value = hopeful_[i];
    if (is_sure(i)) ms_per_row = std::min(ms_per_row, value / rows_of(i));
    else if (value > 2 * ms_per_row * rows_of(i)) value = ms_per_row * rows_of(i);
    most = value = std::max(most, value);
  }
}

void StepCost::fit() const {
  if (is_fitted_) return;
  fitted_ = slopes();
  for (int32_t i = 0; i < kNumPoints; ++i) {
    if (!is_known(i)) continue;
    bare_[i] = rising_[i] = lower_quartile(bins_[i], fitted_, rows_of(i));
  }
  make_rising(&rising_);
  is_fitted_ = true;
}

double StepCost::ms(int32_t num_rows) const { return interpolate(num_rows, usual_); }

double StepCost::ms(int32_t num_rows, double num_context_tokens, double num_pairs) const {
  fit();
  return fitted_ms(num_rows, num_context_tokens, num_pairs);
}

double StepCost::fitted_ms(int32_t num_rows, double num_context_tokens, double num_pairs) const {
  const double bare = interpolate(num_rows, rising_);
  return std::max(0.25 * interpolate(num_rows, usual_),
                  bare + fitted_.context * num_context_tokens + fitted_.pairs * num_pairs);
}

// More rows than were observed: in the line of the points below, or better. Where that is too good it is tried, once.
double StepCost::beyond(int32_t last, double last_ms, double rows, const Values& values) const {
  const double assumed = last_ms * assumed_growth(rows_of(last), rows);
  int32_t before = -1;
  for (int32_t i = last - 1; i >= 0 && (before < 0 || 2 * rows_of(i) >= rows_of(last)); --i)
    if (is_known(i)) before = i;
  if (before < 0) return assumed;
  const double slope = std::max(0.0, (last_ms - values[before]) / (rows_of(last) - rows_of(before)));
  return std::min(assumed, last_ms + slope * (rows - rows_of(last)));
}

// Fewer rows than were observed: in the line of the points above, or less.
double StepCost::before(int32_t first, double rows, const Values& values) const {
  const double assumed = values[first] / assumed_growth(rows, rows_of(first));
  int32_t after = -1;
  for (int32_t i = first + 1; i < kNumPoints && (after < 0 || rows_of(i) <= 2 * rows_of(first)); ++i)
    if (is_known(i)) after = i;
  if (after < 0) return assumed;
  const double slope = std::max(0.0, (values[after] - values[first]) / (rows_of(after) - rows_of(first)));
  return std::clamp(values[first] - slope * (rows_of(first) - rows), std::min(assumed, values[first]), values[first]);
}

double StepCost::interpolate(int32_t num_rows, const Values& values) const {
  const int32_t at = bin_of(num_rows);
  int32_t below = at, above = at + 1;
  while (below >= 0 && !is_known(below)) --below;
  while (above < kNumPoints && !is_known(above)) ++above;
  const double rows = num_rows;
  if (below < 0 && above == kNumPoints) return 0;
  if (below < 0) return before(above, rows, values);
  const double low = values[below];
  if (rows <= rows_of(below)) return low;
  if (above == kNumPoints) return beyond(below, low, rows, values);
  return low + (values[above] - low) * (rows - rows_of(below)) / (rows_of(above) - rows_of(below));
}

}  // namespace llmb
