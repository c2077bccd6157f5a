// Which part of a model each rank has: parts cover it, and are as even as they may be.
#include "core/rank_part.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "core/row_parts.h"
#include "core/types.h"
#include "model/config_loader.h"
#include "tests/support/source_dir.h"
#include "tests/support/test_rng.h"

namespace llmb::test {

namespace {

ModelConfig config_with(int32_t heads, int32_t kv_heads, int32_t intermediate) {
  ModelConfig config;
  config.num_attention_heads = heads;
  config.num_key_value_heads = kv_heads;
  config.head_dim = 64;
  config.intermediate_size = intermediate;
  config.hidden_size = 64 * heads;
  config.num_hidden_layers = 4;
  config.vocab_size = 49152;
  config.activation.gated = true;
  return config;
}

std::vector<ModelShare> shares_of(const ModelConfig& config, int32_t size) {
  std::vector<ModelShare> shares;
  for (int32_t rank = 0; rank < size; ++rank) shares.push_back(share_of(config, {rank, size, 1}));
  return shares;
}

bool is(const Range& range, int64_t begin, int64_t end) { return range.begin == begin && range.end == end; }

}  // namespace

TEST_CASE("attention and the MLP are each divided evenly: ranks wait for each other behind both") {
  const auto smollm2 = shares_of(config_with(9, 3, 1536), 2);  // SmolLM2-135M
  CHECK(is(smollm2[0].q_heads, 0, 4));
  CHECK(is(smollm2[0].kv_heads, 0, 2));
  CHECK(is(smollm2[0].mlp, 0, 768));
  CHECK(is(smollm2[1].q_heads, 4, 9));
  CHECK(is(smollm2[1].kv_heads, 1, 3));
  CHECK(is(smollm2[1].mlp, 768, 1536));
  const auto qwen = shares_of(config_with(14, 2, 4864), 2);  // Qwen2.5-0.5B
  CHECK(is(qwen[0].q_heads, 0, 7));
  CHECK(is(qwen[0].kv_heads, 0, 1));
  CHECK(is(qwen[0].mlp, 0, 2432));
  CHECK(is(qwen[1].kv_heads, 1, 2));
  const auto shared = shares_of(config_with(8, 2, 512), 4);  // fewer sets of keys and values than ranks
  CHECK(is(shared[1].q_heads, 2, 4));
  CHECK(is(shared[1].kv_heads, 0, 1));
  CHECK(is(shared[2].kv_heads, 1, 2));
}

// Gemma 4 31B: layers that see all positions have 4 sets of keys and values, the others 16.
TEST_CASE("layers with sets of keys and values of their own: the same query heads, and the sets that these need") {
  ModelConfig config = config_with(32, 16, 21504);
  config.layers.resize(4);
  config.layers[3] = {.head_dim = 512, .num_key_value_heads = 4};
  const auto two = shares_of(config, 2);
  CHECK(is(two[1].q_heads, 16, 32));
  CHECK(is(two[1].kv_heads_of(0), 8, 16));
  CHECK(is(two[1].kv_heads_of(3), 2, 4));
  const auto eight = shares_of(config, 8);  // pairs of ranks have the same of the last layer
  CHECK(is(eight[5].q_heads, 20, 24));
  CHECK(is(eight[5].kv_heads_of(0), 10, 12));
  CHECK(is(eight[4].kv_heads_of(3), 2, 3));
  CHECK(is(eight[5].kv_heads_of(3), 2, 3));
  const ModelConfig own = config_of(config, eight[5]);
  CHECK(own.num_kv_heads_of(0) == 2);
  CHECK(own.num_kv_heads_of(3) == 1);
  CHECK(own.q_size_of(3) == 4 * 512);
  config.layers[3].num_key_value_heads = 6;
  CHECK(check_ranks(config, 4, 1).message() == "num_key_value_heads of layer 3: 6 cannot be divided among 4 ranks");
  CHECK(check_ranks(config, 3, 1).message() == "num_attention_heads 32 cannot be divided among 3 ranks");
}

// Gemma 4 E2B: the last layers have wider MLPs, and the keys and values of earlier ones.
TEST_CASE("MLPs of several sizes are each divided evenly") {
  ModelConfig config = config_with(8, 1, 6144);
  config.layers.resize(4);
  config.layers[3] = {.intermediate_size = 12288, .kv_layer = 1};
  for (const int32_t rank : {0, 3}) {
    const ModelShare share = share_of(config, {rank, 4, 1});
    CHECK(is(share.mlp_of(0), rank * 1536, (rank + 1) * 1536));
    CHECK(is(share.mlp_of(3), rank * 3072, (rank + 1) * 3072));
    CHECK(is(share.kv_heads_of(3), 0, 1));
    CHECK(config_of(config, share).intermediate_size_of(3) == 3072);
  }
  CHECK(check_ranks(config, 8, 1).ok());
}

TEST_CASE("layers that attend to another one's keys and values stand in its stage, or are refused by name") {
  TestRng rng(5);
  for (int i = 0; i < 300; ++i) {
    ModelConfig config = config_with(8, 1, 6144);
    config.num_hidden_layers = rng.between(3, 14);
    config.layers.resize(static_cast<size_t>(config.num_hidden_layers));
    const int32_t num_own = rng.between(2, config.num_hidden_layers);
    for (int32_t layer = num_own; layer < config.num_hidden_layers; ++layer)
      config.layers[static_cast<size_t>(layer)] = {.intermediate_size = 12288,
                                                   .kv_layer = rng.between(std::max(0, num_own - 3), num_own - 1)};
    int32_t first_read = config.num_hidden_layers;
    for (const LayerConfig& layer : config.layers)
      if (layer.kv_layer >= 0) first_read = std::min(first_read, layer.kv_layer);
    const int32_t most = std::min(first_read + 1, config.num_hidden_layers);
    for (int32_t stages = 2; stages <= config.num_hidden_layers; ++stages) {
      CAPTURE(stages);
      const Status status = check_ranks(config, 1, stages);
      CHECK(status.ok() == (stages <= most));
      if (!status.ok()) {
        CHECK(status.message().find("into more than " + std::to_string(most) + " stages: its layers from " +
                                    std::to_string(first_read)) != std::string::npos);
        continue;
      }
      RankPart part;
      part.num_stages = stages;
      part.rows = {rng.between(0, 1000), rng.between(0, 4000)};
      int64_t end = 0;
      for (part.rank = 0; part.rank < stages; ++part.rank) {
        const ModelShare share = share_of(config, part);
        CHECK(share.layers.begin == end);
        CHECK(share.layers.count() > 0);
        end = share.layers.end;
        const ModelConfig own = config_of(config, share);
        const int32_t last = config.num_hidden_layers - 1;
        CHECK(is(share.mlp_of(last), 0, config.intermediate_size_of(last)));
        for (int32_t layer = 0; layer < own.num_hidden_layers; ++layer) {
          const auto whole = static_cast<int32_t>(share.layers.begin) + layer;
          CHECK(own.kv_layer_of(layer) >= 0);
          CHECK(own.kv_layer_of(layer) + share.layers.begin == config.kv_layer_of(whole));
        }
      }
      CHECK(end == config.num_hidden_layers);
    }
  }
}

TEST_CASE("fewer groups of Mamba-2 than ranks: neighbours have a group together, if equally many have each") {
  const auto config = load_model_config(source_dir() + "/data/fixtures/models/nemotron_h");  // two groups of two heads
  REQUIRE_MESSAGE(config.ok(), config.status().message());
  for (int32_t rank = 0; rank < 4; ++rank) {
    const ModelShare share = share_of(*config, {rank, 4, 1});
    CHECK(share.state_keys.begin == rank / 2);
    CHECK(share.state_keys.count() == 1);
    CHECK(share.state_values.begin == rank);
    CHECK(share.state_values.count() == 1);
  }
  ModelConfig more_tokens = *config;  // 64 are too few for four ranks
  more_tokens.vocab_size = 128;
  CHECK(check_ranks(more_tokens, 4, 1).message() == "");
  more_tokens.num_attention_heads = more_tokens.num_key_value_heads = 6;
  CHECK(check_ranks(more_tokens, 3, 1).message() == "value heads of states 4 cannot be divided among 3 ranks");
}

TEST_CASE("Gemma 4 E2B over stages: of prompts hardly any row counts where layers have no keys; what is refused") {
  const auto config = load_model_config(source_dir() + "/data/shapes/gemma-4-e2b");
  REQUIRE_MESSAGE(config.ok(), config.status().message());
  const auto first_layers = [&](int32_t prompt_permille, int32_t stages) {
    RankPart part;
    part.num_stages = stages;
    part.rows = {prompt_permille, 500};
    return share_of(*config, part).layers.count();
  };
  CHECK(first_layers(0, 2) == 13);  // 13 and 14 are read by the 20 behind them
  CHECK(first_layers(1000, 2) == 8);
  CHECK(check_ranks(*config, 1, 14).ok());
  CHECK(check_ranks(*config, 1, 2, 1, Quantization::kInt8).ok());
  ModelConfig longer = *config;
  longer.hidden_size_per_layer_input = 1 + 65536 / longer.num_hidden_layers;
  CHECK(check_ranks(longer, 1, 2, 1, Quantization::kInt8).message().find("too long to be rounded") != std::string::npos);
  CHECK((check_ranks(longer, 1, 2).ok() && check_ranks(longer, 2, 1, 1, Quantization::kInt8).ok()));
  CHECK(check_ranks(*config, 1, 15).message() ==
        "model_type \"gemma4_text\" cannot be cut into more than 14 stages: its layers from 13 on attend to each other's "
        "keys and values; use --tensor-parallel-size");
}

TEST_CASE("query heads cover the model once, each with its keys and values, in no more sets than whole groups need") {
  TestRng rng(3);
  for (int i = 0; i < 2000; ++i) {
    const int32_t kv_heads = rng.between(1, 12), group = rng.between(1, 8), size = rng.between(2, 8);
    const ModelConfig config = config_with(kv_heads * group, kv_heads, 64 * rng.between(8, 60));
    if (!check_ranks(config, size, 1).ok()) continue;
    int64_t heads = 0, columns = 0;
    for (const ModelShare& share : shares_of(config, size)) {
      CHECK(share.q_heads.begin == heads);
      CHECK(share.mlp.begin == columns);
      CHECK(share.q_heads.count() > 0);
      CHECK(share.mlp.count() > 0);
      heads = share.q_heads.end;
      columns = share.mlp.end;
      CHECK(is(share.kv_heads, share.q_heads.begin / group, ceil_div(share.q_heads.end, int64_t{group})));
      CHECK(share.kv_heads.count() <= ceil_div(kv_heads, size));
    }
    CHECK(heads == config.num_attention_heads);
    CHECK(columns == config.intermediate_size);
  }
}

TEST_CASE("stages: no other division of the layers costs less, whatever part of the time prompts take") {
  TestRng rng(11);
  for (int i = 0; i < 300; ++i) {
    ModelConfig config = config_with(8, 2, 64 * rng.between(8, 40));
    config.num_hidden_layers = rng.between(4, 24);
    config.vocab_size = rng.between(1000, 200000);
    RankPart part;
    part.num_stages = rng.between(2, 4);
    part.rows = {rng.between(0, 1000), rng.between(0, 4000)};
    const RowCost cost = row_cost(config);
    const double layers = config.num_hidden_layers, of_prompts = part.rows.prompt_permille / 1000.0;
    const double of_layer = std::floor(
        static_cast<double>(cost.of_row + cost.of_position * part.rows.mean_position) / layers);
    const double head = static_cast<double>(config.vocab_size) * config.hidden_size;
    const auto cost_of = [&](double of_others, double last) {
      return of_prompts * std::max(of_others, last) * of_layer +
             (1 - of_prompts) * std::max(of_others * of_layer, last * of_layer + head);
    };
    int64_t end = 0;
    double of_others = 0, last = 0;
    for (part.rank = 0; part.rank < part.num_stages; ++part.rank) {
      const Range own = share_of(config, part).layers;
      CHECK(own.begin == end);
      CHECK(own.count() > 0);
      end = own.end;
      if (part.is_last_stage()) last = static_cast<double>(own.count());
      else of_others = std::max(of_others, static_cast<double>(own.count()));
    }
    CHECK(end == config.num_hidden_layers);
    for (double other = 1; other <= layers - (part.num_stages - 1); ++other)
      CHECK(cost_of(of_others, last) <=
            1.000001 * cost_of(std::ceil((layers - other) / (part.num_stages - 1)), other));
  }
}

TEST_CASE("the last stage has more layers where prompts take most of the time, or rows see many positions") {
  ModelConfig config = config_with(9, 3, 1536);  // SmolLM2-135M: its head is worth 8 of its 30 layers
  config.num_hidden_layers = 30;
  const auto of_last = [&](StageRows rows) {
    return share_of(config, {1, 1, 2, 1, false, rows}).layers.count();
  };
  CHECK(of_last({0, 0}) == 11);
  CHECK(of_last({400, 0}) == 11);
  CHECK(of_last({600, 0}) == 15);
  CHECK(of_last({1000, 0}) == 15);
  CHECK(of_last({0, 4000}) > 11);
}

}  // namespace llmb::test
