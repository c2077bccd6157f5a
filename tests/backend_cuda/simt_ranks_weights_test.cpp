// Weights of few bits over GPUs that compute a model together, and heads whose sets of keys and values are not a multiple
// of the ranks: beside one GPU's answers, and the same bytes whatever the schedule and the timing.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "model/config_loader.h"
#include "tests/support/forked_ranks.h"
#include "tests/support/gptq_model.h"
#include "tests/support/plan_builder.h"
#include "tests/support/source_dir.h"
#include "tests/support/stored_model.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

namespace llmb::test {
namespace {

struct Model {
  Model(const std::string& dir, DType dtype)
      : config(load_model_config(dir).value()), options(stored_model_options(dir, dtype)) {
    options.max_model_len = 64;
    for (const int32_t length : {1, 5, 9, 16, 17, 24}) {
      GenerateRequest& r = requests.emplace_back();
      for (int32_t i = 0; i < length; ++i) r.prompt.push_back((11 * i + 3 * length) % config.vocab_size);
      r.num_tokens = 5;
      r.sampling.num_logprobs = config.vocab_size;  // a small one's
    }
  }

  std::unique_ptr<Backend> ranks(int32_t size = 2, uint64_t delay_seed = 0) const {
    ForkedRanksOptions ranks;
    ranks.tensor_size = size;
    ranks.delay_seed = delay_seed;
    return load_forked_ranks(ranks, config, options);
  }
  std::vector<Generated> alone() const {
    return generate_one_by_one(*loaded(make_cuda_backend(0), config, options), requests, 64);
  }

  ModelConfig config;
  LoadOptions options;
  std::vector<GenerateRequest> requests;
};

// How far the log probabilities of the first token are from b's, in the mean over what b expects.
double mean_difference(const std::vector<Generated>& a, const std::vector<Generated>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    std::map<TokenId, double> of_a;
    for (size_t k = 0; k < a[i].top_tokens[0].size(); ++k) of_a[a[i].top_tokens[0][k]] = a[i].top_logprobs[0][k];
    for (size_t k = 0; k < b[i].top_tokens[0].size(); ++k) {
      const double logprob = b[i].top_logprobs[0][k];
      sum += std::exp(logprob) * std::fabs(of_a.at(b[i].top_tokens[0][k]) - logprob);
    }
  }
  return sum / static_cast<double>(a.size());
}

// The answers, which are the same bytes in any schedule.
std::vector<Generated> check_schedules(const Model& m, int32_t size = 2) {
  const std::vector<Generated> answers = generate_at_random(*m.ranks(size), m.requests, 64, 8, 3);
  CHECK((generate_at_random(*m.ranks(size, 9), m.requests, 7, 3, 4) == answers));
  return answers;
}

std::string fixture(const std::string& name) { return source_dir() + "/data/fixtures/" + name; }

// Ranks round their parts of a sum by scales of their own.
TEST_CASE("int8, int4 and fp8 weights, dense and experts: about as far from 16-bit weights as on one GPU") {
  for (const std::string name : {"llama-gqa", "mixtral"}) {
    const std::vector<Generated> exact = Model(fixture("models/" + name), DType::kBF16).alone();
    for (const Quantization quantization : {Quantization::kInt8, Quantization::kInt4, Quantization::kW4A8, Quantization::kFp8}) {
      CAPTURE(name);
      CAPTURE(std::string(quantization_name(quantization)));
      Model m(fixture("models/" + name), DType::kBF16);
      m.options.cpu.quantization = quantization;
      CHECK(mean_difference(check_schedules(m), exact) <= 2 * mean_difference(m.alone(), exact) + 0.02);
    }
  }
}

TEST_CASE("checkpoints of few bits: each rank takes its part of them, and the answers are one GPU's") {
  for (const std::string name : {"gptq-4", "awq", "w4a16", "w8a16", "nf4", "sparse24-f16"}) {
    CAPTURE(name);
    const Model m(fixture("quantized/" + name), name == "w4a16" || name == "w8a16" ? DType::kBF16 : DType::kF16);
    CHECK(mean_difference(check_schedules(m), m.alone()) <= 0.05);
  }
}

// Where a rank has some columns of a product, it has any number of those of a group: such weights are widened.
TEST_CASE("GPTQ's columns in any order: each rank takes its part of them, and the answers are one GPU's") {
  for (const int bits : {4, 8}) {
    CAPTURE(bits);
    const TempDir dir;
    write_gptq_model(dir.path(), {bits, 32});
    const Model m(dir.path(), DType::kF16);
    CHECK(mean_difference(check_schedules(m), m.alone()) <= 0.05);
  }
}

// Whole experts each, so no scale is another one.
TEST_CASE("experts in MXFP4 stay packed on each rank: one GPU's answers, and its bytes of weights divided") {
  const Model m(fixture("models/gpt_oss-mxfp4"), DType::kBF16);
  const auto alone = loaded(make_cuda_backend(0), m.config, m.options);
  CHECK(mean_difference(check_schedules(m), generate_one_by_one(*alone, m.requests, 64)) <= 0.05);
  const auto ranks = m.ranks();
  CHECK(static_cast<double>(ranks->info().weight_bytes) <= 1.1 * static_cast<double>(alone->info().weight_bytes));
}

TEST_CASE("three sets of keys and values, over two GPUs and over three: whole groups of heads each, one GPU's answers") {
  ModelConfig config = tiny_config();
  config.num_attention_heads = 6, config.num_key_value_heads = 3;
  const TempDir dir;
  write_model(dir.path(), config, random_tensors(config, 21));
  for (const int32_t size : {2, 3}) {
    CAPTURE(size);
    const Model m(dir.path(), DType::kF32);
    const auto answers = check_schedules(m, size), expected = m.alone();
    for (size_t i = 0; i < answers.size(); ++i) {
      CHECK(answers[i].tokens == expected[i].tokens);
      for (size_t k = 0; k < answers[i].logprobs.size(); ++k)
        CHECK(std::fabs(answers[i].logprobs[k] - expected[i].logprobs[k]) <= 1e-4);
    }
  }
}

}  // namespace
}  // namespace llmb::test
