// Drafts by a second model, by the model's first layers, by heads and by lookahead, on the CPU: the same bytes as
// without, and who drafts with the target's weights is right.
#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "tests/support/model_drafters.h"
#include "tests/support/thread_ranks.h"

namespace llmb::test {

namespace {

std::string lines() {
  const std::vector<std::string> ways = {
      R"("max_tokens":40,"temperature":0)",
      R"("max_tokens":40,"temperature":0.9)",
      R"("max_tokens":30,"temperature":1,"top_p":0.9,"frequency_penalty":0.3,"logprobs":1)",
      R"("max_tokens":30,"temperature":0,"repetition_penalty":1.2,"min_tokens":20)",
      R"("max_tokens":25,"temperature":0,"stop":["and"])",
      R"("max_tokens":60,"temperature":0.7,"ignore_eos":true)",
      R"("max_tokens":1)",
      R"("max_tokens":20,"temperature":0,"prompt_logprobs":1)",  // the target's alone: a draft model scores no prompt
      R"("max_tokens":40,"temperature":0,"structured_outputs":{"regex":"[A-Z][a-z]+( [a-z]{2,8}){6,30}\\."})",
      R"("max_tokens":40,"temperature":0.9,"structured_outputs":{"json":{"properties":{"a":{"type":"string"}}}})",
  };
  std::string text;
  for (size_t i = 0; i < ways.size(); ++i)
    text += R"({"prompt":"Once upon a time","seed":)" + std::to_string(i) + "," + ways[i] +
            R"(,"return_token_ids":true})"
            "\n";
  return text;
}

// A CPU's, which counts the rows of all plans.
class CountedRows final : public Backend {
 public:
  static inline int64_t num_rows = 0;
  Status load(const ModelConfig& config, const LoadOptions& options) override { return inner_->load(config, options); }
  const BackendInfo& info() const override { return inner_->info(); }
  Status submit(const StepPlan& plan) override {
    num_rows += plan.num_tokens();
    return inner_->submit(plan);
  }
  Status wait(StepOutput* output) override { return inner_->wait(output); }

 private:
  const std::unique_ptr<Backend> inner_ = make_cpu_backend();
};

// The run's drafts.
SpeculationMetrics run_same(const std::string& expected, EngineJobOptions o, const DraftSetup& setup,
                            const std::string& rows) {
  const SteadyClock clock;
  StepCost cost;
  const auto speculator = make_speculator(setup, &o, cost, clock);
  o.proposer = speculator.get();
  o.step_cost = &cost;
  o.scheduler.max_num_drafts = 64;
  o.scheduler.allows_trees = has_trees(setup);
  const EngineJob job(rows);
  const EngineJobOutcome outcome = job.run(o);
  REQUIRE_MESSAGE(outcome.status.ok(), outcome.status.message());
  CHECK(job.output() == expected);
  return speculator->metrics();
}

// Those by the model.
SpeculationMetrics::Kind check_same(const std::string& expected, const EngineJobOptions& o, const DraftSetup& setup,
                                    const std::string& rows = lines()) {
  return run_same(expected, o, setup, rows).drafters.back();
}

}  // namespace

TEST_CASE("drafts by another model change no byte, at any batch, in small pools, beyond its context, beside lookup") {
  EngineJobOptions o = bundled_model();
  const EngineJob plain(lines());
  REQUIRE(plain.run(o).status.ok());
  const std::string expected = plain.output();
  for (const auto& [max_num_seqs, max_tokens] : {std::pair{1, 4}, {4, 1}, {64, 16}}) {
    o.scheduler.max_num_seqs = max_num_seqs;
    const SpeculationMetrics::Kind drafts = check_same(expected, o, {.max_tokens = max_tokens});
    CHECK(drafts.num_accepted > drafts.num_drafted / 10);
  }
  CHECK(check_same(expected, o, {.looks_up = true}).num_drafted > 0);
  CHECK(check_same(expected, o, {.num_blocks = 8}).num_drafted > 0);  // not all sequences fit
  CHECK(check_same(expected, o, {.max_num_batched_tokens = 3}).num_drafted > 0);
  const int64_t all = check_same(expected, o, {}).num_drafted;
  CHECK(check_same(expected, o, {.max_model_len = 40}).num_drafted < all);
  const SpeculationMetrics::Kind trees = check_same(expected, o, {.max_tokens = 16, .is_tree = true});
  CHECK(trees.num_accepted > trees.num_drafted / 40);
  CHECK(check_same(expected, o, {.max_tokens = 8, .looks_up = true, .is_tree = true}).num_drafted > 0);
  o.scheduler.num_blocks = 8;  // the target's sequences are preempted
  check_same(expected, o, {});
}

TEST_CASE("drafts that share the target's blocks change no byte, in pools of any size, with swaps and without") {
  EngineJobOptions o = bundled_model();
  o.scheduler.enable_prefix_caching = true;
  std::string rows = lines();
  for (int i = 0; i < 6; ++i)
    rows += R"({"prompt":"Once upon a time there was a little girl who lived in a small house near the forest","n":)" +
            std::to_string(1 + i % 3) + R"(,"max_tokens":40,"temperature":0.8,"seed":)" + std::to_string(i) + "}\n";
  const EngineJob plain(rows);
  REQUIRE(plain.run(o).status.ok());
  DraftSetup setup;
  setup.find_lent_blocks = lent_cpu_blocks, setup.lend_blocks = lend_cpu_blocks;
  // Where there is room for all, the same is drafted as from a pool of its own.
  const SpeculationMetrics roomy = run_same(plain.output(), o, setup, rows);
  CHECK(roomy.drafters.back().num_accepted == check_same(plain.output(), o, {}, rows).num_accepted);
  CHECK(roomy.blocks.most > 4);
  CHECK(roomy.blocks.num_taken_back == 0);
  int64_t num_taken_back = 0, num_drafted_in_small = 0;
  for (const PreemptionMode mode : {PreemptionMode::kRecompute, PreemptionMode::kSwap})
    for (const int32_t num_blocks : {6, 9, 14, 24, 60}) {
      CAPTURE(num_blocks);
      o.scheduler.preemption = mode;
      o.scheduler.num_blocks = num_blocks;
      o.load.swap_space_gib = mode == PreemptionMode::kSwap ? 1 : 0;
      const SpeculationMetrics small = run_same(plain.output(), o, setup, rows);
      CHECK(small.blocks.most < num_blocks);
      num_taken_back += small.blocks.num_taken_back;
      if (num_blocks < 20) num_drafted_in_small += small.drafters.back().num_drafted;
      DraftSetup with_trees = setup;
      with_trees.looks_up = with_trees.is_tree = true;
      run_same(plain.output(), o, with_trees, rows);
    }
  CHECK(num_taken_back > 10);
  CHECK(num_drafted_in_small > 100);
  o.scheduler.num_blocks = 30;
  o.load.kv_cache_dtype = DType::kF32;  // other bits in the blocks that the draft model leaves
  const EngineJob in_f32(rows);
  REQUIRE(in_f32.run(o).status.ok());
  CHECK(run_same(in_f32.output(), o, setup, rows).blocks.most > 2);
}

TEST_CASE("a draft model computes what prompts have in common once, and drafts the same in small pools and steps") {
  EngineJobOptions o = bundled_model();
  const std::string common =
      "Once upon a time there was a little girl who lived in a small house near the forest with her mother "
      "and her old dog. One day she went out to play and found a big red ball. ";
  std::string rows;
  for (int i = 0; i < 20; ++i)
    rows += R"({"prompt":")" + common + (i % 5 == 4 ? "" : std::string(1, static_cast<char>('A' + i))) +
            R"(","max_tokens":10,"n":)" + std::to_string(1 + i % 2) + R"(,"seed":)" + std::to_string(i) + "}\n";
  const EngineJob plain(rows);
  REQUIRE(plain.run(o).status.ok());
  const auto num_common = static_cast<int64_t>(o.tokenizer->encode(common, true).size());
  REQUIRE(num_common > 40);
  const auto drafts = [&](DraftSetup setup) {
    CountedRows::num_rows = 0;
    setup.make_backend = []() -> std::unique_ptr<Backend> { return std::make_unique<CountedRows>(); };
    return check_same(plain.output(), o, setup, rows).num_accepted;
  };
  const int64_t accepted = drafts({});
  CHECK(CountedRows::num_rows < 20 * num_common);  // drafts among them; 30 texts have it
  CHECK(accepted > 20);
  // Prompts that come in pieces, to texts that stand in line; a pool that gives up what it kept.
  CHECK(drafts({.max_num_batched_tokens = 40}) > 0);
  CHECK(CountedRows::num_rows < 20 * num_common);
  CHECK(drafts({.num_blocks = 9}) > 0);
  CHECK(drafts({.model = "/data/model", .max_num_batched_tokens = 40}) > 60);
  CHECK(check_same(plain.output(), o, {.model = "/data/model"}, rows).num_accepted ==
        check_same(plain.output(), o, {.model = "/data/model"}, rows).num_drafted);
}

TEST_CASE("a draft model with the target's weights draws what the target draws: every draft is right") {
  EngineJobOptions o = bundled_model();
  const EngineJob plain(lines());
  REQUIRE(plain.run(o).status.ok());
  const SpeculationMetrics::Kind drafts = check_same(plain.output(), o, {.model = "/data/model"});
  CHECK(drafts.num_drafted > 50);
  // A stop string ends an answer amid drafts that are right, too.
  CHECK(drafts.num_accepted == drafts.num_drafted);
}

TEST_CASE("the first layers draft over the target's keys and values: no byte differs, all layers are always right") {
  EngineJobOptions o = bundled_model();
  const EngineJob plain(lines());
  REQUIRE(plain.run(o).status.ok());
  const std::string expected = plain.output();
  for (const auto& [max_num_seqs, max_tokens] : {std::pair{1, 4}, {4, 1}, {64, 16}}) {
    o.scheduler.max_num_seqs = max_num_seqs;
    const SpeculationMetrics::Kind drafts = check_same(expected, o, {.by = DraftBy::kLayers, .max_tokens = max_tokens});
    CHECK(drafts.num_drafted > 0);
  }
  CHECK(check_same(expected, o, {.by = DraftBy::kLayers, .num_layers = 3}).num_accepted > 20);
  CHECK(check_same(expected, o, {.by = DraftBy::kLayers, .max_tokens = 16, .is_tree = true}).num_drafted > 0);
  CHECK(check_same(expected, o, {.by = DraftBy::kLayers, .num_blocks = 3}).num_drafted > 0);  // not for all
  CHECK(check_same(expected, o, {.by = DraftBy::kLayers, .max_model_len = 40}).num_drafted > 0);
  const SpeculationMetrics::Kind all = check_same(expected, o, {.by = DraftBy::kLayers, .num_layers = 4});
  CHECK(all.num_drafted > 50);
  CHECK(all.num_accepted == all.num_drafted);
  o.scheduler.num_blocks = 8;  // the target's sequences are preempted
  CHECK(check_same(expected, o, {.by = DraftBy::kLayers}).num_drafted > 0);
}

TEST_CASE("over stages and context ranks first layers and heads draft as on one rank: no byte differs") {
  EngineJobOptions o = bundled_model();
  const EngineJob plain(lines());
  REQUIRE(plain.run(o).status.ok());
  const std::string expected = plain.output();
  o.load.num_threads = 1;
  const DraftSetup setups[] = {{.by = DraftBy::kLayers, .num_layers = 1},
                               {.by = DraftBy::kLayers, .num_layers = 3},
                               {.by = DraftBy::kMedusa, .max_tokens = 8}};
  std::vector<SpeculationMetrics::Kind> alone;
  for (const DraftSetup& setup : setups) alone.push_back(check_same(expected, o, setup));
  for (const auto& [num_stages, context_size] : {std::pair{2, 1}, {3, 1}, {1, 2}}) {
    CAPTURE(num_stages);
    o.make_backend = [num_stages = num_stages, context_size = context_size] {
      return make_thread_ranks(1, num_stages, 0, nullptr, context_size);
    };
    for (size_t i = 0; i < alone.size(); ++i) {
      const SpeculationMetrics::Kind drafts = check_same(expected, o, setups[i]);
      CHECK(drafts.num_drafted == alone[i].num_drafted);
      CHECK(drafts.num_accepted == alone[i].num_accepted);
    }
  }
  CHECK(alone[1].num_accepted > 20);
  CHECK(alone[2].num_accepted > 0);
}

TEST_CASE("heads change no byte, at any batch, and are right now and then") {
  EngineJobOptions o = bundled_model();
  const EngineJob plain(lines());
  REQUIRE(plain.run(o).status.ok());
  const std::string expected = plain.output();
  for (const auto& [max_num_seqs, max_tokens] : {std::pair{1, 16}, {4, 1}, {64, 8}}) {
    o.scheduler.max_num_seqs = max_num_seqs;
    const SpeculationMetrics::Kind drafts =
        check_same(expected, o, {.by = DraftBy::kMedusa, .max_tokens = max_tokens});
    CHECK(drafts.num_accepted > 0);
  }
  CHECK(check_same(expected, o, {.by = DraftBy::kMedusa, .looks_up = true}).num_drafted > 0);
  o.scheduler.max_num_batched_tokens = 3;  // fewer rows at a time than sequences
  CHECK(check_same(expected, o, {.by = DraftBy::kMedusa, .max_tokens = 1}).num_drafted > 0);
  o.scheduler.num_blocks = 8;  // sequences are preempted
  CHECK(check_same(expected, o, {.by = DraftBy::kMedusa}).num_drafted > 0);
}

TEST_CASE("lookahead changes no byte, and n-grams of its windows are right now and then") {
  EngineJobOptions o = bundled_model();
  const EngineJob plain(lines());
  REQUIRE(plain.run(o).status.ok());
  const std::string expected = plain.output();
  for (const auto& [max_num_seqs, max_tokens] : {std::pair{1, 16}, {4, 2}, {64, 8}}) {
    o.scheduler.max_num_seqs = max_num_seqs;
    CHECK(check_same(expected, o, {.by = DraftBy::kLookahead, .max_tokens = max_tokens}).num_drafted > 0);
  }
  CHECK(check_same(expected, o, {.by = DraftBy::kLookahead, .max_tokens = 16}).num_accepted > 0);
  o.scheduler.num_blocks = 8;
  check_same(expected, o, {.by = DraftBy::kLookahead});
}

}  // namespace llmb::test
