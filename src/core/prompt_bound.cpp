#include "core/prompt_bound.h"

namespace llmb {

RequestError prompt_too_long(const PromptBound& bound, const std::string& num_tokens, std::string_view field) {
  return {"prompt_too_long",
          "the prompt has " + num_tokens + " tokens; at most " +
              std::to_string(bound.max_model_len - bound.num_reserved) +
              (bound.num_reserved > 0 ? " leave room for one output token" : " are computed") + " (max_model_len " +
              std::to_string(bound.max_model_len) + "); --truncate cuts it",
          std::string(field)};
}

RequestError text_too_long(const PromptBound& bound, size_t num_tokens, size_t num_bytes, std::string_view field) {
  if (num_bytes <= bound.max_text_bytes)
    return prompt_too_long(bound, "at least " + std::to_string(num_tokens), field);
  return {"prompt_too_long",
          "the prompt has at least " + std::to_string(num_bytes) + " bytes; texts of more than " +
              std::to_string(bound.max_text_bytes) + " are not encoded for max_model_len " +
              std::to_string(bound.max_model_len) + "; --truncate cuts it",
          std::string(field)};
}

}  // namespace llmb
