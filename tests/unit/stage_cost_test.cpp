#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <vector>

#include "backend/ledger/ledger_backend.h"
#include "base/clock.h"
#include "core/plans_in_flight.h"
#include "core/step_cost.h"
#include "engine/engine.h"
#include "tests/support/listed_requests.h"
#include "tests/support/tiny_model.h"

namespace llmb::test {

namespace {

constexpr int32_t kNumStages = 4;

double stage_ms(int32_t num_rows) { return 10.0 + num_rows; }

// The ledger behind stages of a pipeline on a virtual clock. Each stage takes stage_ms() of a plan, one plan at a time.
class StagedBackend final : public Backend {
 public:
  explicit StagedBackend(VirtualClock& clock) : clock_(clock) {
    LedgerOptions options;
    options.max_plans_in_flight = plans_in_flight_of(kNumStages);
    inner_ = make_ledger_backend(options);
  }

  Status load(const ModelConfig& config, const LoadOptions& options) override { return inner_->load(config, options); }
  const BackendInfo& info() const override { return inner_->info(); }
  Status submit(const StepPlan& plan) override {
    double end_ms = clock_.now_ms();
    for (double& stage_end_ms : stage_ends_ms_)
      end_ms = stage_end_ms = std::max(end_ms, stage_end_ms) + stage_ms(plan.num_tokens());
    ends_ms_[num_submitted_++ % kMaxAlternatingPlans] = end_ms;
    return inner_->submit(plan);
  }
  Status wait(StepOutput* output) override {
    clock_.sleep_until_ms(ends_ms_[num_fetched_++ % kMaxAlternatingPlans]);
    return inner_->wait(output);
  }

 private:
  VirtualClock& clock_;
  std::unique_ptr<Backend> inner_;
  std::array<double, kNumStages> stage_ends_ms_ = {};
  std::array<double, kMaxAlternatingPlans> ends_ms_ = {};
  int64_t num_submitted_ = 0, num_fetched_ = 0;
};

// The costs that a run of so many answers at once learned.
StepCost learned_cost(int32_t num_requests) {
  VirtualClock clock;
  ModelConfig config = tiny_config();
  config.vocab_size = 96;
  StagedBackend backend(clock);
  EngineOptions options;
  options.scheduler.max_num_seqs = 16;
  options.scheduler.max_num_batched_tokens = 64;
  options.scheduler.max_model_len = 128;
  options.scheduler.num_blocks = 128;
  options.scheduler.num_alternating = kNumStages;
  options.model = config;
  StepCost cost;
  options.step_cost = &cost;
  LoadOptions load;
  load.num_blocks_override = options.scheduler.num_blocks;
  REQUIRE(backend.load(config, load).ok());
  std::vector<std::shared_ptr<Request>> requests;
  for (int32_t i = 0; i < num_requests; ++i) {
    auto request = std::make_shared<Request>();
    request->prompt_tokens = {i, 7};
    request->params.sampling.temperature = 0;
    request->params.stop.max_tokens = 60;
    request->params.stop.ignore_eos = true;
    requests.push_back(request);
  }
  ListSource source(requests);
  ListSink sink;
  const std::atomic<int> interrupted{0};
  Engine engine(options, backend, nullptr, clock, source, sink, interrupted, {});
  REQUIRE(engine.run().ok());
  return cost;
}

}  // namespace

TEST_CASE("over stages of a pipeline a step costs what a stage takes, however many plans are in flight") {
  for (const int32_t num_requests : {1, 2, 3, 4, 16}) {
    const int32_t num_rows = std::max(1, num_requests / kNumStages);  // of a plan
    const double ms = learned_cost(num_requests).ms(num_rows);
    CHECK_MESSAGE(ms == doctest::Approx(stage_ms(num_rows)).epsilon(0.03), num_requests << " requests: " << ms);
  }
}

}  // namespace llmb::test
