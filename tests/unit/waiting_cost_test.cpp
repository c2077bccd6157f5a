#include "engine/waiting_cost.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <vector>

#include "engine/engine.h"
#include "tests/support/listed_requests.h"
#include "tests/support/priced_backend.h"
#include "tests/support/tiny_model.h"
#include "tests/support/toy_constraint.h"

namespace llmb::test {

namespace {

constexpr int32_t kRows = 16, kTokens = 60;

StepCost cost_of(const Curve& curve) {
  StepCost cost;
  for (int32_t rows = 1; rows <= kRows; ++rows)
    for (int i = 0; i < 4; ++i) cost.observe(rows, 0, curve(rows));
  return cost;
}

double flat(int32_t) { return 5; }
double steep(int32_t rows) { return 0.1 + 0.5 * rows; }

// Milliseconds for ten batches of rows, of which `num_constrained` of 16 have constraints. Where the engine learns what
// steps cost it chooses who waits, else it goes by their number.
double run_ms(const Curve& curve, double host_ms, int32_t num_constrained, bool learns) {
  VirtualClock clock;
  ModelConfig config = tiny_config();
  config.vocab_size = 96;
  PricedBackend backend(curve, clock);
  EngineOptions options;
  options.scheduler.max_num_seqs = kRows;
  options.scheduler.max_num_batched_tokens = 256;
  options.scheduler.max_model_len = 128;
  options.scheduler.num_blocks = 8 * kRows;
  LoadOptions load;
  load.num_blocks_override = options.scheduler.num_blocks;
  REQUIRE(backend.load(config, load).ok());
  StepCost cost;
  if (learns) options.step_cost = &cost;
  options.model = config;
  const auto constraint = std::make_shared<ToyConstraint>(5, config.vocab_size, 2, std::vector<TokenId>());
  std::vector<std::shared_ptr<Request>> requests;
  for (int32_t i = 0; i < 10 * kRows; ++i) {
    auto request = std::make_shared<Request>();
    request->prompt_tokens = {i % 96, i / 96, 7};
    request->params.sampling.temperature = 0;
    request->params.stop.max_tokens = kTokens + i % 7;
    request->params.stop.ignore_eos = true;
    if (i * 7 % kRows < num_constrained) request->constraint = constraint;
    requests.push_back(request);
  }
  ListSource source(requests);
  ListSink sink;
  const std::atomic<int> interrupted{0};
  // The host's work between two steps, which planning ahead hides.
  const auto host_works = [&](const EngineProgress&) { clock.advance_ms(host_ms); };
  Engine engine(options, backend, nullptr, clock, source, sink, interrupted, host_works);
  REQUIRE(engine.run().ok());
  const LedgerModel model = make_ledger_model(config, {});
  for (const auto& [ordinal, item] : sink.items)
    REQUIRE(item.completion.choices.at(0).token_ids == ledger_reference(model, *requests.at(ordinal), 128).tokens);
  return clock.now_ms();
}

}  // namespace

TEST_CASE("sequences with constraints wait alone where a step without them is short, or the host long") {
  const StepCost on_flat = cost_of(flat), on_steep = cost_of(steep);
  CHECK(waiting_alone_pays(nullptr, 1, 16, 1, false) == std::nullopt);
  const StepCost unknown;
  CHECK(waiting_alone_pays(&unknown, 1, 16, 1, false) == std::nullopt);
  CHECK(waiting_alone_pays(&on_flat, 1, 16, 1, false) == true);
  CHECK(waiting_alone_pays(&on_flat, 0.1, 16, 1, false) == false);
  CHECK(waiting_alone_pays(&on_flat, 1, 16, 8, false) == false);
  CHECK(waiting_alone_pays(&on_steep, 0.2, 16, 4, false) == true);
  CHECK(waiting_alone_pays(&on_steep, 3, 16, 12, true) == true);
  CHECK(waiting_alone_pays(&on_steep, 0.05, 16, 12, true) == false);
  // It would pay as they are, but not when they have become more.
  CHECK(waiting_alone_pays(&on_flat, 2, 16, 8, true) == true);
  CHECK(waiting_alone_pays(&on_flat, 2, 16, 8, false) == false);
}

TEST_CASE("the choice is no slower than going by the number of constrained rows, and faster where that is wrong") {
  double best = 1;
  for (const Curve& curve : {Curve(flat), Curve(steep)})
    for (const double host_ms : {0.05, 0.5, 2.0})
      for (const int32_t num_constrained : {1, 3, 6, 8, 12, 15, 16}) {
        const double ratio = run_ms(curve, host_ms, num_constrained, true) / run_ms(curve, host_ms, num_constrained, false);
        MESSAGE(curve(1) << " ms, host " << host_ms << " ms, " << num_constrained << ": " << ratio);
        CHECK_MESSAGE(ratio <= 1.015, "host " << host_ms << " ms, " << num_constrained << " of 16: " << ratio);
        best = std::min(best, ratio);
      }
  CHECK(best < 0.9);
}

}  // namespace llmb::test
