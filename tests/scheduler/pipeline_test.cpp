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
  // num_in_flight: plans at most
  Pipeline(int32_t num_stages, int32_t num_in_flight) : ends_ms_(static_cast<size_t>(num_stages)) {
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
    scheduler_ = std::make_unique<Scheduler>(config);
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
    }
    result.ms = now_ms_;
    result.idle_share = 1 - busy_ms_ / (now_ms_ * static_cast<double>(ends_ms_.size()));
    return result;
  }

 private:
  // Weights that each step reads, and rows: 64 rows take twice as long as 8.
  double end_of(const StepPlan& plan) {
    const double ms = 10 + 0.2 * plan.num_tokens();
    double end_ms = now_ms_;
    for (double& stage_ms : ends_ms_) end_ms = stage_ms = std::max(stage_ms, end_ms) + ms;
    busy_ms_ += ms * static_cast<double>(ends_ms_.size());
    return end_ms;
  }

  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Scheduler> scheduler_;
  std::array<StepPlan, kMaxAlternatingPlans> plans_;
  std::array<double, kMaxAlternatingPlans> plan_ends_ms_ = {};
  std::vector<double> ends_ms_;  // [num_stages]
  double now_ms_ = 0, busy_ms_ = 0;
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

TEST_CASE("fewer sequences than stages: a plan each") {
  CHECK(Pipeline(4, 4).run(3, 5, 9).most_in_flight == 3);
}

}  // namespace llmb::test
