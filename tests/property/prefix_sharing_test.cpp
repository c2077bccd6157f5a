// The prefix cache against a list of everything that was ever computed, searched from one end to the other.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "backend/ledger/ledger_backend.h"
#include "core/layer_groups.h"
#include "planner/row_order.h"
#include "tests/support/test_rng.h"
#include "tests/support/workload.h"

namespace llmb::test {

namespace {

using Tokens = std::vector<TokenId>;

int32_t common(const Tokens& a, const Tokens& b) {
  return static_cast<int32_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
}

struct Tree {
  SchedulerConfig config;
  std::vector<std::shared_ptr<const Request>> requests;
  bool holds_all = false;
  ModelConfig model;
};

// Requests whose prompts are paths of a random tree, and a pool that holds `share` of all they need.
Tree random_tree(uint64_t seed, int32_t max_tokens, double share) {
  TestRng rng(seed);
  Tree tree;
  SchedulerConfig& config = tree.config;
  config.batching = static_cast<BatchingMode>(rng.chance(0.7) ? 3 : rng.between(0, 3));
  config.max_num_seqs = rng.log_between(1, 16);
  config.max_num_batched_tokens = rng.log_between(config.max_num_seqs, 200);
  config.block_size = rng.log_between(1, 16);
  config.max_model_len = 128;
  config.enable_prefix_caching = true;
  std::vector<Tokens> prompts;
  int64_t num_blocks = 0, most = 1;
  for (int32_t i = rng.between(2, 24); i > 0; --i) {
    Tokens prompt;
    if (!prompts.empty() && rng.chance(0.8)) {
      prompt = prompts[rng.between(0, static_cast<int32_t>(prompts.size()) - 1)];
      if (rng.chance(0.7)) prompt.resize(rng.between(0, static_cast<int32_t>(prompt.size())));
    }
    const auto room = 100 - static_cast<int32_t>(prompt.size());
    for (int32_t more = prompt.empty() ? rng.log_between(1, room) : rng.between(0, std::min(room, 30)); more > 0;
         --more)
      prompt.push_back(rng.between(1, 3));
    if (prompt.empty()) prompt.push_back(1);
    prompts.push_back(prompt);
    auto request = make_request(1, rng.between(1, max_tokens));
    request->prompt_tokens = prompt;
    const int64_t needed =
        ceil_div(static_cast<int64_t>(prompt.size()) + *request->params.stop.max_tokens, config.block_size);
    num_blocks += needed + 1;  // and one to copy from
    most = std::max(most, needed);
    tree.requests.push_back(request);
  }
  tree.holds_all = share == 1;
  config.num_blocks = static_cast<int32_t>(std::max<int64_t>(most, static_cast<int64_t>(share * num_blocks)));
  tree.model.vocab_size = 4;
  return tree;
}

// The same for a model whose layers see windows, all or some.
Tree with_windows(Tree tree, uint64_t seed) {
  TestRng rng(seed ^ 0x77);
  tree.model.num_hidden_layers = 2;
  for (const bool is_full : {false, rng.chance(0.5)}) tree.model.layers.emplace_back().window = is_full ? 0 : 40;
  tree.config.windows = group_layers(tree.model, tree.config.max_model_len).windows;
  tree.config.num_blocks *= static_cast<int32_t>(tree.config.windows.size());
  return tree;
}

// The same with a pool of the host's memory, of any size, for preempted sequences.
Tree with_swap(Tree tree, uint64_t seed) {
  TestRng rng(seed ^ 0x73);
  tree.config.preemption = PreemptionMode::kSwap;
  tree.config.num_host_blocks = rng.between(0, tree.config.num_blocks);
  return tree;
}

// Runs a tree, step by step. Of each sequence that joins it says where it should have begun.
class Run {
 public:
  Run(const Tree& tree, double ahead_rate, uint64_t seed)
      : tree_(tree), rng_(seed), ahead_rate_(ahead_rate), scheduler_(tree.config) {
    const ModelConfig& model = tree.model;
    LedgerOptions options;
    options.check_every_slot = true;
    backend_ = make_ledger_backend(options);
    LoadOptions load;
    load.block_size = tree.config.block_size;
    load.num_blocks_override = tree.config.num_blocks;
    load.max_model_len = tree.config.max_model_len;
    load.groups_layers = true;
    load.swap_space_gib = 1 << 20;
    REQUIRE(backend_->load(model, load).ok());
    for (const auto& request : tree.requests)
      REQUIRE(std::get<SeqId>(scheduler_.add(request, 0)) == static_cast<SeqId>(num_added_++));
    while (step()) {
    }
    REQUIRE(!scheduler_.has_work());
    REQUIRE(scheduler_.num_free_blocks() == tree.config.num_blocks);
    const LedgerModel reference = make_ledger_model(model, options);
    for (size_t i = 0; i < tree.requests.size(); ++i)
      REQUIRE(answers_[i] == ledger_reference(reference, *tree.requests[i], tree.config.max_model_len).tokens);
  }

  const PromptTokens& prompt_tokens() const { return scheduler_.prompt_tokens(); }
  int64_t num_evictions() const { return scheduler_.num_evictions(); }
  int64_t num_preemptions() const { return scheduler_.num_preemptions_total(); }
  int64_t num_checked() const { return num_checked_; }
  int64_t num_hidden() const { return num_hidden_; }
  int64_t num_copies() const { return num_copies_; }
  int64_t num_swaps_in() const { return num_swaps_in_; }

 private:
  bool step() {
    if (num_in_flight_ == 0 && !submit()) return false;
    if (num_in_flight_ == 1 && rng_.chance(ahead_rate_)) submit();
    StepOutput output;
    REQUIRE(backend_->wait(&output).ok());
    std::vector<SequenceUpdate> updates;
    for (const SequenceUpdate& update : note_tokens(output, &updates)) answers_[update.seq].push_back(update.token);
    --num_in_flight_;
    check();
    return true;
  }

  const std::vector<SequenceUpdate>& note_tokens(const StepOutput& output, std::vector<SequenceUpdate>* updates) {
    const StepPlan& plan = plans_[(num_steps_ - num_in_flight_) % 2];
    // A sequence that ends now leaves all that it computed: its known tokens but the last, which has no row yet, and
    // that one too where a plan in flight holds it.
    std::map<SeqId, int32_t> num_in_flight;
    for (const SampleGroup& group : plan.groups)
      if (const Sequence* sequence = scheduler_.find(group.seq)) num_in_flight[group.seq] = sequence->num_in_flight;
    std::map<SeqId, Tokens> known;
    for (const auto& [seq, count] : num_in_flight) known[seq] = known_tokens(*scheduler_.find(seq));
    scheduler_.apply(plan, output, updates);
    for (const SequenceUpdate& update : *updates) {
      known[update.seq].push_back(update.token);
      if (!update.finish) continue;
      if (num_in_flight[update.seq] == 1) known[update.seq].pop_back();
      left_[update.seq] = known[update.seq];
    }
    return *updates;
  }

  static Tokens known_tokens(const Sequence& sequence) {
    Tokens tokens = sequence.request->prompt_tokens;
    tokens.insert(tokens.end(), sequence.output_tokens.begin(), sequence.output_tokens.end());
    return tokens;
  }

  // Everything that can be found before a plan is made.
  std::map<SeqId, Tokens> ready() const {
    std::map<SeqId, Tokens> all = left_;
    for (const SeqId seq : scheduler_.running_ids()) {
      const Sequence& sequence = *scheduler_.find(seq);
      const int32_t num_full = sequence.num_reusable_tokens() / tree_.config.block_size * tree_.config.block_size;
      const bool is_prompt = sequence.num_computed_tokens >= sequence.num_prompt_tokens();
      all[seq] = known_tokens(sequence);
      all[seq].resize(std::max(num_full, is_prompt ? sequence.num_prompt_tokens() : 0));
    }
    return all;
  }

  bool submit() {
    std::map<SeqId, Tokens> known = ready();
    const std::vector<SeqId> ran = scheduler_.running_ids();
    StepPlan& plan = plans_[num_steps_ % 2];
    if (!scheduler_.schedule(0, false, &plan)) return check(), false;
    check();
    num_copies_ += static_cast<int64_t>(plan.block_copies.size());
    num_swaps_in_ += static_cast<int64_t>(plan.swaps_in.size());
    std::map<SeqId, Tokens> planned = known;
    for (int32_t e = 0; e < plan.num_entries(); ++e) {
      const StepEntry& entry = plan.entries[e];
      const Sequence& sequence = *scheduler_.find(entry.seq);
      const bool joins = std::find(ran.begin(), ran.end(), entry.seq) == ran.end();
      if (joins && tree_.holds_all) check_begin(entry.base, sequence, known, planned);
      // Answers can be found when they have been seen.
      if (entry.follows != kNoGroup || entry.base >= sequence.num_prompt_tokens()) continue;
      Tokens tokens = known_tokens(sequence);
      // With the rest of a prompt, what was computed of its last block so far can be found.
      if (!joins) known[entry.seq].assign(tokens.begin(), tokens.begin() + entry.base);
      tokens.resize(entry.base + plan.num_rows(e));
      planned[entry.seq] = tokens;
    }
    REQUIRE(backend_->submit(plan).ok());
    ++num_steps_;
    ++num_in_flight_;
    return true;
  }

  // Whole blocks of what this plan computes, tokens of what lies there; and less than half a block was given away.
  void check_begin(int32_t begin, const Sequence& sequence, const std::map<SeqId, Tokens>& known,
                   const std::map<SeqId, Tokens>& planned) {
    const Tokens& prompt = sequence.request->prompt_tokens;
    const auto longest = [&](const std::map<SeqId, Tokens>& all) {
      int32_t most = 0;
      for (const auto& [seq, tokens] : all) most = std::max(most, common(tokens, prompt));
      return std::min(most, sequence.num_prompt_tokens() - 1);
    };
    const int32_t block_size = tree_.config.block_size;
    const int32_t num_planned = longest(planned), num_ready = longest(known);
    const int32_t expected = std::max(num_planned / block_size * block_size, num_ready);
    REQUIRE(begin <= expected);
    REQUIRE((num_planned == begin || 2 * (num_planned - begin) < block_size));
    // A block that this plan writes may hide one that is ready from a search.
    num_hidden_ += begin < expected;
    ++num_checked_;
  }

  void check() const {
    const Status status = scheduler_.check_integrity();
    REQUIRE_MESSAGE(status.ok(), status.message());
  }

  const Tree& tree_;
  TestRng rng_;
  const double ahead_rate_;
  Scheduler scheduler_;
  std::unique_ptr<Backend> backend_;
  StepPlan plans_[2];
  int64_t num_steps_ = 0, num_checked_ = 0, num_hidden_ = 0, num_copies_ = 0, num_swaps_in_ = 0;
  size_t num_added_ = 0;
  int32_t num_in_flight_ = 0;
  std::map<SeqId, Tokens> left_;  // by sequences that have ended
  std::map<size_t, Tokens> answers_;
};

// Prompt tokens that must be computed if each row finds all that the rows before it have: a trie's nodes, and the last
// token of each row.
int64_t least_computed(const Tree& tree) {
  int64_t count = 0;
  for (size_t i = 0; i < tree.requests.size(); ++i) {
    const Tokens& prompt = tree.requests[i]->prompt_tokens;
    int32_t most = 0;
    for (size_t j = 0; j < i; ++j) most = std::max(most, common(prompt, tree.requests[j]->prompt_tokens));
    count += static_cast<int64_t>(prompt.size()) - std::min(most, static_cast<int32_t>(prompt.size()) - 1);
  }
  return count;
}

}  // namespace

TEST_CASE("where the pool holds all, prompts cost what their trie has: each token once") {
  int64_t num_exact = 0, num_saved = 0, num_checked = 0, num_hidden = 0;
  for (uint64_t seed = 1; seed <= 3000; ++seed) {
    CAPTURE(seed);
    const Tree plain = random_tree(seed, 1, 1.0), tree = seed % 3 == 1 ? with_windows(plain, seed) : plain;
    const Run run(tree, seed % 3 == 0 ? 0.0 : 1.0, seed);
    const PromptTokens& prompt = run.prompt_tokens();
    REQUIRE(run.num_evictions() == 0);
    REQUIRE(prompt.num_computed == prompt.num_asked - prompt.num_saved);
    num_saved += prompt.num_saved;
    // With larger blocks, less than half a block is given away by rows that join in one step.
    const int64_t least = least_computed(tree);
    const int32_t block_size = tree.config.block_size;
    const bool is_exact = block_size <= 2 || tree.config.max_num_seqs == 1;
    if (is_exact) REQUIRE(prompt.num_computed == least);
    REQUIRE(prompt.num_computed >= least);
    REQUIRE(prompt.num_computed <= least + (block_size - 1) / 2 * static_cast<int64_t>(tree.requests.size()));
    num_exact += is_exact;
    num_checked += run.num_checked();
    num_hidden += run.num_hidden();
  }
  MESSAGE(num_exact << " trees exactly, " << num_saved << " tokens saved");
  CHECK(num_exact > 500);
  CHECK(num_checked > 20000);
  CHECK(num_hidden < num_checked / 1000);
}

TEST_CASE("in the planned order a pool that holds the longest row and what others have of their own is as good") {
  int64_t num_exact = 0, num_evictions = 0, num_worse = 0;
  for (uint64_t seed = 1; seed <= 2500; ++seed) {
    CAPTURE(seed);
    Tree tree = random_tree(seed, 1, 0);
    tree.config.batching = BatchingMode::kContinuous;
    const int32_t block_size = tree.config.block_size;
    const std::vector<std::shared_ptr<const Request>> in_file_order = tree.requests;
    PrefixIndex index(1 << 20);
    std::vector<PlannedRow> rows;
    for (const auto& request : in_file_order)
      rows.push_back({static_cast<int32_t>(rows.size()), index.add(request->prompt_tokens), 1});
    tree.requests.clear();
    for (const int32_t row : order_rows(Schedule::kPrefix, rows, tree.config.max_num_seqs))
      tree.requests.push_back(in_file_order[row]);
    // A row's own blocks hold the tokens that no other begins with, its answer, and parts of blocks at both ends.
    int64_t longest = 0, own = 0;
    for (const auto& request : tree.requests) {
      int32_t most = 0;
      for (const auto& other : tree.requests)
        if (other != request) most = std::max(most, common(request->prompt_tokens, other->prompt_tokens));
      const auto num_tokens = static_cast<int64_t>(request->prompt_tokens.size()) + 1;
      longest = std::max(longest, ceil_div(num_tokens, int64_t{block_size}));
      own = std::max(own, ceil_div(num_tokens - most, int64_t{block_size}) + 2);
    }
    tree.config.num_blocks = static_cast<int32_t>(longest + tree.config.max_num_seqs * own);
    const Run run(tree, 0.0, seed);
    const int64_t least = least_computed(tree);
    REQUIRE(run.num_preemptions() == 0);
    if (block_size <= 2 || tree.config.max_num_seqs == 1) {
      REQUIRE(run.prompt_tokens().num_computed == least);
      ++num_exact;
    }
    REQUIRE(run.prompt_tokens().num_computed <=
            least + (block_size - 1) / 2 * static_cast<int64_t>(tree.requests.size()));
    num_evictions += run.num_evictions();
    tree.requests = in_file_order;
    num_worse += Run(tree, 0.0, seed).prompt_tokens().num_computed > run.prompt_tokens().num_computed;
  }
  MESSAGE(num_exact << " trees exactly, " << num_evictions << " evictions, in file order more for " << num_worse);
  CHECK(num_exact > 400);
  CHECK(num_evictions > 1000);
  CHECK(num_worse > 50);
}

TEST_CASE("every row begins behind the longest prefix that was computed before, answers included") {
  int64_t num_checked = 0, num_copies = 0, num_evictions = 0, num_preemptions = 0;
  for (uint64_t seed = 1; seed <= 3000; ++seed) {
    CAPTURE(seed);
    const Tree tree = random_tree(seed, 24, seed % 2 == 0 ? 1.0 : 0.3);
    const Run run(tree, seed % 3 == 0 ? 0.0 : 1.0, seed);
    num_checked += run.num_checked();
    num_copies += run.num_copies();
    num_evictions += run.num_evictions();
    num_preemptions += run.num_preemptions();
  }
  MESSAGE(num_checked << " beginnings, " << num_copies << " copies, " << num_evictions << " evictions, "
                      << num_preemptions << " preemptions");
  CHECK(num_checked > 10000);
  CHECK(num_copies > 3000);
  CHECK(num_evictions > 3000);
  CHECK(num_preemptions > 100);
}

TEST_CASE("with swapping, preempted rows compute less again, and nobody more; all answers are those of the reference") {
  int64_t with = 0, without = 0, num_swaps_in = 0, num_with_windows = 0;
  for (uint64_t seed = 1; seed <= 2000; ++seed) {
    CAPTURE(seed);
    const Tree plain = random_tree(seed, 24, (seed % 5) / 10.0);
    const Tree tree = seed % 3 == 1 ? with_windows(plain, seed) : plain;
    const Run recomputed(tree, 1.0, seed), swapped(with_swap(tree, seed), 1.0, seed);
    without += recomputed.prompt_tokens().num_computed;
    with += swapped.prompt_tokens().num_computed;
    num_swaps_in += swapped.num_swaps_in();
    num_with_windows += swapped.num_swaps_in() > 0 && tree.config.windows[0] > 0;
    REQUIRE(recomputed.num_swaps_in() == 0);
  }
  MESSAGE(with << " prompt tokens computed instead of " << without << ", " << num_swaps_in << " blocks brought back, in "
               << num_with_windows << " trees where all layers see windows");
  CHECK(with < without);
  CHECK(num_swaps_in > 1000);
  CHECK(num_with_windows > 20);
}

TEST_CASE("no row computes more of its prompt than without a cache, on pools of any size") {
  int64_t with = 0, without = 0;
  for (uint64_t seed = 1; seed <= 2000; ++seed) {
    CAPTURE(seed);
    Tree tree = random_tree(seed, 24, (seed % 10) / 10.0);
    const Run cached(tree, 1.0, seed);
    tree.config.enable_prefix_caching = false;
    const Run plain(tree, 1.0, seed);
    with += cached.prompt_tokens().num_computed;
    without += plain.prompt_tokens().num_computed;
    if (cached.num_preemptions() == 0)
      REQUIRE(cached.prompt_tokens().num_computed <= plain.prompt_tokens().num_computed);
    REQUIRE(plain.prompt_tokens().num_saved == 0);
  }
  MESSAGE(with << " prompt tokens computed instead of " << without);
  CHECK(with < without);
}

}  // namespace llmb::test
