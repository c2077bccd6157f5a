// Refuses prompts that cannot fit before anybody encodes or copies them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <string_view>

#include "core/completion.h"

namespace llmb {

struct PromptBound {
  int32_t max_model_len = INT32_MAX;
  int32_t num_reserved = 1;  // of these, tokens that a prompt must leave: for one of the answer, if there is one
  // No encoding of a text has fewer tokens, nor has one that the text is a part of.
  std::function<size_t(std::string_view)> num_tokens_at_least = [](std::string_view) { return 0; };
  // Where a text's length says nothing of its tokens (the tokenizer drops text, or has one token for whatever it does
  // not know): a longer text is not encoded.
  size_t max_text_bytes = std::numeric_limits<size_t>::max();

  bool fits(size_t num_tokens, size_t num_bytes) const {
    return num_tokens <= static_cast<size_t>(std::max(max_model_len - num_reserved, 0)) && num_bytes <= max_text_bytes;
  }
};

// The error of a prompt in `field` that does not fit, of which `num_tokens` tells: "512", "at least 512".
RequestError prompt_too_long(const PromptBound& bound, const std::string& num_tokens, std::string_view field);

// The same of a text for which fits() is false.
RequestError text_too_long(const PromptBound& bound, size_t num_tokens, size_t num_bytes, std::string_view field);

}  // namespace llmb
