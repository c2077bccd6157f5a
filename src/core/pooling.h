// How the hidden states of a text become one vector, or scores of labels.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/activation.h"

namespace llmb {

enum class PoolingKind {
  kLast,   // the last token's state
  kFirst,  // the first token's: of BERT's [CLS]
  kMean,   // the mean of all tokens' states
};

// y = norm(f(W x + b)), behind the pooling.
struct PoolingLayer {
  std::string file;             // a safetensors file; "": the model's own
  std::string name = "linear";  // of its tensors, before .weight and .bias. "a|b": the first that the model has
  int32_t in_features = 0, out_features = 0;
  bool has_bias = true;
  std::optional<Activation> activation;  // f; none: y is the product
  std::string norm;                      // a LayerNorm's name, as above; "": none
  bool norm_has_bias = false;
  std::vector<int32_t> rows;    // not empty: of the weight, which has in_features columns, these rows alone
};

// How what the last layer gives for each label becomes its score.
// kDifference, kLogisticDifference: of a model that judges, whose values are the logits of its two words: how much the
// first exceeds the second, the one label's score.
enum class Scores { kAsIs, kLogistic, kSoftmax, kDifference, kLogisticDifference };

constexpr const char* pooling_name(PoolingKind kind) {
  switch (kind) {
    case PoolingKind::kLast:
      return "last";
    case PoolingKind::kFirst:
      return "cls";
    case PoolingKind::kMean:
      break;
  }
  return "mean";
}

struct Pooling {
  PoolingKind kind = PoolingKind::kLast;
  std::vector<PoolingLayer> layers;
  bool normalizes = true;  // the vector to a length of 1, last
  bool includes_prompt = true;  // a mean's tokens are all, those of a text that stands in front included
  // For a model that classifies: its vectors are scores of these.
  std::vector<std::string> labels;
  Scores scores = Scores::kAsIs;
  bool judges_pairs = false;  // its pairs are a prompt that asks for a word (chat/judge_prompt.h)

  // Whether all of a text must be in one step.
  bool needs_whole_text() const { return kind != PoolingKind::kLast; }
};

}  // namespace llmb
