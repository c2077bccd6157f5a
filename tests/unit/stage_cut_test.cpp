// Where stages part the layers, by costs that are planted: no other division costs less, and all is as even as it may be.
#include "core/stage_cut.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "core/rank_part.h"
#include "job/worker_messages.h"
#include "tests/support/test_rng.h"

namespace llmb::test {

namespace {

using Bounds = std::vector<int64_t>;

StageCosts even_costs(size_t layers, int64_t of_layer, int64_t head) {
  return {std::vector<int64_t>(layers, of_layer), std::vector<int64_t>(layers, of_layer), head};
}

int64_t most_of(const std::vector<int64_t>& layers, int64_t head, const Bounds& bounds) {
  int64_t most = 0;
  for (size_t stage = 0; stage + 1 < bounds.size(); ++stage) {
    const int64_t of_stage = std::accumulate(layers.begin() + bounds[stage], layers.begin() + bounds[stage + 1], int64_t{0});
    most = std::max(most, of_stage + (stage + 2 == bounds.size() ? head : 0));
  }
  return most;
}

double cost_of(const StageCosts& costs, int32_t prompt_permille, const Bounds& bounds) {
  const auto share = [&](const std::vector<int64_t>& layers, int64_t head) {
    const int64_t sum = std::accumulate(layers.begin(), layers.end(), int64_t{0});
    return static_cast<double>(most_of(layers, head, bounds)) / static_cast<double>(std::max<int64_t>(1, sum));
  };
  return prompt_permille * share(costs.prompts, 0) + (1000 - prompt_permille) * share(costs.answers, costs.head);
}

// The least of all divisions, one by one.
double least_cost(const StageCosts& costs, int32_t prompt_permille, int32_t num_stages, Bounds bounds = {0}) {
  const auto layers = static_cast<int64_t>(costs.answers.size());
  if (num_stages == 1) {
    bounds.push_back(layers);
    return cost_of(costs, prompt_permille, bounds);
  }
  double least = 1e300;
  for (int64_t end = bounds.back() + 1; end <= layers - (num_stages - 1); ++end) {
    Bounds longer = bounds;
    longer.push_back(end);
    least = std::min(least, least_cost(costs, prompt_permille, num_stages - 1, longer));
  }
  return least;
}

}  // namespace

TEST_CASE("a head as long as five layers is the last stage's, which has so many fewer") {
  CHECK(cut_layers(even_costs(15, 100, 500), 0, 2) == Bounds{0, 10, 15});
  CHECK(cut_layers(even_costs(15, 100, 500), 0, 4) == Bounds{0, 4, 9, 14, 15});  // a stage of the head and one layer
  CHECK(cut_layers(even_costs(28, 100, 500), 0, 3) == Bounds{0, 11, 22, 28});
  CHECK(cut_layers(even_costs(30, 7, 0), 0, 3) == Bounds{0, 10, 20, 30});
  // Steps of prompts have no head.
  CHECK(cut_layers(even_costs(15, 100, 500), 1000, 3) == Bounds{0, 5, 10, 15});
  // More than half of the time goes to prompts: a layer that moves to the front makes these longer than answers shorter.
  CHECK(cut_layers(even_costs(16, 100, 500), 600, 2) == Bounds{0, 8, 16});
  CHECK(cut_layers(even_costs(15, 100, 500), 400, 2) == Bounds{0, 10, 15});
}

TEST_CASE("uneven layers: stages of equal work, not of equally many layers") {
  const std::vector<int64_t> dear_first = {90, 10, 10, 10, 10, 10, 10, 10, 10, 10};
  CHECK(cut_layers({dear_first, dear_first, 0}, 0, 2) == Bounds{0, 1, 10});
  const std::vector<int64_t> dense_first = {1, 1, 1, 5, 5, 5, 5, 5, 5, 5};  // experts behind them
  CHECK(cut_layers({dense_first, dense_first, 3}, 0, 3) == Bounds{0, 5, 8, 10});
  // Prompts and answers in units of their own, which do not matter.
  std::vector<int64_t> thousands = dense_first;
  for (int64_t& cost : thousands) cost *= 1000;
  CHECK(cut_layers({thousands, dense_first, 3}, 500, 3) == cut_layers({dense_first, dense_first, 3}, 500, 3));
}

TEST_CASE("as many stages as layers, one stage, and layers that cost nothing") {
  CHECK(cut_layers(even_costs(3, 10, 1000), 0, 3) == Bounds{0, 1, 2, 3});
  CHECK(cut_layers(even_costs(5, 10, 3), 300, 1) == Bounds{0, 5});
  CHECK(cut_layers(even_costs(4, 0, 0), 0, 2).size() == 3);
  CHECK(cut_layers(even_costs(7, 10, 0), 0, 4) == cut_layers(even_costs(7, 10, 0), 0, 4));
}

TEST_CASE("no other division costs less, and equal layers are divided evenly") {
  TestRng rng(5);
  for (int i = 0; i < 1500; ++i) {
    const auto layers = static_cast<size_t>(rng.between(2, 11));
    const auto num_stages = rng.between(1, std::min(5, static_cast<int>(layers)));
    StageCosts costs = even_costs(layers, 0, rng.chance(0.3) ? 0 : rng.between(0, 60));
    const int num_kinds = rng.between(1, 4);
    for (auto* const of : {&costs.prompts, &costs.answers}) {
      std::vector<int64_t> kinds;
      for (int k = 0; k < num_kinds; ++k) kinds.push_back(rng.between(0, 20));
      for (int64_t& cost : *of) cost = kinds[static_cast<size_t>(rng.between(0, num_kinds - 1))];
    }
    const int32_t prompt_permille = rng.chance(0.3) ? 0 : rng.between(0, 1000);
    const Bounds bounds = cut_layers(costs, prompt_permille, num_stages);
    REQUIRE(bounds.size() == static_cast<size_t>(num_stages) + 1);
    CHECK(bounds.front() == 0);
    CHECK(bounds.back() == static_cast<int64_t>(layers));
    for (size_t stage = 0; stage + 1 < bounds.size(); ++stage) CHECK(bounds[stage] < bounds[stage + 1]);
    CHECK(cost_of(costs, prompt_permille, bounds) <= 1.000000001 * least_cost(costs, prompt_permille, num_stages));
  }
  for (size_t layers = 4; layers < 40; ++layers) {
    const Bounds bounds = cut_layers(even_costs(layers, 10, 0), 0, 4);
    int64_t fewest = 40, most = 0;
    for (size_t stage = 0; stage < 4; ++stage) {
      fewest = std::min(fewest, bounds[stage + 1] - bounds[stage]);
      most = std::max(most, bounds[stage + 1] - bounds[stage]);
    }
    CHECK(most - fewest <= 1);
  }
}

TEST_CASE("a thousand layers of three kinds over sixteen stages are divided in a moment") {
  StageCosts costs;
  for (int64_t i = 0; i < 1000; ++i) costs.answers.push_back(i % 6 == 5 ? 1700 : i < 3 ? 500 : 1000);
  costs.prompts = costs.answers;
  costs.head = 9000;
  const Bounds bounds = cut_layers(costs, 500, 16);
  CHECK(bounds.size() == 17);
  CHECK(bounds.back() == 1000);
}

TEST_CASE("all ranks of a grid find one division, by what rank 0 measured and told them") {
  ModelConfig config;
  config.num_attention_heads = 8;
  config.num_key_value_heads = 2;
  config.head_dim = 64;
  config.hidden_size = 512;
  config.intermediate_size = 1024;
  config.num_hidden_layers = 12;
  config.vocab_size = 4096;
  WorkerOrder order;
  order.stage_rows = {250, 100, 16, even_costs(12, 40, 160)};
  order.stage_rows.costs.answers[0] = 120;
  const StageRows told = unpack_message<WorkerOrder>(pack_message(order)).stage_rows;
  const Bounds bounds = cut_layers(order.stage_rows.costs, 250, 3);
  for (int32_t rank = 0; rank < 6; ++rank) {
    const Range layers = share_of(config, {rank, 2, 3, 1, false, told}).layers;
    CHECK(layers.begin == bounds[static_cast<size_t>(rank / 2)]);
    CHECK(layers.end == bounds[static_cast<size_t>(rank / 2) + 1]);
  }
  // Costs of another model say nothing of this one.
  config.num_hidden_layers = 11;
  const StageRows counted = {250, 100};
  for (int32_t rank = 0; rank < 3; ++rank)
    CHECK(share_of(config, {rank, 1, 3, 1, false, told}).layers.end ==
          share_of(config, {rank, 1, 3, 1, false, counted}).layers.end);
}

TEST_CASE("counted costs: a layer's own sizes, and no further back than its window") {
  ModelConfig config;
  config.num_attention_heads = 8;
  config.num_key_value_heads = 2;
  config.head_dim = 64;
  config.hidden_size = 512;
  config.intermediate_size = 1024;
  config.num_hidden_layers = 3;
  config.vocab_size = 4096;
  config.activation.gated = true;
  config.layers.resize(3);
  config.layers[1].window = 64;
  config.layers[2].intermediate_size = 2048;
  const StageCosts near = counted_costs(config, 50), far = counted_costs(config, 1000);
  CHECK(near.head == 4096 * 512);
  CHECK(near.answers[0] == near.answers[1]);
  CHECK(near.answers[2] - near.answers[0] == 3 * 512 * 1024);
  CHECK(far.answers[0] - near.answers[0] == 950 * (512 + 512));
  CHECK(far.answers[1] - near.answers[1] == 14 * (512 + 512));
  CHECK(far.prompts == far.answers);
}

}  // namespace llmb::test
