// The work that bench_engine counts of a step, against counts by hand and against the number of a model's weights.
#include "tools/engine_work.h"

#include <doctest/doctest.h>

#include <cmath>
#include <filesystem>
#include <string>

#include "model/config_loader.h"
#include "tests/support/source_dir.h"

namespace llmb::test {

namespace {

constexpr double kKvBytes = 100, kWeightBytes = 1000;

// A layer has 16 weights of q, 16 of k and v, 16 of o, 96 of the MLP; 40 of the head.
ModelConfig small_config(int32_t num_layers) {
  ModelConfig c;
  c.vocab_size = 10, c.hidden_size = 4, c.intermediate_size = 8, c.num_hidden_layers = num_layers;
  c.num_attention_heads = 2, c.num_key_value_heads = 1, c.head_dim = 2;
  c.layers.resize(static_cast<size_t>(num_layers));
  return c;
}

EngineWork work_of(const ModelConfig& config, const EngineStep& step) {
  return engine_work(config, step, kKvBytes, kWeightBytes);
}

bool is_close(double a, double b) { return std::fabs(a - b) <= 1e-9 * std::fabs(b); }

}  // namespace

TEST_CASE("a prompt, counted by hand: behind the last layer's attention one row goes on") {
  const EngineWork work = work_of(small_config(2), {.rows_of_seq = 3});
  CHECK(is_close(work.products.flops, 2 * (3 * (32 + 112) + 3 * 32 + 112 + 40)));
  CHECK(is_close(work.attention.flops, 2 * (2 * 8 * (1 + 2 + 3))));
  CHECK(is_close(work.attention.bytes, 3 * kKvBytes));
}

TEST_CASE("layers without keys and values of their own run for the sampled row, but a last one alone for all up to attention") {
  ModelConfig config = small_config(4);
  config.layers[3].kv_layer = 1;
  const double own = 3 * (32 + 112);
  CHECK(is_close(work_of(config, {.rows_of_seq = 3}).products.flops, 2 * (3 * own + 3 * 16 + 112 + 40)));
  config.layers[2].kv_layer = 1;
  const EngineWork work = work_of(config, {.rows_of_seq = 3});
  CHECK(is_close(work.products.flops, 2 * (2 * own + 2 * (16 + 112) + 40)));
  CHECK(is_close(work.attention.flops, 2 * 8 * (2 * 6 + 2 * 3)));
  CHECK(is_close(work.attention.bytes, 3 * kKvBytes));
}

TEST_CASE("decode: a shared prompt is read once, a layer with a window reads what it sees") {
  ModelConfig config = small_config(2);
  const EngineStep step = {.num_seqs = 5, .first_position = 19, .num_shared = 16};
  EngineWork work = work_of(config, step);
  CHECK(is_close(work.products.flops, 2 * 5 * (2 * (32 + 112) + 40)));
  CHECK(is_close(work.attention.flops, 5 * 2 * (2 * 8 * 20)));
  CHECK(is_close(work.attention.bytes, (16 + 5 * 4) * kKvBytes));
  config.layers[0].window = 6;  // positions 14 to 19, the first two of them shared
  work = work_of(config, step);
  CHECK(is_close(work.attention.flops, 5 * 2 * 8 * (6 + 20)));
  CHECK(is_close(work.attention.bytes, ((2 + 5 * 4) + (16 + 5 * 4)) * kKvBytes / 2));
}

TEST_CASE("every golden model: the products of its layers and its head are its weights") {
  for (const auto& entry : std::filesystem::directory_iterator(source_dir() + "/data/fixtures/models")) {
    CAPTURE(entry.path().string());
    const ModelConfig config = load_model_config(entry.path().string()).value();
    double all = double(config.hidden_size) * config.vocab_size;
    for (int32_t i = 0; i < config.num_hidden_layers; ++i) {
      const LayerProducts of = layer_products(config, i);
      CHECK(of.before >= 0);
      CHECK(of.behind >= 0);
      all += of.before + of.behind + of.input;
    }
    CHECK(is_close(all, double(config.num_matmul_params())));
  }
}

}  // namespace llmb::test
