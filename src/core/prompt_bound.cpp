#include "core/prompt_bound.h"

namespace llmb {

RequestError prompt_too_long(const std::string& num_tokens, int32_t max_model_len, std::string_view field) {
  return {"prompt_too_long",
          "the prompt has " + num_tokens + " tokens; at most " + std::to_string(max_model_len - 1) +
              " leave room for one output token (max_model_len " + std::to_string(max_model_len) +
              "); --truncate cuts it",
          std::string(field)};
}

RequestError text_too_long(const PromptBound& bound, size_t num_tokens, size_t num_bytes, std::string_view field) {
  if (num_bytes <= bound.max_text_bytes)
    return prompt_too_long("at least " + std::to_string(num_tokens), bound.max_model_len, field);
  return {"prompt_too_long",
          "the prompt has at least " + std::to_string(num_bytes) + " bytes; texts of more than " +
              std::to_string(bound.max_text_bytes) + " are not encoded for max_model_len " +
              std::to_string(bound.max_model_len) + "; --truncate cuts it",
          std::string(field)};
}

}  // namespace llmb
