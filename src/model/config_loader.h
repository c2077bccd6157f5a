// Reads config.json and generation_config.json of a Hugging Face model directory, or what stands for them in a GGUF
// file (gguf_model.h). Nothing in them is trusted: what comes out has sizes in sane ranges and only features that the
// forward pass has; everything else is refused by name.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "core/model_config.h"

namespace llmb {

// The sampling defaults that a model's author recommends. Absent: the file does not say.
struct GenerationConfig {
  std::vector<TokenId> eos_token_ids;
  std::optional<bool> do_sample;
  std::optional<float> temperature;
  std::optional<float> top_p;
  std::optional<int32_t> top_k;
  std::optional<float> min_p;
  std::optional<float> repetition_penalty;
  std::optional<int32_t> max_new_tokens;
};

// kNotFound, kDataLoss (not JSON, a value out of range), kUnsupported (recognised, not built; names it).
Result<ModelConfig> load_model_config(const std::string& model_dir);
Result<ModelConfig> parse_model_config(std::string_view json);

// All absent where the directory has no generation_config.json.
Result<GenerationConfig> load_generation_config(const std::string& model_dir);
Result<GenerationConfig> parse_generation_config(std::string_view json);

// The tokens that end a sequence: generation_config's where it names any, otherwise config.json's. Tokens that the
// model does not have are left out: they have no logit that min_tokens could forbid.
std::vector<TokenId> merge_eos_token_ids(const ModelConfig& model, const GenerationConfig& generation);

}  // namespace llmb
