// Values for all that lines leave open: the job's own settings over the model's files over built-in defaults.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "core/model_config.h"
#include "core/pooling.h"
#include "core/request.h"
#include "model/config_loader.h"

namespace llmb {

// Unset members leave the decision to the model's files.
struct GenerationDefaults {
  std::optional<int32_t> max_tokens, min_tokens, top_k, logprobs, n, best_of;
  std::optional<double> temperature, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty;
  std::vector<std::pair<TokenId, float>> logit_bias;  // by increasing token
  std::vector<std::string> stop;
  std::vector<TokenId> stop_token_ids;
  std::optional<TruncateSide> truncate;
  int32_t repetition_tokens = 0;
  Task task = Task::kGenerate;
  std::optional<int32_t> dimensions;   // of a run that embeds: so many values of each vector
  std::vector<std::string> judge_words;  // of a run that classifies by a word: that against a pair, that for it
  std::optional<PoolingKind> pooling;  // of a run that embeds: this, whatever the model's files say
  std::shared_ptr<const AnswerForm> form;  // null: any text; its field names the option
  bool ignore_eos = false, include_stop_str_in_output = false, skip_special_tokens = true, return_token_ids = false;
};

// Settings over generation_config.json (max_new_tokens: max_tokens of all forms of lines) over built-in defaults.
// kInvalidArgument: a token that the model does not have, or an empty stop string.
Result<GenerationParams> generation_params(const GenerationDefaults& defaults, const GenerationConfig& generation,
                                           const ModelConfig& model);

}  // namespace llmb
