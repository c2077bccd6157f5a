// split_step: where a step's rows part.
#include <doctest/doctest.h>

#include <algorithm>
#include <optional>
#include <set>
#include <vector>

#include "core/shared_prefixes.h"
#include "core/step_split.h"
#include "tests/support/random_plan.h"
#include "tests/support/test_rng.h"

namespace llmb::test {
namespace {

constexpr int32_t kBlockSize = 16;

// Entries one behind the other, each with blocks of its own and its last rows sampled.
struct Plan {
  StepPlan plan;

  Plan() {
    plan.clear();
    plan.block_size = kBlockSize;
  }
  // blocks: that its table begins with, others' or not
  Plan& add(int32_t base, int32_t num_rows, int32_t num_sampled = 1, std::vector<BlockId> blocks = {}) {
    const int32_t entry = plan.num_entries();
    plan.entries.emplace_back().base = base;
    for (int32_t i = 0; i < num_rows; ++i) plan.tokens.push_back(1);
    plan.query_start.push_back(plan.num_tokens());
    for (auto i = static_cast<int64_t>(blocks.size()); i < ceil_div(base + num_rows, kBlockSize); ++i)
      blocks.push_back(next_block++);
    plan.block_ids.insert(plan.block_ids.end(), blocks.begin(), blocks.end());
    plan.block_start.push_back(static_cast<int32_t>(plan.block_ids.size()));
    if (num_sampled == 0) return *this;
    const int32_t begin = plan.num_samples();
    plan.groups.push_back({0, entry, begin, begin + num_sampled,
                           num_sampled > 1 ? SampleMode::kVerify : SampleMode::kSample});
    for (int32_t i = 0; i < num_sampled; ++i) {
      SampleRow& row = plan.sample_rows.emplace_back();
      row.group = plan.num_groups() - 1;
      row.token_row = plan.num_tokens() - num_sampled + i;
    }
    return *this;
  }
  BlockId next_block = 1000;
};

std::optional<StepSplit> split(const Plan& plan, const RowCost& cost = {100, 1}, const SplitLimits& limits = {}) {
  REQUIRE(validate_step_plan(plan.plan, 100'000).ok());
  return split_step(plan.plan, cost, limits);
}

TEST_CASE("no rows, one row and one short prompt stay in one part") {
  CHECK(split(Plan()) == std::nullopt);
  CHECK(split(Plan().add(7, 1)) == std::nullopt);
  CHECK(split(Plan().add(0, 64)) == std::nullopt);
}

TEST_CASE("two rows part between them, and equal rows in the middle") {
  CHECK(split(Plan().add(7, 1).add(3, 1)) == StepSplit{1, 1});
  for (const int32_t count : {3, 4, 8, 63, 64}) {
    Plan plan;
    for (int32_t i = 0; i < count; ++i) plan.add(20, 1);
    const StepSplit second = split(plan).value();
    CHECK(second.row == second.entry);
    CHECK(std::abs(count - 2 * second.row) <= 1);
  }
}

TEST_CASE("one long context is balanced by many short ones") {
  Plan plan;
  plan.add(100'000, 1);
  for (int32_t i = 0; i < 15; ++i) plan.add(10, 1);
  CHECK(split(plan, {1, 1}).value() == StepSplit{1, 1});
  // Attention that costs next to nothing: products alone decide.
  CHECK(split(plan, {1'000'000, 0}).value() == StepSplit{8, 8});
}

TEST_CASE("rows that verify drafts stay together") {
  Plan plan;
  plan.add(40, 9, 9).add(40, 3, 3).add(40, 9, 9);
  const StepSplit second = split(plan).value();
  CHECK((second == StepSplit{9, 1} || second == StepSplit{12, 2}));
  CHECK(split(Plan().add(40, 100, 100)) == std::nullopt);
  CHECK(split(Plan().add(40, 1).add(40, 100, 100)).value() == StepSplit{1, 1});
}

TEST_CASE("a prompt parts at a multiple of 64 of its rows, where none of them is sampled and no state is carried on") {
  Plan lone;
  lone.add(0, 512);
  CHECK(split(lone, {100, 0}).value() == StepSplit{256, 0});
  CHECK(split(lone, {100, 0}, {.cuts_prompts = false}) == std::nullopt);
  CHECK(split(Plan().add(0, 65), {100, 0}).value() == StepSplit{64, 0});
  CHECK(split(Plan().add(0, 128, 64), {100, 0}).value() == StepSplit{64, 0});
  CHECK(split(Plan().add(0, 128, 65), {100, 0}) == std::nullopt);
  Plan indivisible;
  indivisible.add(0, 512);
  indivisible.plan.entries[0].is_indivisible = true;
  CHECK(split(indivisible) == std::nullopt);
  Plan beside;
  beside.add(30, 1).add(0, 500).add(30, 1);
  const StepSplit second = split(beside, {100, 0}).value();
  CHECK(second == StepSplit{1 + 256, 1});
}

TEST_CASE("a wanted row is taken or there is none") {
  Plan plan;
  plan.add(30, 1).add(30, 3, 3).add(30, 2, 2);
  CHECK(split(plan, {100, 1}, {.only_row = 4}).value() == StepSplit{4, 2});
  CHECK(split(plan, {100, 1}, {.only_row = 1}).value() == StepSplit{1, 1});
  CHECK(split(plan, {100, 1}, {.only_row = 3}) == std::nullopt);
  CHECK(split(plan, {100, 1}, {.only_row = 6}) == std::nullopt);
}

TEST_CASE("rows that share a prefix stay together where parts are as even otherwise") {
  Plan plan;
  // Two prompts of 64 blocks: three rows of the first, five of the second.
  for (int32_t i = 0; i < 8; ++i) {
    std::vector<BlockId> blocks;
    for (BlockId b = 0; b < 64; ++b) blocks.push_back(b + (i < 3 ? 0 : 100));
    plan.add(64 * kBlockSize + 5, 1, 1, blocks);
  }
  CHECK(split(plan, {10, 1}).value() == StepSplit{4, 4});
  find_shared_prefixes(&plan.plan);
  CHECK(split(plan, {10, 1}).value() == StepSplit{3, 3});
}

TEST_CASE("no row of the first part reads what the second writes") {
  // Entry 1 begins with a block that entry 2 computes in this step, and entry 3 with one of entry 0's.
  Plan plan;
  plan.add(0, 20);
  const BlockId first_of_0 = plan.plan.block_ids[0];
  plan.next_block = 2000;
  plan.add(16, 3, 1, {2500});
  plan.next_block = 2500;
  plan.add(0, 17);
  plan.add(16, 3, 1, {first_of_0});
  std::set<int32_t> borders;
  for (int32_t row = 1; row < plan.plan.num_tokens(); ++row)
    if (split(plan, {100, 1}, {.only_row = row})) borders.insert(row);
  CHECK(borders == std::set<int32_t>{20, 40});  // not 23, between the two
}

// Whether the invariants hold.
bool is_sound(const StepPlan& plan, const StepSplit& second) {
  const int32_t begin = plan.query_start[second.entry];
  if (second.row <= 0 || second.row >= plan.num_tokens() || second.row < begin) return false;
  if (second.row >= plan.query_start[second.entry + 1]) return false;
  if (second.row > begin)
    for (const SampleGroup& group : plan.groups)
      if (group.entry == second.entry && plan.sample_rows[group.row_begin].token_row < second.row) return false;
  return true;
}

TEST_CASE("random plans: every border is sound") {
  TestRng rng(3);
  int num_split = 0, num_cut = 0;
  for (int run = 0; run < 3000; ++run) {
    const StepPlan before = random_plan(rng, nullptr);
    const StepPlan plan = random_plan(rng, &before);
    const RowCost cost = {rng.log_between(1, 1000), rng.between(0, 20)};
    const auto second = split_step(plan, cost, {.cuts_prompts = rng.between(0, 1) == 0});
    if (!second) continue;
    ++num_split;
    num_cut += second->row > plan.query_start[second->entry];
    REQUIRE(is_sound(plan, *second));
    CHECK(split_step(plan, cost, {.only_row = second->row}) == second);
  }
  CHECK(num_split > 1000);
  CHECK(num_cut > 0);
}

TEST_CASE("steps of heads, and of the layer behind the last one, stay in one part") {
  Plan plan;
  plan.add(7, 1).add(7, 1);
  plan.plan.hidden_rows = {0, 1};
  CHECK(split_step(plan.plan, {100, 1}, {}) == std::nullopt);
  plan.plan.hidden_rows.clear();
  plan.plan.is_mtp = true;
  CHECK(split_step(plan.plan, {100, 1}, {}) == std::nullopt);
}

}  // namespace
}  // namespace llmb::test
