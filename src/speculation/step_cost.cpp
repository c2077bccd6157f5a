#include "speculation/step_cost.h"

#include <algorithm>
#include <cmath>
#include <tuple>

namespace llmb {

namespace {

// Until there are two points: a step's cost grows as if four rows more were there.
double assumed_growth(double from_rows, double to_rows) { return (to_rows + 4) / (from_rows + 4); }

}  // namespace

int32_t StepCost::point_of(int32_t num_rows) {
  if (num_rows <= 8) return num_rows - 1;
  const auto point = static_cast<int32_t>(std::lround(7 + 4 * std::log2(num_rows / 8.0)));
  return std::min(point, kNumPoints - 1);
}

double StepCost::rows_of(int32_t point) { return point < 8 ? point + 1 : 8 * std::exp2((point - 7) / 4.0); }

void StepCost::observe(int32_t num_rows, double ms) {
  if (!(ms > 0)) return;
  Point& point = points_[point_of(num_rows)];
  point.newest[point.count++ % point.newest.size()] = static_cast<float>(ms);
  std::array<float, std::tuple_size_v<decltype(point.newest)>> sorted = point.newest;
  const auto end = sorted.begin() + std::min<int32_t>(point.count, static_cast<int32_t>(sorted.size()));
  const auto quartile = sorted.begin() + (end - sorted.begin()) / 4;
  std::nth_element(sorted.begin(), quartile, end);
  point.ms = *quartile;
}

// More rows than were observed: in the line of the points below, or better. Where that is too good it is tried, once.
double StepCost::beyond(int32_t last, double last_ms, double rows) const {
  const double assumed = last_ms * assumed_growth(rows_of(last), rows);
  int32_t before = -1;
  for (int32_t i = last - 1; i >= 0 && (before < 0 || 2 * rows_of(i) >= rows_of(last)); --i)
    if (is_known(i)) before = i;
  if (before < 0) return assumed;
  const double slope = std::max(0.0, (last_ms - points_[before].ms) / (rows_of(last) - rows_of(before)));
  return std::min(assumed, last_ms + slope * (rows - rows_of(last)));
}

double StepCost::ms(int32_t num_rows) const {
  const int32_t at = point_of(num_rows);
  int32_t below = at, above = at + 1;
  while (below >= 0 && !is_known(below)) --below;
  while (above < kNumPoints && !is_known(above)) ++above;
  const double rows = num_rows;
  if (below < 0 && above == kNumPoints) return 0;
  if (below < 0) return points_[above].ms / assumed_growth(rows, rows_of(above));
  double low = 0;
  for (int32_t i = 0; i <= below; ++i)
    if (is_known(i)) low = std::max(low, points_[i].ms);
  if (rows <= rows_of(below)) return low;
  if (above == kNumPoints) return beyond(below, low, rows);
  const double high = std::max(low, points_[above].ms);
  return low + (high - low) * (rows - rows_of(below)) / (rows_of(above) - rows_of(below));
}

}  // namespace llmb
