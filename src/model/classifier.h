// The classification heads of models whose config.json names a class ...ForSequenceClassification.
#pragma once

#include <string>

#include "base/status.h"
#include "core/model_config.h"
#include "core/pooling.h"

namespace llmb {

// How scores of labels are made of `config`'s hidden states, from `model_dir`/config.json: which token's states, the
// layers behind them, the labels, and the function that makes scores (as sentence-transformers' CrossEncoder and
// transformers' pipeline have it). kUnsupported: the model has no such head, or another.
//
// Where config_sentence_transformers.json names the function ("activation_fn", since sentence-transformers 5), it counts.
Result<Pooling> load_classifier(const std::string& model_dir, const ModelConfig& config);
Result<Pooling> parse_classifier(std::string_view json, const ModelConfig& config, const std::string& activation = "");

// That function's name; "" where the file names none, or there is no file.
Result<std::string> score_activation(const std::string& model_dir);

}  // namespace llmb
