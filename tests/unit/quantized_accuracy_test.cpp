// Accuracy of quantised weights and rounded activations: logits and perplexity beside those of the weights as
// they are stored, on the golden models and on the bundled one. kernels/README.md states the figures that this prints.
#include <doctest/doctest.h>

#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "model/config_loader.h"
#include "tests/support/golden.h"
#include "tests/support/plan_builder.h"
#include "tests/support/thread_ranks.h"
#include "tokenizer/tokenizer.h"

namespace llmb::test {
namespace {

using Text = std::vector<TokenId>;

// The rounding of weights and of activations that are multiplied with them.
struct Rounding {
  Quantization quantization;
  DType activations = DType::kF32;
  int32_t num_ranks = 1;

  std::string name() const {
    const std::string what = quantization != Quantization::kNone ? quantization_name(quantization)
                                                                 : std::string("activations in ") + dtype_name(activations);
    return what + " over " + std::to_string(num_ranks);
  }
};

// Log probabilities of the whole vocabulary behind every token of the texts.
std::vector<std::vector<float>> distributions(const std::string& dir, const std::vector<Text>& texts,
                                              const Rounding& rounding) {
  const ModelConfig config = load_model_config(dir).value();
  const std::unique_ptr<Backend> backend =
      rounding.num_ranks > 1 ? std::unique_ptr<Backend>(make_thread_ranks(rounding.num_ranks)) : make_cpu_backend();
  LoadOptions options;
  options.model_dir = dir;
  options.max_num_seqs = 32;
  options.max_num_batched_tokens = 512;
  options.max_model_len = config.max_position_embeddings;
  options.num_threads = rounding.num_ranks > 1 ? 1 : 2;
  options.cpu.quantization = rounding.quantization;
  options.dtype = rounding.activations;
  const Status status = backend->load(config, options);
  REQUIRE_MESSAGE(status.ok(), status.message());
  std::vector<GenerateRequest> requests;
  for (const Text& text : texts) {
    for (size_t n = 1; n <= text.size(); ++n) {
      GenerateRequest& r = requests.emplace_back();
      r.prompt.assign(text.begin(), text.begin() + static_cast<int64_t>(n));
      r.sampling.num_logprobs = config.vocab_size;
    }
  }
  std::vector<std::vector<float>> out;
  for (const Generated& g : generate_one_by_one(*backend, requests, 512)) {
    std::vector<float>& row = out.emplace_back(config.vocab_size, NAN);
    for (size_t i = 0; i < g.top_tokens[0].size(); ++i) row.at(g.top_tokens[0][i]) = g.top_logprobs[0][i];
  }
  return out;
}

struct Accuracy {
  double logit_error;       // rms difference of log probabilities, as a share of their spread over the vocabulary
  double perplexity_ratio;  // on the texts, to that of the stored weights
};

Accuracy compare_with_stored(const std::string& dir, const std::vector<Text>& texts, const Rounding& rounding) {
  const auto stored = distributions(dir, texts, {Quantization::kNone});
  const auto rounded = distributions(dir, texts, rounding);
  double error = 0, spread = 0, difference = 0;
  int64_t num_predicted = 0;
  size_t row = 0;
  for (const Text& text : texts) {
    for (size_t n = 0; n < text.size(); ++n, ++row) {
      double mean = 0;
      for (const float l : stored[row]) mean += l / double(stored[row].size());
      for (size_t i = 0; i < stored[row].size(); ++i) {
        REQUIRE(std::isfinite(rounded[row][i]));
        error += std::pow(rounded[row][i] - stored[row][i], 2);
        spread += std::pow(stored[row][i] - mean, 2);
      }
      if (n + 1 == text.size()) continue;
      difference += stored[row][text[n + 1]] - rounded[row][text[n + 1]];
      ++num_predicted;
    }
  }
  return {std::sqrt(error / spread), std::exp(difference / double(num_predicted))};
}

void check(const std::string& name, const std::string& dir, const std::vector<Text>& texts, const Rounding& rounding,
           const Accuracy& limit) {
  const Accuracy a = compare_with_stored(dir, texts, rounding);
  MESSAGE(name << ", " << rounding.name() << ": logit error " << 100 * a.logit_error << " %, perplexity x "
               << a.perplexity_ratio);
  CHECK(a.logit_error <= limit.logit_error);
  CHECK(a.perplexity_ratio <= limit.perplexity_ratio);
}

}  // namespace

TEST_CASE("golden models: logits and perplexity of what is rounded stay near those of stored weights") {
  // Random weights of 32 features: what is left out of one of them weighs more than in any model with a use.
  for (const std::string name : {"llama-bf16", "llama-gqa", "qwen2", "qwen3", "gemma2", "gpt_oss", "falcon"}) {
    const std::string dir = source_dir() + "/data/fixtures/models/" + name;
    std::vector<Text> texts;
    for (const auto& line : read_json_lines(dir + "/golden.jsonl")) {
      Text& text = texts.emplace_back(line.at("prompt_token_ids").get<Text>());
      for (const TokenId token : line.at("token_ids").get<Text>()) text.push_back(token);
    }
    check(name, dir, texts, {Quantization::kInt8}, {0.07, 1.03});
    check(name, dir, texts, {Quantization::kInt4}, {0.5, 1.8});
    check(name, dir, texts, {Quantization::kW4A8}, {0.5, 1.8});
    if (load_model_config(dir)->dtype == DType::kBF16)
      check(name, dir, texts, {Quantization::kNone, DType::kBF16}, {0.02, 1.01});
  }
}

TEST_CASE("the bundled model: logits and perplexity of what is rounded stay near those of stored weights") {
  const std::string dir = source_dir() + "/data/model";
  const auto tokenizer = Tokenizer::load(dir);
  REQUIRE(tokenizer.ok());
  std::vector<Text> texts;
  const auto lines = read_json_lines(source_dir() + "/data/eval/heldout.jsonl");
  for (size_t i = 0; i < lines.size() && texts.size() < 14; i += lines.size() / 14) {
    const std::string text = "<|user|>" + lines[i].at("messages")[0].at("content").get<std::string>() +
                             "<|end|><|assistant|>" + lines[i].at("metadata").at("expected").get<std::string>() +
                             "<|end|>";
    texts.push_back((*tokenizer)->encode(text, false));
  }
  check("bundled", dir, texts, {Quantization::kInt8}, {0.06, 1.02});
  check("bundled", dir, texts, {Quantization::kInt4}, {0.25, 1.05});
  check("bundled", dir, texts, {Quantization::kW4A8}, {0.25, 1.05});
  check("bundled", dir, texts, {Quantization::kNone, DType::kBF16}, {0.02, 1.01});
  texts.resize(2);  // each token is a step, in which ranks wait for each other
  check("bundled", dir, texts, {Quantization::kInt8, DType::kF32, 2}, {0.06, 1.02});
  check("bundled", dir, texts, {Quantization::kInt4, DType::kF32, 2}, {0.25, 1.05});
  check("bundled", dir, texts, {Quantization::kW4A8, DType::kF32, 4}, {0.25, 1.05});
}

}  // namespace llmb::test
