// The kernels against core/resolve_step.cpp on random valid plans: every byte.
#include "kernels/cuda/resolve_step.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "core/resolve_step.h"
#include "tests/support/device_array.h"
#include "tests/support/random_plan.h"

namespace llmb::cuda {
namespace {

using test::DeviceArray;
using test::TestRng;

#ifdef LLMB_SIMT
constexpr uint64_t kNumPlans = 4000;
#else
constexpr uint64_t kNumPlans = 300;
#endif
constexpr int32_t kNumCtas = 5, kPadding = 3;

int32_t below(TestRng& rng, int64_t n) { return rng.between(0, static_cast<int32_t>(n) - 1); }

AttentionShape attention_shape(const StepPlan& plan) {
  AttentionShape shape;
  shape.dtype = DType::kF32;  // tiles of 32 positions, units of 16 rows
  shape.num_heads = 6;
  shape.num_kv_heads = 2;
  shape.head_dim = 8;
  shape.block_size = plan.block_size;
  return shape;
}

std::vector<StepRow> rows_of(const StepPlan& plan) {
  std::vector<StepRow> rows;
  for (int32_t e = 0; e < plan.num_entries(); ++e)
    for (int32_t row = plan.query_start[e]; row < plan.query_start[e + 1]; ++row) {
      const int32_t index = row - plan.query_start[e];
      const bool has_parent = index > 0 && !plan.parent_rows.empty();
      rows.push_back({e, index, has_parent ? rows[plan.parent_rows[row]].depth + 1 : index});
    }
  return rows;
}

// Block tables with the ids of a block in all groups side by side.
struct JoinedTables {
  std::vector<int32_t> start;  // [num_entries]  in blocks
  std::vector<BlockId> ids;    // [blocks of all tables, num_layer_groups]
};

JoinedTables join_tables(const StepPlan& plan) {
  JoinedTables joined;
  for (int32_t e = 0; e < plan.num_entries(); ++e) {
    joined.start.push_back(static_cast<int32_t>(joined.ids.size()) / plan.num_layer_groups);
    const int32_t* const tables = plan.block_start.data() + e * plan.num_layer_groups;
    for (int32_t i = 0; i < tables[1] - tables[0]; ++i)
      for (int32_t g = 0; g < plan.num_layer_groups; ++g) joined.ids.push_back(plan.block_ids[tables[g] + i]);
  }
  return joined;
}

AttentionSchedule schedule_of(const StepPlan& plan) {
  std::vector<int32_t> context_len;
  for (int32_t e = 0; e < plan.num_entries(); ++e) context_len.push_back(plan.max_context_len(e));
  const JoinedTables joined = join_tables(plan);
  AttentionSchedule schedule;
  schedule_attention({plan.num_entries(), plan.query_start.data(), context_len.data(), joined.start.data()},
                     attention_shape(plan), kNumCtas, &schedule);
  return schedule;
}

// The item as it must become.
AttentionItem clipped(const StepPlan& plan, const ResolvedStep& step, AttentionItem item) {
  int32_t e = 0;
  while (plan.query_start[e + 1] <= item.query_start) ++e;
  item.first_position = step.context_len[e] - plan.num_rows(e);
  const int32_t last_row = item.row_begin + item.num_rows - 1;
  const int32_t last_position = item.first_position + last_row / attention_shape(plan).group();
  item.kv_end = std::clamp(last_position + 1, item.kv_begin, item.kv_end);
  return item;
}

template <class T>
std::vector<T> padded(std::vector<T> values, T padding) {
  values.insert(values.end(), kPadding, padding);
  return values;
}

template <class T>
void check_same(const char* what, const std::vector<T>& actual, const std::vector<T>& expected) {
  CAPTURE(what);
  REQUIRE(actual.size() == expected.size());
  const bool same = actual.empty() || std::memcmp(actual.data(), expected.data(), actual.size() * sizeof(T)) == 0;
  CHECK(same);
}

// Rows and samples are padded.
void check_resolve(const StepPlan& plan, const GivenTokens& before) {
  ResolvedStep expected;
  llmb::resolve_step(plan, before, &expected);
  const AttentionSchedule schedule = schedule_of(plan);
  SampleRow no_row;
  no_row.token_row = -1;
  const DeviceArray<StepRow> rows(padded(rows_of(plan), StepRow()));
  const DeviceArray<StepEntry> entries(plan.entries);
  const JoinedTables joined = join_tables(plan);
  const DeviceArray<int32_t> block_start(joined.start);
  const DeviceArray<BlockId> block_ids(joined.ids);
  DeviceArray<TokenId> tokens(padded(plan.tokens, 0)), last(before.last);
  DeviceArray<int32_t> counts(before.counts), positions(tokens.size()),
      slots(tokens.size() * static_cast<size_t>(plan.num_layer_groups));
  DeviceArray<SampleRow> samples(padded(plan.sample_rows, no_row));
  DeviceArray<AttentionItem> items(schedule.items);
  const DeviceArray<int32_t> cta_start(schedule.cta_start);
  UnresolvedStep step;
  step.num_tokens = static_cast<int32_t>(tokens.size());
  step.num_samples = static_cast<int32_t>(samples.size());
  step.num_layer_groups = plan.num_layer_groups;
  step.block_size = plan.block_size;
  step.rows = rows.data(), step.entries = entries.data();
  step.block_start = block_start.data(), step.block_ids = block_ids.data();
  step.tokens = tokens.data(), step.positions = positions.data(), step.slots = slots.data();
  step.samples = samples.data();
  step.lists[0] = {items.data(), cta_start.data() + kNumCtas, attention_shape(plan).group()};
  resolve_step(step, {counts.data(), last.data()}, nullptr);

  check_same("tokens", tokens.download(), padded(expected.tokens, 0));
  check_same("positions", positions.download(), padded(expected.positions, 0));
  std::vector<int32_t> expected_slots;
  for (int32_t g = 0; g < plan.num_layer_groups; ++g) {
    const auto begin = expected.slots.begin() + g * plan.num_tokens();
    expected_slots.insert(expected_slots.end(), begin, begin + plan.num_tokens());
    expected_slots.insert(expected_slots.end(), kPadding, -1);
  }
  check_same("slots", slots.download(), expected_slots);
  const std::vector<SampleRow> actual_samples = samples.download();
  for (int32_t i = 0; i < plan.num_samples(); ++i)
    CHECK(actual_samples[i].position == expected.sample_rows[i].position);
  std::vector<AttentionItem> expected_items;
  for (const AttentionItem& item : schedule.items) expected_items.push_back(clipped(plan, expected, item));
  check_same("items", items.download(), expected_items);
  CHECK((tokens.check_guards() && positions.check_guards() && slots.check_guards() && samples.check_guards()));
  CHECK((items.check_guards() && counts.holds(before.counts) && last.holds(before.last)));
}

void check_penalties(const StepPlan& plan, const GivenTokens& before) {
  ResolvedStep expected;
  llmb::resolve_step(plan, before, &expected);
  DeviceArray<SampleRow> rows(plan.sample_rows);
  DeviceArray<TokenPenalty> penalty(plan.penalty);
  const DeviceArray<TokenId> last(before.last);
  count_unseen_tokens(rows.data(), plan.num_samples(), penalty.data(), last.data(), nullptr);
  const std::vector<SampleRow> actual_rows = rows.download();
  const std::vector<TokenPenalty> actual = penalty.download();
  for (int32_t r = 0; r < plan.num_samples(); ++r) {
    REQUIRE(actual_rows[r].penalty_end == expected.sample_rows[r].penalty_end);
    for (int32_t i = actual_rows[r].penalty_begin; i < actual_rows[r].penalty_end; ++i) {
      CHECK(actual[i].token == expected.penalty[i].token);
      CHECK(actual[i].output_count == expected.penalty[i].output_count);
    }
  }
  CHECK((rows.check_guards() && penalty.check_guards() && last.holds(before.last)));
}

// The token that the last one which a group gave was drawn behind; 0: it gave none that was drawn.
TokenId before_last_of(const StepPlan& plan, const ResolvedStep& step, const StepOutput& output, int32_t g) {
  const SampleGroup& group = plan.groups[g];
  const int32_t begin = output.token_start[g], end = output.token_start[g + 1];
  if (begin == end || group.mode == SampleMode::kBest) return 0;
  const int32_t first = plan.sample_rows[group.row_begin].token_row;
  int32_t row = first;
  for (int32_t i = begin; i + 1 < end; ++i) {
    const auto is_next = [&](int32_t child) {
      return (plan.parent_rows.empty() ? child - 1 : plan.parent_rows[child]) == row && step.tokens[child] == output.tokens[i];
    };
    int32_t child = row + 1;
    while (child < first + group.num_rows() && !is_next(child)) ++child;
    row = child;
  }
  return step.tokens[row];
}

// As many tokens as the entries of a step that drafts lie ahead of their bases.
std::vector<int32_t> passed_on(const StepPlan& plan, const GivenTokens& before) {
  std::vector<int32_t> counts;
  for (const SampleGroup& group : plan.groups) {
    const int32_t follows = plan.entries[group.entry].follows;
    counts.push_back(follows == kNoGroup ? 1 : std::max(1, before.counts[follows]));
  }
  return counts;
}

void check_give(const StepPlan& plan, const GivenTokens& before, const SampledRows& sampled) {
  ResolvedStep resolved;
  llmb::resolve_step(plan, before, &resolved);
  StepOutput output;
  GivenTokens expected;
  llmb::give_tokens(plan, resolved.tokens, sampled, &output, &expected);
  constexpr int32_t kMaxTop = 5;
  std::vector<TokenId> top(static_cast<size_t>(plan.num_samples() * kMaxTop), -1);
  for (int32_t i = 0; i < plan.num_samples(); ++i)
    std::copy(sampled.top_tokens.begin() + sampled.top_start[i], sampled.top_tokens.begin() + sampled.top_start[i + 1],
              top.begin() + i * kMaxTop);
  const DeviceArray<SampleGroup> groups(padded(plan.groups, SampleGroup()));
  const DeviceArray<SampleRow> samples(resolved.sample_rows);
  const DeviceArray<TokenId> tokens(resolved.tokens), drawn(sampled.tokens), top_tokens(top);
  const DeviceArray<int32_t> parents(plan.parent_rows);
  const DeviceArray<uint8_t> is_finite(sampled.is_finite);
  DeviceArray<int32_t> counts(groups.size()), last(groups.size()), before_last(groups.size());
  GroupsToGive step;
  step.num_groups = static_cast<int32_t>(groups.size());
  step.groups = groups.data(), step.samples = samples.data(), step.tokens = tokens.data();
  if (!plan.parent_rows.empty()) step.parent_rows = parents.data();
  step.sampled = drawn.data(), step.is_finite = is_finite.data(), step.top_tokens = top_tokens.data();
  step.max_top = kMaxTop, step.vocab = test::kRandomPlanVocab;
  give_tokens(step, {counts.data(), last.data(), before_last.data()}, nullptr);
  check_same("counts", counts.download(), padded(expected.counts, 0));
  check_same("last", last.download(), padded(expected.last, 0));
  std::vector<TokenId> expected_before;
  for (int32_t g = 0; g < plan.num_groups(); ++g) expected_before.push_back(before_last_of(plan, resolved, output, g));
  check_same("before last", before_last.download(), padded(expected_before, 0));
  const DeviceArray<StepRow> rows(rows_of(plan));
  const DeviceArray<StepEntry> entries(plan.entries);
  const DeviceArray<int32_t> positions(resolved.positions);
  step.entries = entries.data(), step.rows = rows.data(), step.positions = positions.data();
  give_tokens(step, {counts.data(), last.data(), before_last.data()}, nullptr);
  check_same("counts of a step that drafts", counts.download(), padded(passed_on(plan, before), 0));
  check_same("last of a step that drafts", last.download(), padded(expected.last, 0));
  CHECK((counts.check_guards() && last.check_guards() && before_last.check_guards()));
}

TEST_CASE("random plans: rows, samples, penalties, items and tokens given are those of the host") {
  int64_t num_followers = 0, num_clipped = 0, num_trees = 0, num_accepted = 0;
  for (uint64_t seed = 1; seed <= kNumPlans; ++seed) {
    CAPTURE(seed);
    TestRng rng(seed);
    const StepPlan before = test::random_plan(rng, nullptr);
    const GivenTokens given = test::random_given(rng, before);
    const StepPlan plan = test::random_plan(rng, &before);
    check_resolve(plan, given);
    check_penalties(plan, given);
    check_give(plan, given, test::random_samples(rng, plan));
    for (const StepEntry& entry : plan.entries) {
      num_followers += entry.follows != kNoGroup;
      num_clipped += entry.follows != kNoGroup && entry.max_ahead > std::max(1, given.counts[entry.follows]);
    }
    for (const SampleGroup& group : plan.groups) num_trees += is_tree(plan, group);
    for (const int32_t count : given.counts) num_accepted += count > 1;
  }
  // They reach what they are for.
  const auto least = static_cast<int64_t>(kNumPlans / 8);
  CHECK(num_followers > least);
  CHECK(num_clipped > least);
  CHECK(num_trees > least);
  CHECK(num_accepted > least);
}

TEST_CASE("a wide tree: the walk takes the first of equal children, however far behind its parent") {
  StepPlan plan;
  plan.clear();
  constexpr int32_t kRows = 101;
  plan.entries.resize(1);
  plan.groups = {{0, 0, 0, kRows, SampleMode::kVerify}};
  plan.sample_rows.resize(kRows);
  SampledRows sampled;
  for (int32_t row = 0; row < kRows; ++row) {
    plan.tokens.push_back(row % 50);  // 99 holds 49, as 49 does
    plan.parent_rows.push_back(row == 100 ? 49 : std::min(row - 1, 0));
    plan.sample_rows[row].token_row = row;
    sampled.tokens.push_back(row == 0 ? 49 : row == 49 ? 0 : row == 100 ? 7 : 3);
  }
  plan.query_start.push_back(kRows);
  plan.block_ids = {0, 1, 2, 3, 4, 5, 6};
  plan.block_start.push_back(7);
  sampled.is_finite.assign(kRows, 1);
  sampled.logprobs.assign(kRows, 0);
  sampled.top_start.assign(kRows + 1, 0);
  check_give(plan, {}, sampled);
  StepOutput output;
  GivenTokens given;
  llmb::give_tokens(plan, plan.tokens, sampled, &output, &given);
  CHECK(output.tokens == std::vector<TokenId>{49, 0, 7});
}

TEST_CASE("penalties: slices of every length around a warp's, the token anywhere in them or not at all") {
  const std::vector<int32_t> lengths = {1, 0, 2, 3, 31, 32, 33, 34, 64, 65, 66, 500, 1, 97};
  for (size_t num_rows : {size_t{1}, size_t{4}, size_t{5}, lengths.size(), size_t{0}})
    for (uint64_t seed = 1; seed <= 6; ++seed) {
      CAPTURE(num_rows);
      TestRng rng(seed);
      StepPlan plan;
      plan.clear();
      GivenTokens before;
      for (size_t r = 0; r < num_rows; ++r) before.last.push_back(below(rng, 1000));
      for (size_t r = 0; r < num_rows; ++r) {
        SampleRow& row = plan.sample_rows.emplace_back();
        row.token_row = -1;
        row.penalty_begin = static_cast<int32_t>(plan.penalty.size());
        const auto source = below(rng, num_rows);
        for (int32_t i = 0; i + 1 < lengths[r]; ++i) plan.penalty.push_back({2000 + i, below(rng, 4)});
        if (lengths[r] > 1 && below(rng, 4) != 0)
          plan.penalty[static_cast<size_t>(row.penalty_begin) + below(rng, lengths[r] - 1)].token =
              before.last[static_cast<size_t>(source)];
        if (lengths[r] > 0) plan.penalty.push_back({unseen_token(source), 1});
        row.penalty_end = static_cast<int32_t>(plan.penalty.size());
      }
      DeviceArray<SampleRow> rows(plan.sample_rows);
      DeviceArray<TokenPenalty> penalty(plan.penalty);
      const DeviceArray<TokenId> last(before.last);
      count_unseen_tokens(rows.data(), plan.num_samples(), penalty.data(), last.data(), nullptr);
      llmb::count_unseen_tokens(before.last, &plan.sample_rows, &plan.penalty);
      const auto actual_rows = rows.download();
      const auto actual = penalty.download();
      for (size_t r = 0; r < num_rows; ++r) {
        REQUIRE(actual_rows[r].penalty_end == plan.sample_rows[r].penalty_end);
        for (auto i = actual_rows[r].penalty_begin; i < actual_rows[r].penalty_end; ++i) {
          CHECK(actual[i].token == plan.penalty[i].token);
          CHECK(actual[i].output_count == plan.penalty[i].output_count);
        }
      }
      CHECK((rows.check_guards() && penalty.check_guards() && last.holds(before.last)));
    }
}

}  // namespace
}  // namespace llmb::cuda
