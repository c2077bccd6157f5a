// Choices whose tokens a line gives: how likely each is behind the prompt is asked for (ScoreParams::options).
//
// Such a choice is a sequence like any other, but its constraint allows one token at a time. So prompts are computed
// once and shared, tokens without a choice need no steps of their own where drafts have room, and a token's
// log-probability is that of the model's distribution, which constraints do not change.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/completion.h"
#include "core/request.h"
#include "core/token_constraint.h"
#include "engine/request_preparer.h"

namespace llmb {

// The text that a prompt was made of, where it is known.
struct PromptText {
  std::string text;
  bool adds_special_tokens = false;  // when it is encoded
};

// Allows `tokens` one after the other. vocab_size: of the masks.
std::shared_ptr<const TokenConstraint> given_tokens(std::vector<TokenId> tokens, int32_t vocab_size);

// Sets the request's options, and its parameters so that each is computed whole. An option's tokens are those that
// follow the prompt's when both are encoded together; where these begin with other tokens than the prompt's, or `text` is
// null, those of the option by itself. REQUIRES: request->prompt_tokens and params are set, and there are options
std::optional<RequestError> set_options(const PromptText* text, const ModelContext& model, Request* request);

}  // namespace llmb
