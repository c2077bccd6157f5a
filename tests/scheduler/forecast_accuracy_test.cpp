// Forecasts beside what runs take, on the ledger with a simulated device, where time is exact: from the cost of steps
// that an earlier run of another file measured.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backend/ledger/ledger_backend.h"
#include "core/step_cost.h"
#include "engine/step_metrics.h"
#include "planner/forecast.h"
#include "planner/prefix_index.h"
#include "planner/row_order.h"
#include "scheduler/scheduler.h"
#include "tests/support/test_rng.h"

namespace llmb::test {

namespace {

// ms of a step. Weights are read once a step, or multiplied by each row; the vocabulary by each sampled row; attention
// reads keys and values and multiplies them by each row that sees them.
struct Device {
  std::string name;
  double weights_read, per_row, vocabulary_read, per_sample, per_kv_token, per_pair;

  double ms(const StepPlan& plan) const {
    double kv = 0, pairs = 0;
    for (int32_t e = 0; e < plan.num_entries(); ++e) {
      const double rows = plan.num_rows(e), end = plan.max_context_len(e);
      kv += end;
      pairs += rows * (end - (rows - 1) / 2);
    }
    const double samples = plan.num_samples();
    return 0.05 + std::max(weights_read, per_row * plan.num_tokens()) +
           std::max(vocabulary_read, per_sample * samples) + std::max(per_kv_token * kv, per_pair * pairs);
  }
};

const std::vector<Device> kDevices = {
    {"processor", 12, 0.45, 4, 0.15, 2e-4, 2e-4},
    {"graphics processor", 6, 0.012, 0.3, 0.004, 3e-5, 1e-6},
};

struct File {
  std::string name;
  int32_t num_rows;
  std::function<void(TestRng&, int32_t row, Request*)> draw;
  int64_t pool_tokens = 1 << 18;
};

void add_tokens(TestRng& rng, int32_t count, Request* request) {
  for (int32_t t = 0; t < count; ++t) request->prompt_tokens.push_back(rng.between(1, 30000));
}

const std::vector<File> kFiles = {
    {"short prompts, answers of any length", 600,
     [](TestRng& rng, int32_t, Request* r) {
       add_tokens(rng, rng.between(20, 100), r);
       r->params.stop.max_tokens = rng.between(1, 200);
     }},
    {"a few very long answers", 400,
     [](TestRng& rng, int32_t, Request* r) {
       add_tokens(rng, rng.log_between(10, 500), r);
       r->params.stop.max_tokens = rng.log_between(4, 1500);
     }},
    {"questions to documents", 400,
     [](TestRng& rng, int32_t row, Request* r) {
       TestRng document(static_cast<uint64_t>(row * 7 % 10));
       add_tokens(document, 1000, r);
       add_tokens(rng, 20, r);
       r->params.stop.max_tokens = rng.between(10, 60);
     }},
    {"long prompts, short answers", 100,
     [](TestRng& rng, int32_t, Request* r) {
       add_tokens(rng, rng.between(500, 3000), r);
       r->params.stop.max_tokens = rng.between(1, 30);
     }},
    {"fewer rows than seats", 20,
     [](TestRng& rng, int32_t, Request* r) {
       add_tokens(rng, rng.between(20, 200), r);
       r->params.stop.max_tokens = rng.between(50, 150);
     }},
    {"four answers to each row", 150,
     [](TestRng& rng, int32_t, Request* r) {
       add_tokens(rng, rng.between(20, 400), r);
       r->params.stop.max_tokens = rng.between(20, 100);
       r->params.sampling.temperature = 1;
       r->params.sampling.n = 4;
       r->params.sampling.count_choices();
     }},
    {"a pool for a third of the seats", 300,
     [](TestRng& rng, int32_t, Request* r) {
       add_tokens(rng, rng.between(50, 200), r);
       r->params.stop.max_tokens = rng.between(100, 400);
     },
     8192},
};

std::vector<std::shared_ptr<Request>> draw(const File& file, uint64_t seed) {
  TestRng rng(seed);
  std::vector<std::shared_ptr<Request>> requests;
  for (int32_t i = 0; i < file.num_rows; ++i) {
    auto request = std::make_shared<Request>();
    request->line.index = i;
    request->params.sampling.temperature = 0;
    request->params.sampling.seed = seed;
    request->rng = {seed, static_cast<uint64_t>(i)};
    request->params.stop.ignore_eos = true;
    file.draw(rng, i, request.get());
    requests.push_back(std::move(request));
  }
  return requests;
}

constexpr int32_t kNumSlots = 64, kStepTokens = 1024;

struct Plan {
  Forecaster forecaster;
  std::vector<int32_t> order;
};

// Row i may have up to max_tokens(i), all of which it has where that is exact.
void plan_rows(const std::vector<std::shared_ptr<Request>>& requests, const std::function<int32_t(int32_t)>& max_tokens,
               bool is_exact, Plan* plan) {
  PrefixIndex index(16 << 20);
  std::vector<PlannedRow> planned;
  for (size_t i = 0; i < requests.size(); ++i) {
    const Request& r = *requests[i];
    const PrefixIndex::Shared shared = index.add(r.prompt_tokens);
    const auto num_tokens = static_cast<int32_t>(r.prompt_tokens.size());
    const int32_t most = max_tokens(static_cast<int32_t>(i));
    ExpectedRow row = {static_cast<int64_t>(i), static_cast<int32_t>(i), shared.prompt, num_tokens};
    row.num_shared_tokens = std::min(shared.num_tokens, num_tokens - 1);
    row.max_tokens = most;
    row.num_choices = r.params.sampling.num_choices;
    row.is_exact = is_exact;
    plan->forecaster.add(row);
    planned.push_back({static_cast<int32_t>(i), shared, int64_t{most} * row.num_choices});
  }
  plan->forecaster.end_input();
  plan->order = order_rows(Schedule::kAuto, planned, kNumSlots);
}

struct RunTimes {
  double ms = 0;
  int64_t num_steps = 0;
};

// on_end: a row has ended, after so much of the run, while the others under way have got so many tokens.
RunTimes run_rows(
    const std::vector<std::shared_ptr<Request>>& requests, const std::vector<int32_t>& order, const Device& device,
    int64_t pool_tokens, StepCost* cost,
    const std::function<void(int32_t row, double ms, int64_t num_running_tokens)>& on_end = [](int32_t, double,
                                                                                               int64_t) {}) {
  ModelConfig model;
  model.vocab_size = 32000;
  SchedulerConfig config;
  config.max_num_seqs = kNumSlots;
  config.max_num_batched_tokens = kStepTokens;
  config.max_model_len = 4096;
  config.num_blocks = static_cast<int32_t>(pool_tokens / config.block_size);
  config.enable_prefix_caching = true;
  LoadOptions load;
  load.block_size = config.block_size;
  load.num_blocks_override = config.num_blocks;
  const std::unique_ptr<Backend> backend = make_ledger_backend({});
  REQUIRE(backend->load(model, load).ok());
  Scheduler scheduler(config);
  std::vector<int32_t> row_of, choices_left;
  int64_t num_running_tokens = 0;
  StepPlan plan;
  StepOutput output;
  std::vector<SequenceUpdate> updates;
  RunTimes run;
  size_t next = 0;
  while (next < order.size() || scheduler.has_work()) {
    for (; next < order.size() && scheduler.num_waiting() < 32; ++next) {
      const auto added = scheduler.add(requests[order[next]], run.ms);
      REQUIRE(std::holds_alternative<SeqId>(added));
      row_of.resize(std::get<SeqId>(added), -1);
      row_of.resize(row_of.size() + requests[order[next]]->params.sampling.num_choices, order[next]);
      choices_left.resize(requests.size());
      choices_left[order[next]] = requests[order[next]]->params.sampling.num_choices;
    }
    REQUIRE(scheduler.schedule(run.ms, next < order.size(), &plan));
    REQUIRE(backend->submit(plan).ok());
    REQUIRE(backend->wait(&output).ok());
    const double ms = device.ms(plan);
    run.ms += ms;
    ++run.num_steps;
    cost->observe(plan.num_tokens(), static_cast<double>(num_context_tokens(plan)), ms, 0, num_attended_pairs(plan));
    scheduler.apply(plan, output, &updates);
    for (const SequenceUpdate& update : updates) {
      ++num_running_tokens;
      if (!update.finish) continue;
      const int32_t row = row_of[update.seq];
      num_running_tokens -= *requests[row]->params.stop.max_tokens;
      if (--choices_left[row] == 0) on_end(row, run.ms, num_running_tokens);
    }
  }
  return run;
}

}  // namespace

namespace {

// The cost of steps that earlier runs leave behind: of prompts and answers of many lengths.
StepCost learn_cost(const Device& device) {
  StepCost cost;
  for (const size_t f : {size_t{0}, size_t{1}, size_t{4}}) {
    const auto requests = draw(kFiles[f], 1);
    Plan plan;
    plan_rows(
        requests, [&](int32_t i) { return *requests[i]->params.stop.max_tokens; }, true, &plan);
    StepCost of_run(cost.curve());
    run_rows(requests, plan.order, device, kFiles[f].pool_tokens, &of_run);
    cost = StepCost(of_run.curve());
  }
  return cost;
}

RunLimits limits_of(const File& file) { return {kNumSlots, kStepTokens, file.pool_tokens, 16}; }

}  // namespace

TEST_CASE("where lengths are given, the time that is forecast is within 5 % of what a run takes") {
  for (const Device& device : kDevices) {
    const StepCost learned = learn_cost(device);
    for (const File& file : kFiles) {
      const auto rows = draw(file, 2);
      Plan plan;
      plan_rows(
          rows, [&](int32_t i) { return *rows[i]->params.stop.max_tokens; }, true, &plan);
      const Forecast forecast = plan.forecaster.estimate(limits_of(file), true, learned);
      StepCost cost = learned;
      const RunTimes run = run_rows(rows, plan.order, device, file.pool_tokens, &cost);
      const double error = *forecast.seconds * 1000 / run.ms - 1;
      MESSAGE(device.name << ", " << file.name << ": " << run.ms / 1000 << " s, forecast " << 100 * error << " % off");
      // How much of a preempted row others overwrite is known less well.
      const bool is_full = file.pool_tokens < kNumSlots * 375;
      CHECK(std::abs(error) <= (is_full ? 0.25 : 0.05));
    }
  }
}

TEST_CASE(
    "where lengths are not known, forecast and ETA after a tenth of the rows are within 15 % of what the run takes") {
  for (const Device& device : kDevices) {
    const StepCost learned = learn_cost(device);
    for (const File& known : {kFiles[0], kFiles[1], kFiles[2]}) {
      File file = known;
      file.num_rows = 100 * kNumSlots;
      const auto rows = draw(file, 2);
      Plan plan;
      plan_rows(
          rows, [](int32_t) { return 1536; }, false, &plan);
      StepCost cost = learned;
      int32_t num_ended = 0;
      int64_t num_ended_tokens = 0, num_prompt_tokens = 0;
      double forecast_ms = 0, eta_ms = 0;
      const auto on_end = [&](int32_t row, double ms, int64_t num_running_tokens) {
        const int64_t length = *rows[row]->params.stop.max_tokens;
        plan.forecaster.set_running(kNumSlots, num_running_tokens);
        plan.forecaster.end_row(row, length);
        num_ended_tokens += length;
        num_prompt_tokens += static_cast<int64_t>(rows[row]->prompt_tokens.size());
        if (++num_ended != file.num_rows / 10) return;
        const Forecast forecast = plan.forecaster.estimate(limits_of(file), true, cost);
        forecast_ms = ms + *forecast.seconds * 1000;
        const auto done = static_cast<double>(num_ended_tokens + num_running_tokens + num_prompt_tokens);
        eta_ms = ms * static_cast<double>(forecast.num_prompt_tokens + forecast.num_output_tokens) / done;
      };
      const RunTimes run = run_rows(rows, plan.order, device, file.pool_tokens, &cost, on_end);
      MESSAGE(device.name << ", " << file.name << ": " << run.ms / 1000 << " s, forecast "
                          << 100 * (forecast_ms / run.ms - 1) << " % off, ETA " << 100 * (eta_ms / run.ms - 1) << " %");
      CHECK(std::abs(forecast_ms / run.ms - 1) <= 0.15);
      CHECK(std::abs(eta_ms / run.ms - 1) <= 0.15);
    }
  }
}

}  // namespace llmb::test
