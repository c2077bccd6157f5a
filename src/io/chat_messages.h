// Checks the conversation of a chat line and writes it as the JSON text that a chat template is given.
#pragma once

#include "core/request.h"
#include "io/field_set.h"
#include "io/field_values.h"

namespace llmb {

// Reads messages, which must be there, and the fields that go with them: tools, tool_choice, chat_template_kwargs,
// add_generation_prompt, continue_final_message. In each message
//  1. role is a non-empty string;
//  2. content is a string, null, an array of text parts, or, of a tool's message, an object; beside tool_calls it may
//     be absent;
//  3. a function's arguments that are a JSON object in a string, as OpenAI has them, become that object: templates
//     are written for it;
//  4. other members stay as they are, in their order.
// tool_choice "none" leaves the tools out of the prompt, "auto" is the same as none given; a forced call is not built.
MaybeError read_chat(const FieldSet& fields, ChatMessages* chat);

// In a line without messages the first of those fields that is there is an error.
MaybeError refuse_chat_fields(const FieldSet& fields);

}  // namespace llmb
