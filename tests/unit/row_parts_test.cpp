// divide_rows: parts that follow each other, none empty, each about as costly as the others.
#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "core/row_parts.h"
#include "tests/support/test_rng.h"

namespace llmb::test {

TEST_CASE("random rows: all of them, in order, no part empty, and none costs much more than its share") {
  TestRng rng(1);
  for (int run = 0; run < 2000; ++run) {
    const int32_t size = rng.between(1, 8);
    std::vector<int32_t> positions;
    const int32_t num_rows = size + rng.log_between(1, 500) - 1;
    while (static_cast<int32_t>(positions.size()) < num_rows) {
      const int32_t first = rng.between(0, 3000);
      for (int32_t i = rng.log_between(1, 100); i > 0 && static_cast<int32_t>(positions.size()) < num_rows; --i)
        positions.push_back(first + i);
    }
    const RowCost cost = {rng.log_between(1, 100000), rng.between(0, 50)};
    const std::vector<int64_t> bounds = divide_rows(positions, cost, size);
    REQUIRE(bounds.size() == static_cast<size_t>(size) + 1);
    CHECK(bounds.front() == 0);
    CHECK(bounds.back() == num_rows);
    const auto cost_of = [&](int64_t begin, int64_t end) {
      int64_t sum = 0;
      for (int64_t row = begin; row < end; ++row) sum += cost.of_row + cost.of_position * (positions[row] + 1);
      return sum;
    };
    int64_t dearest = 0;
    for (int64_t row = 0; row < num_rows; ++row) dearest = std::max(dearest, cost_of(row, row + 1));
    for (int32_t part = 0; part < size; ++part) {
      CHECK(bounds[part] < bounds[part + 1]);
      const bool is_one_row = bounds[part + 1] - bounds[part] == 1;
      CHECK((is_one_row || cost_of(bounds[part], bounds[part + 1]) <= cost_of(0, num_rows) / size + 2 * dearest));
    }
  }
}

TEST_CASE("of a long prompt the rows behind see more: they are fewer") {
  std::vector<int32_t> positions(1000);
  std::iota(positions.begin(), positions.end(), 0);
  CHECK(divide_rows(positions, {1, 0}, 2) == std::vector<int64_t>{0, 500, 1000});
  const int64_t bound = divide_rows(positions, {1, 1}, 2)[1];
  CHECK(bound > 690);
  CHECK(bound < 720);
}

TEST_CASE("random sample rows: each is in the part that has its row, in the order of the plan, and is found there") {
  TestRng rng(2);
  for (int run = 0; run < 500; ++run) {
    std::vector<int64_t> bounds = {0};
    for (int32_t part = rng.between(1, 5); part > 0; --part) bounds.push_back(bounds.back() + rng.between(1, 9));
    std::vector<SampleRow> samples(static_cast<size_t>(rng.between(0, 12)));
    for (SampleRow& sample : samples) sample.token_row = rng.between(0, static_cast<int>(bounds.back()) - 1);
    const SampledParts parts = part_samples(samples, bounds);
    REQUIRE(parts.bounds.size() == bounds.size());
    CHECK(parts.bounds.front() == 0);
    CHECK(parts.bounds.back() == static_cast<int64_t>(samples.size()));
    std::vector<int32_t> sorted = parts.places;
    std::sort(sorted.begin(), sorted.end());
    for (size_t i = 0; i < samples.size(); ++i) {
      CHECK(sorted[i] == static_cast<int32_t>(i));
      const int32_t place = parts.places[i];
      const auto after = std::upper_bound(parts.bounds.begin(), parts.bounds.end(), place);
      const auto part = static_cast<size_t>(after - parts.bounds.begin()) - 1;
      CHECK(bounds[part] + parts.rows[static_cast<size_t>(place)] == samples[i].token_row);
      CHECK(samples[i].token_row < bounds[part + 1]);
    }
  }
}

TEST_CASE("trees, adapters, and heads and layers that draft look at all rows") {
  StepPlan plan;
  plan.tokens = {1, 2};
  plan.entries.resize(1);
  CHECK(can_share_rows(plan));
  for (const auto change : {+[](StepPlan& p) { p.parent_rows = {-1, 0}; }, +[](StepPlan& p) { p.hidden_rows = {0, 1}; },
                            +[](StepPlan& p) { p.is_mtp = true; }, +[](StepPlan& p) { p.entries[0].adapter = 0; },
                            +[](StepPlan& p) { p.entries[0].is_indivisible = true; }}) {
    StepPlan changed = plan;
    change(changed);
    CHECK_FALSE(can_share_rows(changed));
  }
}

}  // namespace llmb::test
