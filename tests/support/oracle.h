// A model computed the slow and obvious way: fp64, one sequence, no cache, no fusion, every row of every
// layer. Shares no code with src/model or kernels.
#pragma once

#include <span>
#include <vector>

#include "core/model_config.h"
#include "core/types.h"
#include "tests/support/tiny_model.h"

namespace llmb::test {

class Oracle {
 public:
  Oracle(const ModelConfig& config, TestTensors tensors) : config_(config), tensors_(std::move(tensors)) {}

  // Row i: the natural-log probabilities of the token after tokens[0 … i].
  std::vector<std::vector<double>> log_probs(std::span<const TokenId> tokens) const;  // [num_tokens, vocab_size]

  struct Greedy {
    std::vector<TokenId> tokens;
    std::vector<double> logprobs;
  };
  Greedy greedy(std::vector<TokenId> prompt, int num_tokens) const;

 private:
  using Row = std::vector<double>;
  using Rows = std::vector<Row>;

  const TestTensor& tensor(const std::string& name) const { return tensors_.at(name); }
  Row linear(const std::string& name, const Row& x) const;
  Row rms_norm(const std::string& name, const Row& x) const;
  void rotate(Row* heads, int num_heads, int position) const;
  double frequency(int i) const;
  Rows attention(const std::string& prefix, const Rows& x) const;
  Row mlp(const std::string& prefix, const Row& x) const;

  const ModelConfig config_;
  const TestTensors tensors_;
};

}  // namespace llmb::test
