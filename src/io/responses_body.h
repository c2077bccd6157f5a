// The body of an OpenAI batch line for /v1/responses, as the body of a chat line that asks for the same. Its fields:
//   input         a text, or items: messages (texts, or parts of type input_text and output_text), function_call and
//                 function_call_output; instructions: what the system says in front of them
//   tools, tool_choice, parallel_tool_calls      functions only
//   text.format   text, json_object or json_schema; reasoning.effort; max_output_tokens; top_logprobs, which
//                 `include` may ask for, too; and the fields of a chat line that say how to sample and when to stop
// What refers to answers that a server keeps (previous_response_id, conversation, store: true, background: true …) and
// other kinds of tools and items are refused by name.
#pragma once

#include <string>

#include "io/field_values.h"

namespace llmb {

// *chat_json: that body. Fields that both have are left for the reader of chat lines to check.
MaybeError chat_body_of_responses(simdjson::dom::object body, std::string* chat_json);

// Members of a Response that repeat its request, with OpenAI's values where it says nothing; without brackets.
std::string repeated_settings(simdjson::dom::object body);

// The messages of instructions (may be null) and input.
MaybeError read_responses_input(const JsonElement* instructions, JsonElement input, std::string* messages_json);

}  // namespace llmb
