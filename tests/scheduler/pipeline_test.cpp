// A pipeline of stages over the ledger, on virtual time: each stage takes as long for a plan as its rows say, and runs
// the plans in order. How idle stages are, with as many plans in flight as there are stages.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "backend/ledger/ledger_backend.h"
#include "base/check.h"
#include "core/plans_in_flight.h"
#include "core/rank_part.h"
#include "core/row_parts.h"
#include "scheduler/scheduler.h"
#include "tests/support/workload.h"

namespace llmb::test {

namespace {

constexpr int32_t kMaxNumSeqs = 64, kNumBlocks = 4096;

struct PipelineRun {
  double ms = 0;          // of the whole run
  double idle_share = 0;  // of all stages together, while it went on
  int32_t most_in_flight = 0;
};

class Pipeline {
 public:
  // num_in_flight: plans at most. layers: of each stage, where they differ; head_layers: as many layers' work as the
  // last one's head makes of a row
  Pipeline(int32_t num_stages, int32_t num_in_flight, std::vector<int64_t> layers = {}, double head_layers = 0,
           Proposer* proposer = nullptr)
      : proposer_(proposer),
        layers_(std::move(layers)),
        head_layers_(head_layers),
        ends_ms_(static_cast<size_t>(num_stages)) {
    LedgerOptions ledger;
    ledger.max_plans_in_flight = plans_in_flight_of(num_in_flight);
    backend_ = make_ledger_backend(ledger);
    ModelConfig model;
    model.vocab_size = 32000;
    LoadOptions load;
    load.num_blocks_override = kNumBlocks;
    load.max_num_seqs = kMaxNumSeqs;
    LLMB_CHECK(backend_->load(model, load).ok());
    SchedulerConfig config;
    config.max_num_seqs = kMaxNumSeqs;
    config.max_num_batched_tokens = 1024;
    config.num_blocks = kNumBlocks;
    config.num_alternating = num_in_flight;
    scheduler_ = std::make_unique<Scheduler>(config, proposer);
  }

  PipelineRun run(int32_t num_requests, int32_t num_prompt_tokens, int32_t num_answer_tokens) {
    for (int32_t i = 0; i < num_requests; ++i)
      LLMB_CHECK(std::holds_alternative<SeqId>(
          scheduler_->add(make_request(num_prompt_tokens, num_answer_tokens + i % 7), 0)));
    PipelineRun result;
    StepOutput output;
    std::vector<SequenceUpdate> updates;
    int64_t num_submitted = 0, num_finished = 0;
    while (true) {
      while (num_submitted - num_finished < scheduler_->max_plans_in_flight()) {
        StepPlan& plan = plans_[num_submitted % kMaxAlternatingPlans];
        if (!scheduler_->schedule(now_ms_, false, &plan)) break;
        LLMB_CHECK(backend_->submit(plan).ok());
        plan_ends_ms_[num_submitted++ % kMaxAlternatingPlans] = end_of(plan);
      }
      if (num_submitted == num_finished) break;
      result.most_in_flight = std::max(result.most_in_flight, static_cast<int32_t>(num_submitted - num_finished));
      now_ms_ = plan_ends_ms_[num_finished % kMaxAlternatingPlans];
      LLMB_CHECK(backend_->wait(&output).ok());
      scheduler_->apply(plans_[num_finished++ % kMaxAlternatingPlans], output, &updates);
      if (proposer_ != nullptr) proposer_->on_step(StepPlan(), output, 0, 0);
    }
    result.ms = now_ms_;
    result.idle_share = 1 - busy_ms_ / (now_ms_ * static_cast<double>(ends_ms_.size()));
    return result;
  }

 private:
  // Weights that each step reads, and rows: 64 rows take twice as long as 8.
  double end_of(const StepPlan& plan) {
    double end_ms = now_ms_;
    for (size_t stage = 0; stage < ends_ms_.size(); ++stage) {
      double ms = 10 + 0.2 * plan.num_tokens();
      if (!layers_.empty()) ms *= static_cast<double>(layers_[stage]);
      if (stage + 1 == ends_ms_.size()) ms += head_layers_ * (10 + 0.2 * plan.num_samples());
      end_ms = ends_ms_[stage] = std::max(ends_ms_[stage], end_ms) + ms;
      busy_ms_ += ms;
    }
    return end_ms;
  }

  Proposer* const proposer_;
  const std::vector<int64_t> layers_;  // [num_stages], or empty: one each
  const double head_layers_;

  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Scheduler> scheduler_;
  std::array<StepPlan, kMaxAlternatingPlans> plans_;
  std::array<double, kMaxAlternatingPlans> plan_ends_ms_ = {};
  std::vector<double> ends_ms_;  // [num_stages]
  double now_ms_ = 0, busy_ms_ = 0;
};

// Drafts nothing, but needs a backend with nothing in flight for a while.
class IdleProposer final : public Proposer {
 public:
  void begin_plan(const PlanOutlook& outlook) override {
    CHECK(outlook.num_alternating == 4);
    CHECK(outlook.alternates == !forms_one_plan());
    if (outlook.alternates && num_steps >= 40) most_after = std::max(most_after, outlook.num_in_flight + 1);
    if (outlook.alternates) return;
    CHECK(outlook.num_in_flight == 0);
    most_decoding = std::max(most_decoding, outlook.decoding.size());
    ++num_whole;
  }
  void propose(const Sequence&, int32_t, Drafts*) override {}
  bool must_see(const Sequence&) const override { return false; }
  bool forms_one_plan() const override { return num_steps >= 20 && num_steps < 40; }
  void on_step(const StepPlan&, const StepOutput&, double, double) override { ++num_steps; }

  int32_t num_steps = 0, num_whole = 0, most_after = 0;
  size_t most_decoding = 0;
};

}  // namespace

TEST_CASE("with as many plans in flight as stages these are idle less than a tenth of the time") {
  for (const int32_t num_stages : {2, 3, 4, 8}) {
    CAPTURE(num_stages);
    const PipelineRun run = Pipeline(num_stages, num_stages).run(256, 40, 60);
    CHECK(run.most_in_flight == num_stages);
    CHECK(run.idle_share < 0.1);
    MESSAGE(num_stages << " stages: idle " << static_cast<int>(100 * run.idle_share) << " %");
  }
}

TEST_CASE("of more stages than plans in flight some are idle") {
  const PipelineRun two = Pipeline(4, 2).run(256, 40, 60), four = Pipeline(4, 4).run(256, 40, 60);
  CHECK(two.idle_share > 0.45);
  CHECK(four.ms < 0.85 * two.ms);  // a plan of half as many rows takes 0.8 of the time
}

TEST_CASE("prompts that arrive together are divided among the plans, so that no stage waits for one of them all") {
  const PipelineRun run = Pipeline(4, 4).run(kMaxNumSeqs, 15, 1);  // 960 tokens: one plan would hold them
  CHECK(run.most_in_flight == 4);
}

TEST_CASE("stages that are balanced for the steps that take most of the time are idle less of it") {
  ModelConfig config;  // SmolLM2-135M's shape
  config.num_attention_heads = 9;
  config.num_key_value_heads = 3;
  config.head_dim = 64;
  config.hidden_size = 576;
  config.intermediate_size = 1536;
  config.num_hidden_layers = 30;
  config.vocab_size = 49152;
  config.activation.gated = true;
  const double head_layers = 30.0 * config.vocab_size * config.hidden_size / static_cast<double>(row_cost(config).of_row);
  for (const int32_t num_stages : {2, 4})
    for (const auto& [num_prompt, num_answer] : {std::pair(400, 20), std::pair(900, 5), std::pair(60, 60)}) {
      const auto run = [&](StageRows rows) {
        std::vector<int64_t> layers;
        for (int32_t stage = 0; stage < num_stages; ++stage)
          layers.push_back(share_of(config, {stage, 1, num_stages, 1, false, rows}).layers.count());
        return Pipeline(num_stages, num_stages, layers, head_layers).run(256, num_prompt, num_answer);
      };
      // Reading weights takes as long as 50 rows.
      const double of_answers = num_answer * (1 + 50.0 * num_stages / kMaxNumSeqs);
      const PipelineRun before = run({});
      const PipelineRun after = run({static_cast<int32_t>(1000 * num_prompt / (num_prompt + of_answers)), 0});
      MESSAGE(num_stages << " stages, " << num_prompt << " + " << num_answer << " tokens: idle "
                         << 100 * before.idle_share << " %, balanced for these " << 100 * after.idle_share
                         << " %, time x " << after.ms / before.ms);
      CHECK(after.ms <= before.ms);
    }
}

TEST_CASE("while a proposer needs an idle backend one plan has all sequences, then there are as many plans as before") {
  IdleProposer proposer;
  const PipelineRun run = Pipeline(4, 4, {}, 0, &proposer).run(kMaxNumSeqs, 15, 40);
  CHECK(run.most_in_flight == 4);
  CHECK((proposer.num_whole >= 15 && proposer.num_whole <= 20));  // three others were in flight
  CHECK(proposer.most_decoding == kMaxNumSeqs);
  CHECK(proposer.most_after == 4);
}

TEST_CASE("fewer sequences than stages: a plan each") {
  CHECK(Pipeline(4, 4).run(3, 5, 9).most_in_flight == 3);
}

}  // namespace llmb::test
