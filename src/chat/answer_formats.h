// Which format a model writes calls and reasoning in, as its chat template's text tells.
#pragma once

#include <string_view>

#include "core/answer_split.h"

namespace llmb {

// kNone where the text has no mark of a known format.
ToolCallFormat call_format_of_template(std::string_view text);
ReasoningFormat reasoning_format_of_template(std::string_view text);

}  // namespace llmb
