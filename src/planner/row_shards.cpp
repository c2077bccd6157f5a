#include "planner/row_shards.h"

#include <algorithm>

namespace llmb {

namespace {

constexpr double kTolerance = 0.02;  // of a shard's part, at each end

struct Cuts {
  std::span<const PlannedRow> rows;
  const std::vector<int32_t>& order;
  const std::vector<double>& before;  // [rows + 1] costs in front of each place of the order

  // The place from `begin` on in front of which the cost is nearest to `target`.
  size_t nearest(size_t begin, double target) const {
    const auto at = std::lower_bound(before.begin() + static_cast<std::ptrdiff_t>(begin), before.end(), target);
    auto place = static_cast<size_t>(at - before.begin());
    if (place == before.size()) return place - 1;
    if (place > begin && target - before[place - 1] < before[place] - target) --place;
    return place;
  }

  // The first row of a shard that follows another: within the tolerance the one that shares least, of these the one
  // nearest to the target.
  size_t best(size_t begin, double target, double tolerance) const {
    size_t found = nearest(begin, target);
    const auto shared = [&](size_t place) { return place < order.size() ? rows[order[place]].shared.num_tokens : 0; };
    for (size_t place = nearest(begin, target - tolerance); place < before.size(); ++place) {
      if (before[place] > target + tolerance) break;
      if (before[place] < target - tolerance) continue;
      const auto distance = [&](size_t p) { return std::abs(before[p] - target); };
      const int32_t less = shared(found) - shared(place);
      if (less > 0 || (less == 0 && distance(place) < distance(found))) found = place;
    }
    return found;
  }
};

}  // namespace

int64_t tokens_to_compute(const PlannedRow& row, int64_t num_prompt_tokens) {
  return std::max<int64_t>(1, num_prompt_tokens - row.shared.num_tokens + row.num_output_tokens);
}

std::vector<int32_t> divide_rows(std::span<const PlannedRow> rows, std::span<const int64_t> costs, int32_t num_shards) {
  const std::vector<int32_t> order = order_rows(Schedule::kPrefix, rows, 1);
  std::vector<double> before(rows.size() + 1);
  for (size_t i = 0; i < order.size(); ++i) before[i + 1] = before[i] + static_cast<double>(costs[order[i]]);
  const Cuts cuts = {rows, order, before};
  const double part = before.back() / num_shards;
  std::vector<int32_t> shards(rows.size());
  size_t begin = 0;
  for (int32_t shard = 0; shard < num_shards; ++shard) {
    const bool is_last = shard + 1 == num_shards;
    const size_t end = is_last ? order.size() : cuts.best(begin, part * (shard + 1), kTolerance * part);
    for (size_t place = begin; place < end; ++place) shards[order[place]] = shard;
    begin = end;
  }
  return shards;
}

}  // namespace llmb
