// The attention's view of trees of drafts: each run finds the keys of its ancestors at their positions, through tables.
#include "backend/cpu/tree_batch.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "core/resolve_step.h"
#include "tests/support/test_rng.h"

namespace llmb::test {
namespace {

constexpr int32_t kNumBlocks = 300;

// Entries of some known tokens and a tree or a chain of drafts; blocks in random order.
StepPlan random_plan(int32_t block_size, int32_t max_num_drafts, TestRng* rng) {
  StepPlan plan;
  plan.clear();
  plan.block_size = block_size;
  std::vector<BlockId> free(kNumBlocks);
  std::iota(free.begin(), free.end(), 0);
  int32_t num_drafts_left = max_num_drafts;
  const int32_t num_entries = rng->between(1, 4);
  for (int32_t e = 0; e < num_entries; ++e) {
    const int32_t num_known = rng->between(1, 5);
    const int32_t num_drafts = e + 1 == num_entries ? num_drafts_left : rng->between(0, num_drafts_left);
    num_drafts_left -= num_drafts;
    const int32_t first = plan.num_tokens(), known_end = first + num_known;
    const bool is_tree = rng->chance(0.8);
    const int32_t width = rng->log_between(2, 30);  // the smaller, the deeper
    for (int32_t row = first; row < known_end + num_drafts; ++row) {
      plan.tokens.push_back(0);
      plan.parent_rows.push_back(
          row > known_end && is_tree ? rng->between(std::max(known_end - 1, row - width), row - 1) : row - 1);
    }
    StepEntry& entry = plan.entries.emplace_back();
    entry.seq = e;
    entry.base = rng->between(0, 40);
    plan.query_start.push_back(plan.num_tokens());
    const int32_t first_sample = plan.num_samples();
    for (int32_t row = known_end - 1; row < plan.num_tokens(); ++row) {
      SampleRow& sample = plan.sample_rows.emplace_back();
      sample.group = e;
      sample.token_row = row;
    }
    plan.groups.push_back({e, e, first_sample, plan.num_samples(), SampleMode::kVerify});
    for (int64_t i = ceil_div(plan.max_context_len(e), block_size); i > 0; --i) {
      const auto at = free.begin() + rng->between(0, static_cast<int32_t>(free.size()) - 1);
      plan.block_ids.push_back(*at);
      free.erase(at);
    }
    plan.block_start.push_back(static_cast<int32_t>(plan.block_ids.size()));
  }
  return plan;
}

// The slot that holds each position that a row sees, its own the last.
std::vector<int64_t> seen_slots(const StepPlan& plan, const ResolvedStep& step, int32_t e, int32_t row) {
  std::vector<int64_t> slots(step.positions[row] + 1);
  for (; row >= plan.query_start[e]; row = plan.parent_rows[row]) slots[step.positions[row]] = step.slots[row];
  const BlockId* table = plan.block_ids.data() + plan.block_start[e];
  for (int32_t i = 0; i < plan.entries[e].base; ++i)
    slots[i] = int64_t{table[i / plan.block_size]} * plan.block_size + i % plan.block_size;
  return slots;
}

TEST_CASE("every row of every run finds its ancestors in order, also where tails take turns in the scratch blocks") {
  TestRng rng(4);
  ThreadPool pool(2);
  int64_t num_parts = 0, most_parts = 0;
  for (int trial = 0; trial < 400; ++trial) {
    const int32_t block_size = std::vector<int32_t>{1, 2, 5, 16}[trial % 4], max_num_drafts = rng.log_between(2, 30);
    const int32_t enough = TreeBatch::num_scratch_blocks(max_num_drafts, block_size);
    const auto longest_tail = static_cast<int32_t>(1 + ceil_div(max_num_drafts, block_size));
    REQUIRE(enough >= longest_tail);
    const int32_t num_scratch = trial % 8 < 4 ? longest_tail : enough;
    const StepPlan plan = random_plan(block_size, max_num_drafts, &rng);
    REQUIRE(validate_step_plan(plan, kNumBlocks).message() == "");
    ResolvedStep step;
    resolve_step(plan, {}, &step);
    cpu::KvCacheView kv{nullptr, DType::kF32, block_size, 1, 1};
    std::vector<float> cache(static_cast<size_t>((kNumBlocks + num_scratch) * kv.block_bytes() / 4), -1);
    kv.data = reinterpret_cast<uint8_t*>(cache.data());
    for (int64_t slot = 0; slot < int64_t{kNumBlocks} * block_size; ++slot) {
      const auto x = static_cast<float>(slot);
      cpu::write_kv_slot(&x, &x, slot, kv);
    }
    TreeBatch trees(kNumBlocks, num_scratch);
    trees.lay_out(plan, step.positions, {block_size, plan.block_ids.data(), plan.block_start.data(), step.slots.data()});
    int32_t next_row = 0;
    for (const TreeBatch::Part& part : trees.parts()) {
      trees.gather(part, kv, pool);
      const cpu::AttentionBatch batch = trees.batch(part);
      REQUIRE(batch.query_start[0] == next_row);
      for (int32_t run = 0; run < batch.num_seqs; ++run)
        for (; next_row < batch.query_start[run + 1]; ++next_row) {
          const auto e =
              static_cast<int32_t>(std::upper_bound(plan.query_start.begin(), plan.query_start.end(), next_row) -
                                   plan.query_start.begin() - 1);
          const std::vector<int64_t> expected = seen_slots(plan, step, e, next_row);
          REQUIRE(static_cast<int64_t>(expected.size()) ==
                  batch.context_len[run] - (batch.query_start[run + 1] - 1 - next_row));
          for (size_t i = 0; i < expected.size(); ++i) {
            const BlockId block = batch.block_ids[batch.block_start[run] + static_cast<int32_t>(i) / block_size];
            const size_t offset = i % static_cast<size_t>(block_size);
            const float key = reinterpret_cast<const float*>(kv.keys(block, 0))[offset];
            const float value = reinterpret_cast<const float*>(kv.values(block, 0))[offset];
            const auto wanted = static_cast<float>(expected[i]);
            const bool is_found = key == wanted && value == wanted;
            REQUIRE(is_found);
          }
        }
    }
    CHECK(next_row == plan.num_tokens());
    num_parts += static_cast<int64_t>(trees.parts().size());
    most_parts = std::max(most_parts, static_cast<int64_t>(trees.parts().size()));
    // The pool is as it was.
    bool is_unchanged = true;
    for (int64_t slot = 0; slot < int64_t{kNumBlocks} * block_size; ++slot)
      is_unchanged &=
          reinterpret_cast<const float*>(kv.keys(slot / block_size, 0))[slot % block_size] == static_cast<float>(slot);
    CHECK(is_unchanged);
  }
  CHECK(most_parts >= 5);
  CHECK(num_parts > 600);
}

}  // namespace
}  // namespace llmb::test
