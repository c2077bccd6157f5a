#include "tests/support/random_plan.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "base/check.h"

namespace llmb::test {

namespace {

constexpr int32_t kNumBlocks = 1200;

int32_t below(TestRng& rng, int64_t n) { return rng.between(0, static_cast<int32_t>(n) - 1); }

TokenId any_token(TestRng& rng) { return below(rng, kRandomPlanVocab); }

bool can_follow(const StepPlan& plan, const SampleGroup& group) {
  return (group.mode == SampleMode::kSample || group.mode == SampleMode::kVerify) && !is_tree(plan, group);
}

void add_penalty(TestRng& rng, const StepPlan* in_flight, StepPlan* plan, SampleRow* row) {
  row->penalty_begin = static_cast<int32_t>(plan->penalty.size());
  for (TokenId token = 0; token < kRandomPlanVocab; ++token)
    if (below(rng, 3) == 0) plan->penalty.push_back({token, below(rng, 4)});
  if (in_flight != nullptr && in_flight->num_groups() > 0 && below(rng, 2) == 0)
    plan->penalty.push_back({unseen_token(below(rng, in_flight->num_groups())), 1});
  row->penalty_end = static_cast<int32_t>(plan->penalty.size());
}

// Samples `num_rows` rows of the last entry from token row `first` on.
void add_group(TestRng& rng, const StepPlan* in_flight, SampleMode mode, int32_t first, int32_t num_rows,
               StepPlan* plan) {
  const int32_t entry = plan->num_entries() - 1, begin = plan->num_samples();
  plan->groups.push_back({plan->entries[entry].seq, entry, begin, begin + num_rows, mode});
  for (int32_t i = 0; i < num_rows; ++i) {
    SampleRow& row = plan->sample_rows.emplace_back();
    row.group = plan->num_groups() - 1;
    row.token_row = first + i;
    row.num_logprobs = below(rng, 4) - (mode == SampleMode::kBest ? -1 : 1);
    add_penalty(rng, in_flight, plan, &row);
  }
}

void add_groups(TestRng& rng, const StepPlan* in_flight, StepPlan* plan) {
  const int32_t begin = plan->query_start[plan->num_entries() - 1], end = plan->num_tokens();
  const auto kind = below(rng, 6);
  if (kind == 0) return;
  if (kind <= 2) {  // drafts, in a chain or in a tree
    const auto first = static_cast<int32_t>(std::max<int64_t>(begin, end - 1 - below(rng, 9)));
    if (kind == 2)
      for (int32_t row = first + 1; row < end; ++row) plan->parent_rows[row] = first + below(rng, row - first);
    return add_group(rng, in_flight, SampleMode::kVerify, first, end - first, plan);
  }
  for (int32_t left = 1 + below(rng, 3); left > 0; --left)
    add_group(rng, in_flight, kind == 3 ? SampleMode::kBest : SampleMode::kSample, end - 1, 1, plan);
}

void add_rows(TestRng& rng, const StepPlan* in_flight, int32_t num_rows, StepPlan* plan) {
  StepEntry& entry = plan->entries.back();
  entry.base = below(rng, 60);
  if (in_flight != nullptr && in_flight->num_groups() > 0 && below(rng, 3) != 0) {
    const auto g = below(rng, in_flight->num_groups());
    if (can_follow(*in_flight, in_flight->groups[g])) {
      entry.follows = g;
      entry.max_ahead = max_tokens_given(*in_flight, in_flight->groups[g]);
    }
  }
  for (int32_t i = 0; i < num_rows; ++i) {
    const bool is_unseen = i == 0 && entry.follows != kNoGroup;
    plan->parent_rows.push_back(plan->num_tokens() - 1);
    plan->tokens.push_back(is_unseen ? unseen_token(entry.follows) : any_token(rng));
  }
  plan->query_start.push_back(plan->num_tokens());
}

}  // namespace

StepPlan random_plan(TestRng& rng, const StepPlan* in_flight) {
  StepPlan plan;
  plan.clear();
  plan.block_size = std::vector<int32_t>{4, 8, 12, 16}[below(rng, 4)];
  plan.num_layer_groups = 1 + below(rng, 3);
  std::vector<BlockId> blocks(kNumBlocks);
  std::iota(blocks.begin(), blocks.end(), 0);
  for (int32_t i = kNumBlocks - 1; i > 0; --i) std::swap(blocks[i], blocks[below(rng, i + 1)]);
  const int32_t num_entries = 1 + below(rng, 6);
  for (int32_t e = 0; e < num_entries; ++e) {
    plan.entries.emplace_back().seq = e;
    add_rows(rng, in_flight, 1 + below(rng, below(rng, 4) == 0 ? 70 : 6), &plan);
    for (int32_t group = 0; group < plan.num_layer_groups; ++group) {
      const auto count_blocks = ceil_div(plan.max_context_len(e), plan.block_size);
      plan.block_ids.insert(plan.block_ids.end(), blocks.end() - count_blocks, blocks.end());
      blocks.resize(blocks.size() - static_cast<size_t>(count_blocks));
      plan.block_start.push_back(static_cast<int32_t>(plan.block_ids.size()));
    }
    add_groups(rng, in_flight, &plan);
  }
  bool has_tree = false;
  for (const SampleGroup& group : plan.groups) has_tree |= is_tree(plan, group);
  if (!has_tree) plan.parent_rows.clear();
  const Status status = validate_step_plan(plan, kNumBlocks, in_flight);
  LLMB_CHECK_MSG(status.ok(), status.message());
  return plan;
}

GivenTokens random_given(TestRng& rng, const StepPlan& plan) {
  GivenTokens given;
  for (const SampleGroup& group : plan.groups) {
    const int32_t most = max_tokens_given(plan, group);
    given.counts.push_back(below(rng, 4) == 0 ? below(rng, most + 1) : 1 + below(rng, most));
    given.last.push_back(any_token(rng));
  }
  return given;
}

SampledRows random_samples(TestRng& rng, const StepPlan& plan) {
  SampledRows sampled;
  sampled.clear();
  for (const SampleRow& row : plan.sample_rows) {
    sampled.tokens.push_back(any_token(rng));
    sampled.logprobs.push_back(-0.5f);
    sampled.is_finite.push_back(below(rng, 12) != 0);
    for (int32_t i = 0; i < std::min(row.num_logprobs, kRandomPlanVocab); ++i) {
      sampled.top_tokens.push_back(any_token(rng));
      sampled.top_logprobs.push_back(-static_cast<float>(i));
    }
    sampled.top_start.push_back(static_cast<int32_t>(sampled.top_tokens.size()));
  }
  return sampled;
}

}  // namespace llmb::test
