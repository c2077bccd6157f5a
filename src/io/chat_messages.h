// Checks the "messages" of a chat line and writes them as the JSON text that a chat template is given.
#pragma once

#include <string>

#include "io/field_values.h"

namespace llmb {

// Each message is an object with a "role" (a non-empty string) and a "content": a string, null, or an array of text
// parts, which becomes one string with a newline between parts. Other members stay as they are, in their order.
MaybeError read_messages(JsonElement value, std::string* messages_json);

}  // namespace llmb
