#include "core/shared_prefixes.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "tests/support/test_rng.h"

namespace llmb {
namespace {

using test::TestRng;

using Table = std::vector<BlockId>;

// tables[e * num_layer_groups + g]
StepPlan plan_with(const std::vector<Table>& tables, int32_t num_layer_groups = 1) {
  StepPlan plan;
  plan.clear();
  plan.num_layer_groups = num_layer_groups;
  plan.entries.resize(tables.size() / static_cast<size_t>(num_layer_groups));
  for (const Table& table : tables) {
    plan.block_ids.insert(plan.block_ids.end(), table.begin(), table.end());
    plan.block_start.push_back(static_cast<int32_t>(plan.block_ids.size()));
  }
  find_shared_prefixes(&plan);
  return plan;
}

int32_t num_common(const Table& a, const Table& b) {
  return static_cast<int32_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
}

// The most blocks of a prefix that names both.
int32_t num_named(const StepPlan& plan, int32_t layer_group, int32_t a, int32_t b) {
  int32_t most = 0;
  for (const SharedPrefix& prefix : plan.shared_prefixes) {
    const auto begin = plan.shared_entries.begin() + prefix.entry_begin,
               end = plan.shared_entries.begin() + prefix.entry_end;
    if (prefix.layer_group == layer_group && std::count(begin, end, a) == 1 && std::count(begin, end, b) == 1)
      most = std::max(most, prefix.num_blocks);
  }
  return most;
}

}  // namespace

TEST_CASE("nothing is named where nothing is shared") {
  CHECK(plan_with({}).shared_prefixes.empty());
  CHECK(plan_with({{1, 2}}).shared_prefixes.empty());
  const StepPlan plan = plan_with({{1, 2}, {3, 2}, {}, {4}});
  CHECK(plan.shared_prefixes.empty());
  CHECK(plan.shared_entries.empty());
}

TEST_CASE("questions about documents under one system prompt share at two levels, the outer one first") {
  const StepPlan plan = plan_with({{0, 1, 5, 6, 20}, {0, 1, 7, 21}, {0, 1, 5, 6, 22}, {9}, {0, 1, 7, 23}});
  REQUIRE(plan.shared_prefixes.size() == 3);
  CHECK(plan.shared_entries == std::vector<int32_t>{0, 2, 1, 4});
  const auto is = [&](size_t i, int32_t num_blocks, int32_t begin, int32_t end) {
    const SharedPrefix& p = plan.shared_prefixes[i];
    return p.num_blocks == num_blocks && p.entry_begin == begin && p.entry_end == end;
  };
  CHECK(is(0, 2, 0, 4));
  CHECK(is(1, 4, 0, 2));
  CHECK(is(2, 3, 2, 4));
}

TEST_CASE("every two entries share the longest prefix that names them, in each layer group: random tables") {
  for (uint64_t seed = 1; seed <= 500; ++seed) {
    CAPTURE(seed);
    TestRng rng(seed);
    const int32_t num_layer_groups = rng.between(1, 2), num_entries = rng.between(1, 12);
    std::vector<Table> tables;
    for (int32_t i = 0; i < num_entries * num_layer_groups; ++i) {
      Table table;
      // A block id says what is before it, so that equal ids mean equal prefixes.
      for (int32_t b = 0, at = 0, length = rng.between(0, 6); b < length; ++b)
        table.push_back(at = at * 3 + rng.between(1, seed % 2 == 0 ? 2 : 3));
      tables.push_back(table);
    }
    const StepPlan plan = plan_with(tables, num_layer_groups);
    for (int32_t g = 0; g < num_layer_groups; ++g)
      for (int32_t a = 0; a < num_entries; ++a)
        for (int32_t b = 0; b < a; ++b)
          CHECK(num_named(plan, g, a, b) ==
                num_common(tables[a * num_layer_groups + g], tables[b * num_layer_groups + g]));
    for (size_t i = 1; i < plan.shared_prefixes.size(); ++i) {  // each once
      const SharedPrefix &p = plan.shared_prefixes[i - 1], &q = plan.shared_prefixes[i];
      CHECK((p.entry_begin != q.entry_begin || p.num_blocks < q.num_blocks));
    }
  }
}

}  // namespace llmb
