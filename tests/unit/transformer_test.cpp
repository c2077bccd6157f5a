// The forward pass against the fp64 oracle, on random small models of every shape that the config can name.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "base/float_formats.h"
#include "base/thread_pool.h"
#include "model/config_loader.h"
#include "model/weight_source.h"
#include "tests/support/compare.h"
#include "tests/support/oracle.h"
#include "tests/support/plan_builder.h"
#include "tests/support/temp_dir.h"

namespace llmb::test {
namespace {

LoadOptions small_options(const std::string& dir) {
  LoadOptions o;
  o.model_dir = dir;
  o.block_size = 4;
  o.max_num_seqs = 8;
  o.max_num_batched_tokens = 32;
  o.max_model_len = 64;
  o.num_threads = 2;
  o.dtype = o.kv_cache_dtype = DType::kF32;  // as the oracle
  return o;
}

struct Shape {
  const char* name;
  void (*change)(ModelConfig*);
  int num_shards = 1;
};

const Shape kShapes[] = {
    {"grouped-query attention, fp32", [](ModelConfig*) {}},
    {"multi-head attention", [](ModelConfig* c) { c->num_key_value_heads = 4; }},
    {"multi-query attention", [](ModelConfig* c) { c->num_key_value_heads = 1; }},
    {"tied embeddings", [](ModelConfig* c) { c->tie_word_embeddings = true; }},
    {"tied embeddings in bf16", [](ModelConfig* c) { c->tie_word_embeddings = true, c->dtype = DType::kBF16; }},
    {"biases everywhere", [](ModelConfig* c) { c->qkv_bias = c->o_bias = c->mlp_bias = true; }},
    {"qwen2: biases on q, k and v", [](ModelConfig* c) { c->model_type = "qwen2", c->qkv_bias = true; }},
    {"head_dim larger than hidden / heads", [](ModelConfig* c) { c->head_dim = 20; }},
    {"head_dim smaller than hidden / heads", [](ModelConfig* c) { c->head_dim = 2; }},
    {"sizes that are no multiple of a vector",
     [](ModelConfig* c) { c->hidden_size = 37, c->intermediate_size = 53, c->vocab_size = 101, c->head_dim = 6; }},
    {"one layer, one head",
     [](ModelConfig* c) { c->num_hidden_layers = c->num_attention_heads = c->num_key_value_heads = 1; }},
    {"a large rms_norm_eps", [](ModelConfig* c) { c->norm_eps = 0.1; }},
    {"bf16", [](ModelConfig* c) { c->dtype = DType::kBF16; }},
    {"fp16", [](ModelConfig* c) { c->dtype = DType::kF16; }},
    {"bf16 with biases and odd sizes",
     [](ModelConfig* c) {
       c->dtype = DType::kBF16, c->qkv_bias = c->mlp_bias = c->o_bias = true;
       c->hidden_size = 33, c->intermediate_size = 65, c->vocab_size = 67;
     }},
    {"linear rope scaling",
     [](ModelConfig* c) { c->ropes[0].scaling.kind = RopeScalingKind::kLinear, c->ropes[0].scaling.factor = 2.5; }},
    {"llama3 rope scaling",
     [](ModelConfig* c) {
       c->ropes[0].theta = 50, c->head_dim = 16;
       c->ropes[0].scaling = {RopeScalingKind::kLlama3, 8, 1, 4, 16};
     }},
    {"three shards", [](ModelConfig*) {}, 3},
};

// Through config.json and back, so that what the loader makes of a file is what is judged.
std::unique_ptr<Backend> write_and_load(const std::string& dir, const ModelConfig& config, const TestTensors& tensors,
                                        int num_shards) {
  write_model(dir, config, tensors, num_shards);
  const Result<ModelConfig> read = load_model_config(dir);
  REQUIRE_MESSAGE(read.ok(), read.status().message());
  auto backend = make_cpu_backend();
  const Status status = backend->load(*read, small_options(dir));
  REQUIRE_MESSAGE(status.ok(), status.message());
  return backend;
}

TEST_CASE("log probabilities of the whole vocabulary equal the oracle's, and the chosen token is its best") {
  for (const Shape& shape : kShapes) {
    CAPTURE(std::string(shape.name));
    ModelConfig config = tiny_config();
    shape.change(&config);
    const TestTensors tensors = random_tensors(config, 11);
    const TempDir dir;
    const auto backend = write_and_load(dir.path(), config, tensors, shape.num_shards);
    const Oracle oracle(config, tensors);

    std::mt19937_64 random(5);
    std::vector<GenerateRequest> requests;
    for (const int length : {1, 2, 3, 4, 5, 17, 40}) {
      GenerateRequest& r = requests.emplace_back();
      for (int i = 0; i < length; ++i) r.prompt.push_back(static_cast<TokenId>(random() % config.vocab_size));
      r.num_tokens = 8;
      r.sampling.num_logprobs = config.vocab_size;
    }
    const auto generated = generate_at_random(*backend, requests, 32, 8, 3);
    for (size_t i = 0; i < requests.size(); ++i) {
      std::vector<TokenId> tokens = requests[i].prompt;
      tokens.insert(tokens.end(), generated[i].tokens.begin(), generated[i].tokens.end());
      const auto expected = oracle.log_probs(tokens);
      for (size_t step = 0; step < generated[i].tokens.size(); ++step) {
        const auto& row = expected[requests[i].prompt.size() - 1 + step];
        std::vector<float> actual(row.size(), NAN);
        for (size_t k = 0; k < row.size(); ++k)
          actual.at(generated[i].top_tokens[step].at(k)) = generated[i].top_logprobs[step][k];
        CHECK(compare(actual, row, 1e-5, 3e-5) == "");
        CHECK(row[generated[i].tokens[step]] >= *std::max_element(row.begin(), row.end()) - 3e-5);
      }
    }
  }
}

TEST_CASE("a tensor that is missing or of another shape is refused by name at load") {
  const ModelConfig config = tiny_config();
  const TestTensors good = random_tensors(config, 1);
  const auto message = [&](const TestTensors& tensors) {
    const TempDir dir;
    write_model(dir.path(), config, tensors);
    const Status status = make_cpu_backend()->load(config, small_options(dir.path()));
    CHECK((status.ok() || status.code() == StatusCode::kDataLoss));
    return status.message();
  };
  CHECK(message(good) == "");
  for (const auto& [name, tensor] : good) {
    CAPTURE(name);
    TestTensors bad = good;
    bad.erase(name);
    CHECK(message(bad).find("tensor \"" + name + "\" is missing") != std::string::npos);
    bad = good;
    ++bad[name].shape[0];
    bad[name].values.resize(bad[name].values.size() / tensor.shape[0] * bad[name].shape[0]);
    const std::string found = message(bad);
    CHECK(found.find("tensor \"" + name + "\" has shape [" + std::to_string(bad[name].shape[0])) != std::string::npos);
    CHECK(found.find("expected [" + std::to_string(tensor.shape[0])) != std::string::npos);
  }
  TestTensors extra = good;
  extra["model.layers.0.self_attn.rotary_emb.inv_freq"] = {{4}, {1, 1, 1, 1}};
  CHECK(message(extra) == "");
}

double value_at(const TensorView& view, int64_t i) {
  if (view.dtype == DType::kF32) return static_cast<const float*>(view.data)[i];
  const uint16_t bits = static_cast<const uint16_t*>(view.data)[i];
  if (view.dtype == DType::kF16) return f16_to_f32(bits);
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

TEST_CASE("random weights: normal, never zero, the same for any number of threads and any order of calls") {
  constexpr int64_t kRows = 300, kCols = 701;  // several chunks, and an odd end
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    CAPTURE(std::string(dtype_name(dtype)));
    ThreadPool one(1), three(3);
    RandomSource a(7, dtype, one), b(7, dtype, three), c(8, dtype, one);
    const TensorView x = *a.tensor("w", std::array{kRows, kCols});
    CHECK(b.tensor("other", std::array{kCols}).ok());
    const TensorView y = *b.tensor("w", std::array{kRows, kCols});
    const TensorView z = *c.tensor("w", std::array{kRows, kCols});
    const TensorView norm = *a.tensor("model.norm.weight", std::array{kCols});
    double sum = 0, squares = 0, norm_sum = 0;
    int64_t zeros = 0, differences = 0, same_seeds = 0, beyond_2_sigma = 0;
    for (int64_t i = 0; i < kRows * kCols; ++i) {
      const double v = value_at(x, i);
      sum += v;
      squares += v * v;
      zeros += v == 0;
      differences += v != value_at(y, i);
      same_seeds += v == value_at(z, i);
      beyond_2_sigma += std::fabs(v) > 0.04;
    }
    for (int64_t i = 0; i < kCols; ++i) norm_sum += value_at(norm, i);
    const double n = kRows * kCols;
    CHECK(zeros == 0);
    CHECK(differences == 0);
    CHECK(static_cast<double>(same_seeds) / n < 0.02);
    CHECK(std::fabs(sum / n) < 5 * 0.02 / std::sqrt(n));
    CHECK(std::fabs(std::sqrt(squares / n) - 0.02) < 0.0002);
    CHECK(std::fabs(static_cast<double>(beyond_2_sigma) / n - 0.0455) < 0.003);
    CHECK(std::fabs(norm_sum / kCols - 1) < 0.01);
  }
}

}  // namespace
}  // namespace llmb::test
