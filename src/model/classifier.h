// The classification heads of models whose config.json names a class ...ForSequenceClassification.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "core/model_config.h"
#include "core/pooling.h"
#include "model/pooling.h"

namespace llmb {

// How scores of labels are made of `config`'s hidden states, from `model_dir`/config.json: which token's states, the
// layers behind them, the labels, and the function that makes scores (as sentence-transformers' CrossEncoder and
// transformers' pipeline have it). kUnsupported: the model has no such head, or another.
//
// Where config_sentence_transformers.json names the function ("activation_fn", since sentence-transformers 5), it counts.
Result<Pooling> load_classifier(const std::string& model_dir, const ModelConfig& config);
Result<Pooling> parse_classifier(std::string_view json, const ModelConfig& config, const std::string& activation = "");

// The same of a model that generates and judges pairs by the logits of one or two tokens. The function is the logistic
// one where no file names another. kUnsupported: its logits are more than a product.
Result<Pooling> load_judge(const std::string& model_dir, const ModelConfig& config, const JudgeTokens& tokens);

// The words of `model_dir`/config.json's "classifier_from_token", as vLLM reads it: the one against a pair, and the one
// for it. Empty: it names none.
Result<std::vector<std::string>> load_judge_words(const std::string& model_dir);

// That function's name; "" where the file names none, or there is no file.
Result<std::string> score_activation(const std::string& model_dir);

}  // namespace llmb
