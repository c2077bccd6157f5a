// How a model's hidden states become one vector for a text: read from its sentence-transformers files.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "core/model_config.h"
#include "core/pooling.h"

namespace llmb {

// From `model_dir`/modules.json and the configurations of the modules that it names. given: that kind, normalised,
// whatever the files say and where there are none. kUnsupported names what another model wants.
Result<Pooling> load_pooling(const std::string& model_dir, const ModelConfig& config, std::optional<PoolingKind> given);

// Texts that stand in front of those of which vectors are made, by their names; empty ones are left out.
struct TextPrompts {
  std::map<std::string, std::string> texts;
  std::string default_name;  // "": no text
};

// From `model_dir`/config_sentence_transformers.json; none where there is no such file.
Result<TextPrompts> load_text_prompts(const std::string& model_dir);

// The tokens whose logits behind a pair of texts make its score: the one for it, and the one against it.
struct JudgeTokens {
  int32_t yes = 0;
  std::optional<int32_t> no;  // none: the first one's logit is the score
};

// From the module LogitScore (sentence-transformers) that `model_dir`/modules.json names; nullopt: there is none.
Result<std::optional<JudgeTokens>> load_judge_tokens(const std::string& model_dir, const ModelConfig& config);

// Folders of the layers that `model_dir`/modules.json names, relative to it. None where load_pooling() would fail.
std::vector<std::string> pooling_layer_folders(const std::string& model_dir);

// The longest text, in tokens, that `model_dir`/sentence_bert_config.json names; none where it names none.
Result<std::optional<int32_t>> load_max_seq_length(const std::string& model_dir);

}  // namespace llmb
