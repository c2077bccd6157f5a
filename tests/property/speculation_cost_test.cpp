// Whole runs on the ledger backend and a virtual clock: speculation's cost or gain is a ratio of two exact times.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "speculation/speculator.h"
#include "tests/support/listed_requests.h"
#include "tests/support/priced_backend.h"
#include "tests/support/scripted_drafter.h"
#include "tests/support/tiny_model.h"
#include "tools/batching_workload.h"

namespace llmb::test {

namespace {

struct Run {
  int32_t max_num_seqs = 1, max_num_drafts = 64;
  std::vector<std::shared_ptr<Request>> requests;
  Curve curve;
  double host_ms = 0.03;  // between two steps
  bool checks_tokens = false;
};

// Milliseconds until all is answered; null: without speculation.
double run_ms(const Run& run, const DrafterScript* script) {
  VirtualClock clock;
  ModelConfig config = tiny_config();
  config.vocab_size = 32000;
  PricedBackend backend(run.curve, clock);
  EngineOptions options;
  options.scheduler.max_num_seqs = run.max_num_seqs;
  options.scheduler.max_num_batched_tokens = 2048;
  options.scheduler.max_model_len = 4096;
  options.scheduler.max_num_drafts = script != nullptr ? run.max_num_drafts : 0;
  options.scheduler.num_blocks = 128 * run.max_num_seqs + 256;
  LoadOptions load;
  load.num_blocks_override = options.scheduler.num_blocks;
  REQUIRE(backend.load(config, load).ok());
  StepCost cost;
  std::unique_ptr<Speculator> speculator;
  if (script != nullptr) {
    std::vector<std::unique_ptr<Drafter>> drafters;
    drafters.push_back(std::make_unique<ScriptedDrafter>(make_ledger_model(config, {}), 4096, *script));
    SpeculatorOptions speculation;
    speculation.max_step_tokens = run.max_num_drafts;
    speculator = std::make_unique<Speculator>(speculation, std::move(drafters), cost, clock);
  }
  options.proposer = speculator.get();
  options.step_cost = &cost;
  options.model = config;
  ListSource source(run.requests);
  ListSink sink;
  const std::atomic<int> interrupted{0};
  // The host's work between two steps, which planning ahead hides.
  const auto host_works = [&](const EngineProgress&) { clock.advance_ms(run.host_ms); };
  Engine engine(options, backend, nullptr, clock, source, sink, interrupted, host_works);
  const Status status = engine.run();
  REQUIRE_MESSAGE(status.ok(), status.message());
  REQUIRE(sink.items.size() == run.requests.size());
  const LedgerModel model = make_ledger_model(config, {});
  for (const auto& [ordinal, item] : sink.items)
    REQUIRE((!run.checks_tokens ||
             item.completion.choices.at(0).token_ids ==
                 ledger_reference(model, *run.requests.at(ordinal), options.scheduler.max_model_len).tokens));
  return clock.now_ms();
}

std::shared_ptr<Request> request_of(int32_t index, int32_t num_tokens) {
  auto request = std::make_shared<Request>();
  for (TokenId k = 0; k < 8; ++k) request->prompt_tokens.push_back((index * 7919 + k) % 32000);
  request->params.sampling.temperature = 0;
  request->params.stop.max_tokens = num_tokens;
  request->params.stop.ignore_eos = true;
  return request;
}

double steep(int32_t rows) { return 0.1 + 0.1 * rows; }
double flat(int32_t rows) { return 10 + 0.02 * rows; }
double small_steps(int32_t rows) { return 0.25 + 0.02 * rows; }
double by_fours(int32_t rows) { return 0.15 + 0.08 * ((rows + 3) / 4); }  // kernels compute four rows as fast as one
double by_eights(int32_t rows) { return 2 + 0.5 * ((rows + 7) / 8); }

}  // namespace

TEST_CASE("a drafter that is always wrong and sure of itself costs at most a hundredth of the time, at any batch") {
  DrafterScript wrong;
  wrong.right_rate = 0;
  wrong.claimed = 0.99;
  wrong.drafts_most = true;
  for (const Curve& curve : {Curve(steep), Curve(flat), Curve(small_steps), Curve(by_fours), Curve(by_eights)})
    for (const int32_t batch : {1, 2, 3, 4, 8, 16, 32, 64, 128}) {
      Run run;
      run.max_num_seqs = batch;
      run.curve = curve;
      for (int32_t i = 0; i < 3 * batch; ++i) run.requests.push_back(request_of(i, 700));
      const double ratio = run_ms(run, nullptr) / run_ms(run, &wrong);
      CHECK_MESSAGE(ratio >= 0.99, "batch " << batch << ": " << ratio);
    }
}

TEST_CASE("where one draft does not pay and many do, a drafter that is right is kept") {
  DrafterScript script;
  script.right_rate = script.claimed = 0.95;
  script.drafts_most = true;
  for (const int32_t batch : {1, 4, 8}) {
    CAPTURE(batch);
    Run run;
    run.max_num_seqs = batch;
    run.curve = by_fours;
    for (int32_t i = 0; i < 3 * batch; ++i) run.requests.push_back(request_of(i, 700));
    CHECK(run_ms(run, nullptr) > 1.3 * run_ms(run, &script));
  }
}

TEST_CASE("where the host takes long, sequences that can be guessed wait alone to be seen: faster than all together") {
  for (const double host_ms : {0.5, 1.5}) {
    CAPTURE(host_ms);
    Run run;
    run.max_num_seqs = 128;
    run.curve = [](int32_t rows) { return 5 + 0.002 * rows; };
    run.host_ms = host_ms;
    run.checks_tokens = true;
    for (int32_t i = 0; i < 384; ++i) run.requests.push_back(request_of(i, 200 + i * 7919 % 400));
    DrafterScript script;
    script.right_rate = script.claimed = 0.95;
    script.drafts_most = true;
    script.one_in = 8;
    const double without_ms = run_ms(run, nullptr), alone_ms = run_ms(run, &script);
    script.while_steps_run = false;
    const double together_ms = run_ms(run, &script);
    MESSAGE("host " << host_ms << " ms: " << alone_ms / without_ms << " of the time without, all together "
                    << together_ms / without_ms);
    CHECK(alone_ms < 0.96 * without_ms);
    CHECK(alone_ms < 0.99 * together_ms);
  }
}

TEST_CASE("where the host takes long, a drafter that is always wrong costs at most a hundredth of the time") {
  DrafterScript wrong;
  wrong.right_rate = 0;
  wrong.claimed = 0.99;
  wrong.drafts_most = true;
  for (const int32_t one_in : {1, 3})
    for (const int32_t batch : {1, 2, 3, 8, 32}) {
      wrong.one_in = one_in;
      Run run;
      run.max_num_seqs = batch;
      run.curve = flat;
      run.host_ms = 3;
      for (int32_t i = 0; i < 3 * batch; ++i) run.requests.push_back(request_of(i, 700));
      const double ratio = run_ms(run, nullptr) / run_ms(run, &wrong);
      CHECK_MESSAGE(ratio >= 0.99, "batch " << batch << ", one in " << one_in << ": " << ratio);
    }
}

TEST_CASE("1,000 requests, 128 rows, steps that cost the same to 256 rows, acceptance 0.6") {
  BatchingWorkload workload;
  workload.max_num_seqs = 128;
  workload.num_prompt_tokens = 8;
  DrafterScript often_right;
  often_right.right_rate = often_right.claimed = 0.6;
  often_right.drafts_most = true;
  const auto ratio = [&](Schedule schedule) {
    Run run;
    run.max_num_seqs = run.max_num_drafts = workload.max_num_seqs;
    run.curve = [](int32_t rows) { return rows <= 256 ? 10.0 : 10.0 * rows / 256; };
    std::vector<PlannedRow> rows;
    const auto lengths = draw_output_lengths(workload);
    for (const int32_t length : lengths) rows.push_back({static_cast<int32_t>(rows.size()), {}, length});
    for (const int32_t row : order_rows(schedule, rows, workload.max_num_seqs))
      run.requests.push_back(request_of(row, lengths[row]));
    return run_ms(run, &often_right) / run_ms(run, nullptr);
  };
  const double in_file_order = ratio(Schedule::kFile), planned = ratio(Schedule::kLongestFirst);
  MESSAGE("makespan: " << in_file_order << " in the order of the file, " << planned << " the longest first");
  CHECK(in_file_order <= 0.55);
  // With 128 rows busy to the end, and so as many drafts, a step gives 1.6 tokens a row at most: 0.625.
  CHECK(planned <= 0.67);
}

}  // namespace llmb::test
