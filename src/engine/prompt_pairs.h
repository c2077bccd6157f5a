// A prompt as tokens, and pairs of texts that are one. Private to the preparer of requests.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/answer_constraint.h"
#include "engine/given_answers.h"
#include "engine/request_preparer.h"

namespace llmb {

struct PreparedPrompt {
  std::vector<TokenId> tokens;
  int32_t second_text = INT32_MAX;  // as in Request
  int32_t num_cut = 0;
  PromptReasoning reasoning = PromptReasoning::kNone;
  PromptText text;  // of messages
};

// No tokens, more than the model takes, or some that it does not have. field: that held the prompt.
std::optional<RequestError> check_tokens(const std::vector<TokenId>& tokens, const ModelContext& model,
                                         const std::string& field);

// The first of two texts, of the second of which `prompt` holds the text.
std::optional<RequestError> prepare_pair(const std::string& first, const PromptInput& prompt,
                                         const GenerationParams& params, const ModelContext& model,
                                         const std::string& field, PreparedPrompt* prepared);

}  // namespace llmb
