// Which tokens the answers to a line may have: its form, the calls that it asks for, what it may think, its token rules.
#pragma once

#include <cstdint>
#include <optional>

#include "core/completion.h"
#include "core/request.h"
#include "engine/request_preparer.h"

namespace llmb {

// How a prompt ends.
enum class PromptReasoning : uint8_t { kNone, kOpen, kClosed };

// Takes form and token rules out of the input's params, and sets the request's constraint and its bytes. An error is
// that of the line.
std::optional<RequestError> set_constraint(InputRequest* input, PromptReasoning prompt, const ModelContext& model,
                                           Request* request);

}  // namespace llmb
