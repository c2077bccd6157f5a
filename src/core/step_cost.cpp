#include "core/step_cost.h"

#include <algorithm>
#include <cmath>
#include <tuple>

namespace llmb {

namespace {

// Until there are two points: a step's cost grows as if four rows more were there.
double assumed_growth(double from_rows, double to_rows) { return (to_rows + 4) / (from_rows + 4); }

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
    bin.newest.fill(static_cast<float>(point.ms));
    bin.count = 2;
    bin.ms = bin.mean_ms = point.ms;
    bin.context = point.num_context_tokens;
  }
  context_deviations_ = 1;
  context_products_ = curve.ms_per_context_token;
  // As much as some hundred steps: a few new ones change little.
  for (const Point& point : curve.points) predicted_ms_ += std::max(0.0, 256 * point.ms / static_cast<double>(curve.points.size()));
  taken_ms_ = predicted_ms_ * curve.wall_share;
}

StepCost::Curve StepCost::curve() const {
  Curve curve;
  for (int32_t i = 0; i < kNumPoints; ++i)
    if (is_known(i)) curve.points.push_back({static_cast<int32_t>(std::lround(rows_of(i))), bins_[i].ms, bins_[i].context});
  curve.ms_per_context_token = ms_per_context_token();
  curve.wall_share = wall_share();
  return curve;
}

void StepCost::observe(int32_t num_rows, double num_context_tokens, double ms, double gap_ms) {
  if (!(ms > 0)) return;
  if (const double expected = this->ms(num_rows, num_context_tokens); expected > 0) {
    predicted_ms_ += expected;
    taken_ms_ += ms + gap_ms;
  }
  Bin& bin = bins_[bin_of(num_rows)];
  bin.newest[bin.count++ % bin.newest.size()] = static_cast<float>(ms);
  std::array<float, std::tuple_size_v<decltype(bin.newest)>> sorted = bin.newest;
  const auto end = sorted.begin() + std::min<int32_t>(bin.count, static_cast<int32_t>(sorted.size()));
  const auto quartile = sorted.begin() + (end - sorted.begin()) / 4;
  std::nth_element(sorted.begin(), quartile, end);
  bin.ms = *quartile;
  // Contexts grow slowly: a mean of all would lag behind the newest times.
  const double weight = std::max(1.0 / bin.count, 1.0 / static_cast<double>(bin.newest.size()));
  const double usual_ms = bin.count == 1 ? ms : std::min(ms, 2 * bin.ms);  // what else the machine does
  const double dx = num_context_tokens - bin.context, dy = usual_ms - bin.mean_ms;
  bin.context += weight * dx;
  bin.mean_ms += weight * dy;
  if (bin.count == 1) return;
  context_deviations_ += dx * (num_context_tokens - bin.context);
  context_products_ += dx * (usual_ms - bin.mean_ms);
}

double StepCost::ms_per_context_token() const {
  return context_deviations_ > 0 ? std::max(0.0, context_products_ / context_deviations_) : 0;
}

// In a line between the bins around it.
double StepCost::usual_context(int32_t num_rows) const {
  const int32_t at = bin_of(num_rows);
  int32_t below = at, above = at + 1;
  while (below >= 0 && !is_known(below)) --below;
  while (above < kNumPoints && !is_known(above)) ++above;
  if (below < 0 && above == kNumPoints) return 0;
  if (below < 0 || above == kNumPoints) {
    const int32_t nearest = below < 0 ? above : below;
    return bins_[nearest].context * num_rows / rows_of(nearest);
  }
  const double share = std::max(0.0, num_rows - rows_of(below)) / (rows_of(above) - rows_of(below));
  return bins_[below].context + share * (bins_[above].context - bins_[below].context);
}

double StepCost::ms(int32_t num_rows, double num_context_tokens) const {
  const double usual = ms(num_rows);
  return std::max(usual / 2, usual + ms_per_context_token() * (num_context_tokens - usual_context(num_rows)));
}

// More rows than were observed: in the line of the points below, or better. Where that is too good it is tried, once.
double StepCost::beyond(int32_t last, double last_ms, double rows) const {
  const double assumed = last_ms * assumed_growth(rows_of(last), rows);
  int32_t before = -1;
  for (int32_t i = last - 1; i >= 0 && (before < 0 || 2 * rows_of(i) >= rows_of(last)); --i)
    if (is_known(i)) before = i;
  if (before < 0) return assumed;
  const double slope = std::max(0.0, (last_ms - bins_[before].ms) / (rows_of(last) - rows_of(before)));
  return std::min(assumed, last_ms + slope * (rows - rows_of(last)));
}

double StepCost::ms(int32_t num_rows) const {
  const int32_t at = bin_of(num_rows);
  int32_t below = at, above = at + 1;
  while (below >= 0 && !is_known(below)) --below;
  while (above < kNumPoints && !is_known(above)) ++above;
  const double rows = num_rows;
  if (below < 0 && above == kNumPoints) return 0;
  if (below < 0) return bins_[above].ms / assumed_growth(rows, rows_of(above));
  double low = 0;
  for (int32_t i = 0; i <= below; ++i)
    if (is_known(i)) low = std::max(low, bins_[i].ms);
  if (rows <= rows_of(below)) return low;
  if (above == kNumPoints) return beyond(below, low, rows);
  const double high = std::max(low, bins_[above].ms);
  return low + (high - low) * (rows - rows_of(below)) / (rows_of(above) - rows_of(below));
}

}  // namespace llmb
