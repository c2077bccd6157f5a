// The simulated cluster of tools/bench_apart: every answer is right in both ways, prompts are computed once, and a request
// alone takes what the steps and the transfer take.
#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "backend/ledger/ledger_backend.h"
#include "tools/apart_simulation.h"

namespace llmb::test {

namespace {

constexpr ModelShape kTiny = {"tiny", 1, 2, 1, 1, 2, 4, 5};
constexpr DeviceModel kUnit = {"unit", 1e6, 1e6, 1e6};
constexpr LinkModel kLink = {2, 0, 1e6};

StepModel tiny_model() { return {kTiny, kBf16, kUnit, kLink, {1, 1}}; }

ClusterSetup setup_of(int32_t num_pool, int32_t num_prefill, int32_t num_decode) {
  ClusterSetup setup;
  setup.num_pool = num_pool, setup.num_prefill = num_prefill, setup.num_decode = num_decode;
  setup.max_num_batched_tokens = 64;
  setup.max_num_seqs = 8;
  setup.max_model_len = 512;
  setup.num_blocks = 200;
  setup.between = kLink;
  setup.block_bytes = 1000;
  return setup;
}

std::vector<SimulatedArrival> some_arrivals(int32_t count) {
  std::vector<SimulatedArrival> arrivals;
  for (int32_t i = 0; i < count; ++i) arrivals.push_back({3.0 * i, 1 + i * 37 % 300, 1 + i * 11 % 40});
  return arrivals;
}

}  // namespace

TEST_CASE("answers are those of the ledger's model, in a pool and apart, however instances are divided") {
  const std::vector<SimulatedArrival> arrivals = some_arrivals(60);
  const LedgerModel model = make_ledger_model(ClusterSimulation::ledger_config(), {});
  for (const ClusterSetup& setup : {setup_of(1, 0, 0), setup_of(3, 0, 0), setup_of(0, 1, 1), setup_of(0, 2, 1),
                                    setup_of(0, 1, 3)}) {
    ClusterSimulation simulation(setup, tiny_model());
    const SimulatedCluster result = simulation.run(arrivals, 1);
    int64_t num_tails = 0;
    for (size_t i = 0; i < arrivals.size(); ++i) {
      CAPTURE(i);
      const auto request = ClusterSimulation::request_of(arrivals[i], i);
      const bool is_right = result.answers[i] == ledger_reference(model, *request, 512).tokens;
      CHECK(is_right);
      num_tails += (arrivals[i].num_prompt_tokens - 1) % 16 + 1;
    }
    if (setup.num_decode > 0) CHECK(result.num_prompt_tokens_decode == num_tails);
  }
}

TEST_CASE("a request alone: its prompt's steps, the transfer, and a step for each token") {
  const std::vector<SimulatedArrival> arrivals = {{0, 100, 3}};
  const StepModel model = tiny_model();
  ClusterSimulation simulation(setup_of(0, 1, 1), model);
  const SimulatedCluster result = simulation.run(arrivals, 1);
  // 96 tokens in chunks of 64 and 32; 6 blocks of 1,000 bytes; a step of the 4 that are left, and two of one.
  const double prefill_ms = model.step_ms({64, 0, 0, 64 * 32}) + model.step_ms({32, 1, 0, 32 * (96 - 16)});
  const double first_ms = model.step_ms({4, 1, 100, 0});
  const double rest_ms = model.step_ms({1, 1, 101, 0}) + model.step_ms({1, 1, 102, 0});
  CHECK(std::fabs(result.latencies[0].ttft_ms - (prefill_ms + 2 + 6 + first_ms)) < 1e-6);
  CHECK(std::fabs(result.latencies[0].tpot_ms - rest_ms / 2) < 1e-6);
}

TEST_CASE("while prompts are computed, answers apart go on as fast as before; in a pool they wait") {
  // One long answer, and behind it a prompt every few steps.
  std::vector<SimulatedArrival> arrivals = {{0, 20, 100}};
  for (int32_t i = 0; i < 20; ++i) arrivals.push_back({20.0 + 20 * i, 290, 1});
  const double pool_ms = ClusterSimulation(setup_of(2, 0, 0), tiny_model()).run(arrivals, 1).latencies[0].tpot_ms;
  const double apart_ms = ClusterSimulation(setup_of(0, 1, 1), tiny_model()).run(arrivals, 1).latencies[0].tpot_ms;
  CHECK(apart_ms < pool_ms);
  CHECK(share_within({{1, 1}, {3, 1}, {1, 3}, {2, 2}}, 2, 2) == 0.5);
}

}  // namespace llmb::test
