// Orders of rows, against a trie that is built node by node.
#include "planner/row_order.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <vector>

#include "planner/row_queue.h"
#include "tests/support/test_rng.h"

namespace llmb::test {

namespace {

using Tokens = std::vector<TokenId>;

struct File {
  std::vector<Tokens> prompts;
  std::vector<PlannedRow> rows;
};

File random_file(uint64_t seed, int32_t count) {
  TestRng rng(seed);
  File file;
  PrefixIndex index(1 << 20);
  for (int32_t i = 0; i < count; ++i) {
    Tokens prompt;
    if (i > 0 && rng.chance(0.85)) {
      prompt = file.prompts[rng.between(0, i - 1)];
      if (rng.chance(0.8)) prompt.resize(rng.between(0, static_cast<int32_t>(prompt.size())));
    }
    for (int32_t more = rng.between(prompt.empty(), 12); more > 0; --more) prompt.push_back(rng.between(0, 2));
    file.rows.push_back({i, index.add(prompt), rng.log_between(1, 100)});
    file.prompts.push_back(prompt);
  }
  return file;
}

bool begins_with(const Tokens& tokens, const Tokens& beginning) {
  return tokens.size() >= beginning.size() && std::equal(beginning.begin(), beginning.end(), tokens.begin());
}

// How often rows with a prefix are interrupted by rows without it, over all prefixes.
int64_t num_interruptions(const File& file, const std::vector<int32_t>& order) {
  std::set<Tokens> prefixes;
  for (const Tokens& prompt : file.prompts)
    for (size_t n = 1; n <= prompt.size(); ++n) prefixes.emplace(prompt.begin(), prompt.begin() + n);
  int64_t count = 0;
  for (const Tokens& prefix : prefixes) {
    int64_t num_runs = 0;
    bool was_in = false;
    for (const int32_t row : order) {
      const bool is_in = begins_with(file.prompts[row], prefix);
      num_runs += is_in && !was_in;
      was_in = is_in;
    }
    count += num_runs - 1;
  }
  return count;
}

bool is_permutation_of_all(std::vector<int32_t> order, size_t count) {
  std::sort(order.begin(), order.end());
  std::vector<int32_t> all(count);
  std::iota(all.begin(), all.end(), 0);
  return order == all;
}

}  // namespace

TEST_CASE("rows that share any prefix follow each other, however many do") {
  int64_t num_in_file_order = 0;
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    CAPTURE(seed);
    const File file = random_file(seed, 40);
    const std::vector<int32_t> order = order_rows(Schedule::kPrefix, file.rows, 8);
    REQUIRE(is_permutation_of_all(order, file.rows.size()));
    REQUIRE(num_interruptions(file, order) == 0);
    num_in_file_order += num_interruptions(file, order_rows(Schedule::kFile, file.rows, 8));
  }
  CHECK(num_in_file_order > 10000);
}

TEST_CASE("auto keeps rows together but for long ones that would end last, and takes the longest of a branch first") {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    CAPTURE(seed);
    File file = random_file(seed, 40);
    REQUIRE(is_permutation_of_all(order_rows(Schedule::kAuto, file.rows, 8), file.rows.size()));
    // All of one length: nobody is long.
    for (PlannedRow& row : file.rows) row.num_output_tokens = 16;
    REQUIRE(order_rows(Schedule::kAuto, file.rows, 8) == order_rows(Schedule::kPrefix, file.rows, 8));
    // Nothing shared: longest first.
    for (PlannedRow& row : file.rows) row = {row.prompt, {}, 1 + row.prompt * 7919 % 50};
    const std::vector<int32_t> order = order_rows(Schedule::kAuto, file.rows, 8);
    REQUIRE(std::is_sorted(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      return file.rows[a].num_output_tokens > file.rows[b].num_output_tokens;
    }));
    REQUIRE(order == order_rows(Schedule::kLongestFirst, file.rows, 8));
  }
}

TEST_CASE("long rows behind a large group come before its short ones") {
  std::vector<PlannedRow> rows;
  for (int32_t i = 0; i < 400; ++i) rows.push_back({i, {i == 0 ? 0 : 50, i == 0 ? -1 : 0}, 10});
  for (int32_t i = 400; i < 420; ++i) rows.push_back({i, {}, 400});
  rows[0].num_output_tokens = 500;
  const std::vector<int32_t> order = order_rows(Schedule::kAuto, rows, 8);
  for (size_t i = 0; i <= 20; ++i) CHECK((order[i] == 0 || order[i] >= 400));
}

TEST_CASE("rows of a later plan, whose prompts share with those of earlier ones") {
  PrefixIndex index(1 << 20);
  index.add(Tokens{1, 2, 3, 4});
  index.add(Tokens{5, 6, 7});
  std::vector<PlannedRow> rows;
  for (const Tokens& prompt : {Tokens{1, 2, 9}, Tokens{5, 6, 1}, Tokens{1, 2, 8}, Tokens{5, 6, 2}, Tokens{1, 2, 9, 1}}) {
    const PrefixIndex::Shared shared = index.add(prompt);
    rows.push_back({index.num_prompts() - 1, shared, 1});
  }
  CHECK(order_rows(Schedule::kPrefix, rows, 1) == std::vector<int32_t>{0, 4, 2, 1, 3});
}

TEST_CASE("rows of an adapter follow each other where the index does not say so, and an adapter is done with before others") {
  std::vector<PlannedRow> rows;
  for (int32_t i = 0; i < 60; ++i) rows.push_back({i, {}, 10, i % 5 - 1});
  for (const Schedule schedule : {Schedule::kPrefix, Schedule::kAuto}) {
    CAPTURE(static_cast<int>(schedule));
    RowQueue queue(schedule, rows, 4);
    std::vector<int32_t> adapters;
    for (int i = 0; i < 60; ++i) {
      adapters.push_back(rows[queue.next().value()].adapter);
      // Others seem longer from now on.
      if (i == 30) queue.reorder([&](int32_t row) { return rows[row].adapter == adapters.back() ? 10 : 11; });
    }
    int num_changes = 0;
    for (size_t i = 1; i < adapters.size(); ++i)
      num_changes += adapters[i] != kNoAdapter && adapters[i] != adapters[i - 1];
    CHECK(num_changes <= 4);
    CHECK_FALSE(queue.next());
  }
}

TEST_CASE("no rows, and one") {
  CHECK(order_rows(Schedule::kAuto, {}, 1).empty());
  CHECK(order_rows(Schedule::kAuto, std::vector<PlannedRow>{{}}, 1) == std::vector<int32_t>{0});
}

TEST_CASE("a queue gives each row once, and those that are left follow what is learned") {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    CAPTURE(seed);
    TestRng rng(seed);
    const File file = random_file(seed, rng.between(0, 40));
    const Schedule schedule = rng.chance(0.5) ? Schedule::kAuto : Schedule::kLongestFirst;
    RowQueue queue(schedule, file.rows, 4);
    std::vector<int32_t> given;
    for (int32_t before = rng.between(0, 40); before > 0; --before)
      if (const auto row = queue.next()) given.push_back(*row);
    const std::vector<int32_t> planned = order_rows(schedule, file.rows, 4);
    CHECK(std::equal(given.begin(), given.end(), planned.begin()));
    queue.reorder([&](int32_t row) { return row + 1; });
    std::vector<int32_t> rest;
    while (const auto row = queue.next()) rest.push_back(*row);
    if (schedule == Schedule::kLongestFirst) CHECK(std::is_sorted(rest.rbegin(), rest.rend()));
    given.insert(given.end(), rest.begin(), rest.end());
    std::sort(given.begin(), given.end());
    std::vector<int32_t> all(file.rows.size());
    std::iota(all.begin(), all.end(), 0);
    CHECK(given == all);
  }
}

}  // namespace llmb::test
