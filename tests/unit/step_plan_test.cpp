// validate_step_plan: a good plan passes, and each way to break an invariant is found and named.
#include "core/step_plan.h"

#include <doctest/doctest.h>

#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace llmb {

namespace {

constexpr int32_t kNumBlocks = 8, kNumHostBlocks = 3;

SampleRow sample_row(int32_t group, int32_t token_row) {
  SampleRow row;
  row.group = group;
  row.token_row = token_row;
  return row;
}

StepEntry entry_at(SeqId seq, int32_t base) {
  StepEntry entry;
  entry.seq = seq;
  entry.base = base;
  return entry;
}

// Block size 4. Sequence 10: a token after 3, sampled for two sequences. 11: a known token after 6 and two drafts,
// verified. 12: the first 5, no sample. A block is copied.
StepPlan good_plan() {
  StepPlan plan;
  plan.clear();
  plan.block_size = 4;
  plan.tokens = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  plan.entries = {entry_at(10, 3), entry_at(11, 6), entry_at(12, 0)};
  plan.query_start = {0, 1, 4, 9};
  plan.block_start = {0, 1, 4, 6};
  plan.block_ids = {2, 6, 7, 1, 0, 5};
  plan.block_copies = {{0, 3, 2}};
  plan.groups = {{10, 0, 0, 1, SampleMode::kSample},
                 {13, 0, 1, 2, SampleMode::kSample},
                 {11, 1, 2, 5, SampleMode::kVerify}};
  plan.sample_rows = {sample_row(0, 0), sample_row(1, 0), sample_row(2, 1), sample_row(2, 2), sample_row(2, 3)};
  plan.bias = {{3, -1.0f}, {4, 1.0f}};
  plan.penalty = {{1, 0}};
  plan.sample_rows[0].bias_end = 2;
  plan.sample_rows[2].penalty_end = 1;
  return plan;
}

// The same with the drafts as two children of the known token.
StepPlan tree_plan() {
  StepPlan plan = good_plan();
  plan.parent_rows = {-1, 0, 1, 1, 3, 4, 5, 6, 7};
  return plan;
}

// Four sequences that write a block each. All but the last begin with block 0, two of them with blocks 0 and 1.
StepPlan sharing_plan() {
  StepPlan plan;
  plan.clear();
  plan.block_size = 4;
  plan.tokens = {1, 2, 3, 4};
  plan.entries = {entry_at(10, 8), entry_at(11, 5), entry_at(12, 8), entry_at(13, 4)};
  plan.query_start = {0, 1, 2, 3, 4};
  plan.block_start = {0, 3, 5, 8, 10};
  plan.block_ids = {0, 1, 2, 0, 3, 0, 1, 4, 5, 6};
  plan.shared_prefixes = {{0, 1, 0, 3}, {0, 2, 0, 2}};
  plan.shared_entries = {0, 2, 1};
  return plan;
}

// Two sequences, two heads each.
StepPlan heads_plan() {
  StepPlan plan;
  plan.clear();
  plan.tokens = {1, 2};
  plan.hidden_rows = {5, 0};
  plan.entries = {entry_at(10, 8), entry_at(11, 5)};
  plan.query_start = {0, 1, 2};
  plan.block_start = {0, 0, 0};
  for (int32_t g = 0; g < 4; ++g) {
    plan.groups.push_back({10 + g % 2, g % 2, g, g + 1, SampleMode::kBest});
    plan.sample_rows.push_back(sample_row(g, g % 2));
    plan.sample_rows.back().num_logprobs = 3;
  }
  return plan;
}

struct Breakage {
  const char* what;
  int invariant;
  std::function<void(StepPlan*)> apply;
};

const std::vector<Breakage>& breakages() {
  static const std::vector<Breakage> all = {
      {"query_start too short", 1, [](StepPlan* p) { p->query_start.pop_back(); }},
      {"query_start empty", 1, [](StepPlan* p) { p->query_start.clear(); }},
      {"query_start does not begin with 0", 1, [](StepPlan* p) { p->query_start[0] = 1; }},
      {"query_start does not end with the tokens", 1, [](StepPlan* p) { p->query_start[3] = 8; }},
      {"query_start decreases", 1, [](StepPlan* p) { p->query_start[1] = 5; }},
      {"an entry without tokens", 1, [](StepPlan* p) { p->query_start[1] = 0; }},
      {"block_start too short", 1, [](StepPlan* p) { p->block_start.pop_back(); }},
      {"block_start decreases", 1, [](StepPlan* p) { p->block_start[1] = 5; }},
      {"block_start does not end with the blocks", 1, [](StepPlan* p) { p->block_ids.push_back(3); }},
      {"block tables for one layer group of two", 1, [](StepPlan* p) { p->num_layer_groups = 2; }},
      {"negative base", 2, [](StepPlan* p) { p->entries[2].base = -1; }},
      {"tokens ahead of nothing", 2, [](StepPlan* p) { p->entries[0].max_ahead = 1; }},
      {"follows a group with nothing in flight", 2, [](StepPlan* p) { p->entries[0].follows = 0; }},
      {"too few blocks", 3,
       [](StepPlan* p) {
         p->block_start = {0, 1, 3, 6};
         p->entries[1].base = 7;
       }},
      {"a base beyond the blocks", 3, [](StepPlan* p) { p->entries[0].base = 4; }},
      {"a block beyond the pool", 3, [](StepPlan* p) { p->block_ids[3] = kNumBlocks; }},
      {"a negative block", 3, [](StepPlan* p) { p->block_ids[3] = -1; }},
      {"block_size 0", 3, [](StepPlan* p) { p->block_size = 0; }},
      {"no layer group", 3, [](StepPlan* p) { p->num_layer_groups = 0; }},
      {"a block with two writers", 4, [](StepPlan* p) { p->block_ids[5] = 7; }},
      {"a block written twice by one entry", 4, [](StepPlan* p) { p->block_ids[5] = 0; }},
      {"parents of some rows", 5, [](StepPlan* p) { p->parent_rows = {-1, 0}; }},
      {"a negative unseen token with nothing in flight", 6, [](StepPlan* p) { p->tokens[2] = unseen_token(0); }},
      {"the lowest token", 6, [](StepPlan* p) { p->tokens[0] = std::numeric_limits<TokenId>::min(); }},
      {"sample rows between groups", 7, [](StepPlan* p) { p->groups[1].row_begin = 2; }},
      {"sample rows of no group", 7, [](StepPlan* p) { p->sample_rows.push_back(sample_row(3, 8)); }},
      {"a group without rows", 7, [](StepPlan* p) { p->groups[0].row_end = 0; }},
      {"a group with rows beyond the end", 7, [](StepPlan* p) { p->groups[2].row_end = 6; }},
      {"a group of an unknown entry", 7, [](StepPlan* p) { p->groups[0].entry = 3; }},
      {"a group of a negative entry", 7, [](StepPlan* p) { p->groups[0].entry = -1; }},
      {"a group that samples another entry's row", 7, [](StepPlan* p) { p->sample_rows[0].token_row = 1; }},
      {"a row that another group's is", 7, [](StepPlan* p) { p->sample_rows[1].group = 0; }},
      {"rows with a gap", 7, [](StepPlan* p) { p->sample_rows[3].token_row = 3; }},
      {"two rows that are only sampled", 7, [](StepPlan* p) { p->groups[2].mode = SampleMode::kSample; }},
      {"rows verified that are not the last", 7,
       [](StepPlan* p) {
         p->groups[2].row_end = 4;
         p->sample_rows.pop_back();
       }},
      {"the best none", 7, [](StepPlan* p) { p->groups[0].mode = SampleMode::kBest; }},
      {"a reserved mode: pool", 7, [](StepPlan* p) { p->groups[0].mode = SampleMode::kPool; }},
      {"a mask where there are none", 7, [](StepPlan* p) { p->sample_rows[0].mask = 0; }},
      {"a mask past the end", 7,
       [](StepPlan* p) {
         p->mask_words = 2, p->masks = {1, 2};
         p->sample_rows[0].mask = 1;
       }},
      {"a negative mask", 7, [](StepPlan* p) { p->sample_rows[0].mask = -2; }},
      {"masks without a length", 7, [](StepPlan* p) { p->masks = {1}; }},
      {"half a mask", 7, [](StepPlan* p) { p->mask_words = 2, p->masks = {1, 2, 3}; }},
      {"bias past the end", 7, [](StepPlan* p) { p->sample_rows[0].bias_end = 3; }},
      {"bias before the start", 7, [](StepPlan* p) { p->sample_rows[0].bias_begin = -1; }},
      {"bias backwards", 7, [](StepPlan* p) { p->sample_rows[1].bias_begin = 1; }},
      {"penalty past the end", 7, [](StepPlan* p) { p->sample_rows[2].penalty_end = 2; }},
      {"penalty before the start", 7, [](StepPlan* p) { p->sample_rows[2].penalty_begin = -1; }},
      {"penalty backwards", 7, [](StepPlan* p) { p->sample_rows[0].penalty_begin = 1; }},
      {"a penalty for an unseen token", 8, [](StepPlan* p) { p->penalty[0].token = unseen_token(0); }},
      {"a copy from beyond the pool", 9, [](StepPlan* p) { p->block_copies[0].from = kNumBlocks; }},
      {"a copy to a negative block", 9, [](StepPlan* p) { p->block_copies[0].to = -1; }},
      {"a swap to beyond the host's pool", 9, [](StepPlan* p) { p->swaps_out = {{0, 1, kNumHostBlocks}}; }},
      {"a swap from beyond the host's pool", 9, [](StepPlan* p) { p->swaps_in = {{0, kNumHostBlocks, 1}}; }},
      {"a swap from beyond the pool", 9, [](StepPlan* p) { p->swaps_out = {{0, kNumBlocks, 1}}; }},
      {"a swap to beyond the pool", 9, [](StepPlan* p) { p->swaps_in = {{0, 1, kNumBlocks}}; }},
      {"two swaps to a block of the host", 9, [](StepPlan* p) { p->swaps_out = {{0, 1, 1}, {0, 4, 1}}; }},
      {"a copy and a swap to a block", 9, [](StepPlan* p) { p->swaps_in = {{0, 1, 2}}; }},
      {"a copy from a block that is swapped in", 9, [](StepPlan* p) { p->swaps_in = {{0, 1, 3}}; }},
      {"a copy of an unknown layer group", 9, [](StepPlan* p) { p->block_copies[0].layer_group = 1; }},
      {"a block copied to twice", 9, [](StepPlan* p) { p->block_copies.push_back({0, 4, 2}); }},
      {"a block copied from and to", 9, [](StepPlan* p) { p->block_copies.push_back({0, 2, 4}); }},
      {"a state slot of two entries", 10, [](StepPlan* p) { p->entries[0].state_slot = p->entries[2].state_slot = 1; }},
      {"a negative adapter", 10, [](StepPlan* p) { p->entries[1].adapter = -2; }},
  };
  return all;
}

const std::vector<Breakage>& tree_breakages() {
  static const std::vector<Breakage> all = {
      {"a row that is its own parent", 5, [](StepPlan* p) { p->parent_rows[3] = 3; }},
      {"a parent in another entry", 5, [](StepPlan* p) { p->parent_rows[2] = 0; }},
      {"a first row with a parent of its own", 5, [](StepPlan* p) { p->parent_rows[4] = 2; }},
      {"a tree that nothing verifies", 5, [](StepPlan* p) { p->parent_rows[7] = 4; }},
      {"a draft that branches off a known token", 5,
       [](StepPlan* p) {  // row 1 becomes a known token in front of those that are verified
         p->groups[2].row_end = 4;
         p->sample_rows.erase(p->sample_rows.begin() + 2);
       }},
  };
  return all;
}

const std::vector<Breakage>& sharing_breakages() {
  static const std::vector<Breakage> all = {
      {"a prefix of no blocks", 11, [](StepPlan* p) { p->shared_prefixes[0].num_blocks = 0; }},
      {"a prefix of one entry", 11, [](StepPlan* p) { p->shared_prefixes[1].entry_end = 1; }},
      {"a prefix of entries that are not listed", 11, [](StepPlan* p) { p->shared_prefixes[0].entry_end = 4; }},
      {"a prefix from before the list", 11, [](StepPlan* p) { p->shared_prefixes[0].entry_begin = -1; }},
      {"a prefix of an unknown layer group", 11, [](StepPlan* p) { p->shared_prefixes[0].layer_group = 1; }},
      {"an unknown entry", 11, [](StepPlan* p) { p->shared_entries[2] = 4; }},
      {"an entry that does not share", 11, [](StepPlan* p) { p->shared_entries[2] = 3; }},
      {"a longer prefix than is shared", 11, [](StepPlan* p) { p->shared_prefixes[1].num_blocks = 3; }},
      {"a prefix beyond a table", 11, [](StepPlan* p) { p->shared_prefixes[0].num_blocks = 3; }},
      {"a prefix within one as long", 11, [](StepPlan* p) { p->shared_prefixes[1].num_blocks = 1; }},
      {"the inner prefix first", 11, [](StepPlan* p) { std::swap(p->shared_prefixes[0], p->shared_prefixes[1]); }},
      {"prefixes that overlap", 11,
       [](StepPlan* p) {
         p->shared_prefixes[1] = {0, 1, 0, 2};
         p->shared_prefixes[0] = {0, 1, 1, 3};
       }},
      {"an entry listed twice", 11,
       [](StepPlan* p) {
         p->shared_entries = {0, 2, 0};
       }},
  };
  return all;
}

const std::vector<Breakage>& heads_breakages() {
  static const std::vector<Breakage> all = {
      {"hidden rows of some tokens", 12, [](StepPlan* p) { p->hidden_rows.pop_back(); }},
      {"a negative hidden row", 12, [](StepPlan* p) { p->hidden_rows[1] = -1; }},
      {"a block", 12, [](StepPlan* p) { p->block_ids = {3}, p->block_start = {0, 1, 1}; }},
      {"a copy", 12, [](StepPlan* p) { p->block_copies = {{0, 1, 2}}; }},
      {"a swap", 12, [](StepPlan* p) { p->swaps_in = {{0, 1, 2}}; }},
      {"a head for one entry", 12, [](StepPlan* p) { p->groups.pop_back(), p->sample_rows.pop_back(); }},
      {"no heads", 12, [](StepPlan* p) { p->groups.clear(), p->sample_rows.clear(); }},
      {"entries out of turn", 12,
       [](StepPlan* p) {
         std::swap(p->groups[2].entry, p->groups[3].entry);
         std::swap(p->sample_rows[2].token_row, p->sample_rows[3].token_row);
       }},
      {"an entry of two rows", 12,
       [](StepPlan* p) {
         p->tokens.push_back(3);
         p->hidden_rows.push_back(1);
         p->query_start[2] = 3;
       }},
  };
  return all;
}

void check_broken(StepPlan plan, const Breakage& breakage) {
  breakage.apply(&plan);
  const Status status = validate_step_plan(plan, kNumBlocks, nullptr, kNumHostBlocks);
  const std::string number = "invariant " + std::to_string(breakage.invariant) + " ";
  CHECK_MESSAGE(status.message().find(number) != std::string::npos, std::string(breakage.what)
                                                                        << ": '" << status.message() << "'");
}

}  // namespace

TEST_CASE("blocks are swapped out before anything else, so whatever is next in them may come at once") {
  StepPlan plan = good_plan();
  plan.swaps_out = {{0, 3, 0}, {0, 2, 1}};  // copied from and to by the plan
  plan.swaps_in = {{0, 0, 4}, {0, 2, 1}, {0, 2, 5}};
  CHECK(validate_step_plan(plan, kNumBlocks, nullptr, kNumHostBlocks).message() == "");
  CHECK(validate_step_plan(plan, kNumBlocks).message().find("invariant 9") != std::string::npos);
}

TEST_CASE("a valid plan, one with a tree, one with shared prefixes, one of heads and an empty plan pass") {
  for (const StepPlan& plan : {good_plan(), tree_plan(), sharing_plan(), heads_plan()}) {
    const Status status = validate_step_plan(plan, kNumBlocks);
    CHECK_MESSAGE(status.ok(), status.message());
  }
  StepPlan empty;
  empty.clear();
  CHECK(validate_step_plan(empty, kNumBlocks).ok());
  CHECK(validate_step_plan(empty, 0).ok());
}

TEST_CASE("each broken invariant is found and named") {
  for (const Breakage& breakage : breakages()) check_broken(good_plan(), breakage);
  for (const Breakage& breakage : tree_breakages()) check_broken(tree_plan(), breakage);
  for (const Breakage& breakage : sharing_breakages()) check_broken(sharing_plan(), breakage);
  for (const Breakage& breakage : heads_breakages()) check_broken(heads_plan(), breakage);
}

TEST_CASE("each layer group has its block table, and its blocks a writer of their own") {
  StepPlan plan = good_plan();
  plan.num_layer_groups = 2;
  plan.block_start = {0, 1, 2, 5, 8, 10, 12};
  plan.block_ids = {2, 6, 6, 7, 1, 2, 3, 4, 0, 5, 0, 5};
  plan.block_copies = {{0, 3, 2}, {1, 2, 3}};
  const Status status = validate_step_plan(plan, kNumBlocks);
  CHECK_MESSAGE(status.ok(), status.message());
  plan.block_ids[1] = 4;  // the second group's block of sequence 10, which sequence 11 writes there
  CHECK(validate_step_plan(plan, kNumBlocks).message().find("invariant 4") != std::string::npos);
}

TEST_CASE("an entry follows what a group of the plan in flight gives, if anything can") {
  const StepPlan in_flight = good_plan(), tree_in_flight = tree_plan();
  StepPlan plan;
  plan.clear();
  plan.block_size = 4;
  plan.tokens = {unseen_token(2), 5};
  plan.entries = {entry_at(11, 6)};
  plan.query_start = {0, 2};
  plan.block_start = {0, 3};
  plan.block_ids = {6, 7, 1};
  StepEntry& entry = plan.entries[0];
  entry.follows = 2;
  entry.max_ahead = 3;
  CHECK(plan.max_context_len(0) == 11);
  const auto broken = [](const StepPlan& p, const StepPlan* before) {
    return validate_step_plan(p, kNumBlocks, before).message().substr(0, 21);
  };
  CHECK(broken(plan, &in_flight) == "");
  CHECK(broken(plan, nullptr) == "step plan invariant 6");
  CHECK(broken(plan, &tree_in_flight) == "step plan invariant 2");
  entry.max_ahead = 2;
  CHECK(broken(plan, &in_flight) == "step plan invariant 2");
  entry.max_ahead = 3;
  entry.follows = 3;
  CHECK(broken(plan, &in_flight) == "step plan invariant 2");
  entry.follows = 2;
  entry.base = 8;
  CHECK(broken(plan, &in_flight) == "step plan invariant 3");
  entry.base = 6;
  StepPlan best = in_flight;
  best.groups[0].mode = SampleMode::kBest;
  best.sample_rows[0].num_logprobs = 4;
  CHECK(max_tokens_given(best, best.groups[0]) == 4);
  entry.follows = 0;
  entry.max_ahead = 4;
  CHECK(broken(plan, &best) == "step plan invariant 2");
  plan.tokens[0] = unseen_token(3);
  CHECK(broken(plan, &in_flight) == "step plan invariant 6");
}

TEST_CASE("penalties of unseen tokens: only of groups in flight, only the last entry of a slice") {
  const StepPlan in_flight = good_plan();
  StepPlan plan = good_plan();
  plan.sample_rows[2].penalty_end = 3;
  plan.penalty = {{7, 2}, {50, 0}, {unseen_token(2), 1}};
  CHECK(validate_step_plan(plan, kNumBlocks, &in_flight).ok());
  CHECK(validate_step_plan(plan, kNumBlocks).message().find("invariant 8") != std::string::npos);
  std::swap(plan.penalty[1], plan.penalty[2]);
  CHECK(validate_step_plan(plan, kNumBlocks, &in_flight).message().find("invariant 8") != std::string::npos);
}

TEST_CASE("what a tree's group gave is in place as far as its first children go") {
  StepPlan plan;
  plan.clear();
  plan.tokens = {9, 1, 2, 3, 4, 5};
  plan.parent_rows = {-1, 0, 1, 0, 3, 2};  // 1 2 5 and 3 4 behind row 0
  const SampleGroup group{0, 0, 0, 6, SampleMode::kVerify};
  plan.sample_rows = {sample_row(0, 0)};
  CHECK(is_tree(plan, group));
  const auto in_place = [&](const std::vector<TokenId>& given) { return num_in_place(plan, group, given); };
  CHECK(in_place({7}) == 1);
  CHECK(in_place({1, 7}) == 2);
  CHECK(in_place({1, 2, 5, 7}) == 3);  // 5 stands behind the other branch
  CHECK(in_place({3, 4, 7}) == 1);
  plan.parent_rows.clear();
  CHECK_FALSE(is_tree(plan, group));
  CHECK(in_place({1, 2, 3, 7}) == 4);
}

TEST_CASE("clear() leaves a valid empty plan and an empty output") {
  StepPlan plan = tree_plan();
  plan.clear();
  CHECK(plan.empty());
  CHECK(plan.num_entries() == 0);
  CHECK(plan.num_groups() == 0);
  CHECK(plan.num_samples() == 0);
  CHECK(validate_step_plan(plan, kNumBlocks).ok());
  StepOutput output;
  output.tokens = {1};
  output.token_start = output.top_start = {0, 1};
  output.clear();
  CHECK(output.tokens.empty());
  CHECK(output.token_start == std::vector<int32_t>{0});
  CHECK(output.top_start == std::vector<int32_t>{0});
}

TEST_CASE("the dump names every entry, its blocks, the groups and the copies") {
  StepPlan plan = good_plan();
  plan.entries[0].follows = 1;
  plan.entries[0].max_ahead = 3;
  const std::string text = to_string(plan);
  CHECK(text.find("3 entries, 9 tokens, 5 samples") != std::string::npos);
  CHECK(text.find("seq 10: query 1 at 3 + up to 3 of group 1, blocks 2") != std::string::npos);
  CHECK(text.find("seq 11: query 3 at 6, blocks 6 7 1") != std::string::npos);
  CHECK(text.find("verify for seq 11: 3 rows from 1, choice 0") != std::string::npos);
  CHECK(text.find("copy 3 to 2") != std::string::npos);
}

}  // namespace llmb
