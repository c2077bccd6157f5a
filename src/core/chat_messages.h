// A conversation: io reads it from a line, chat renders it to the prompt's text.
#pragma once

#include <cstdint>
#include <string>

namespace llmb {

// Whether and which tools an answer must call.
enum class ToolChoice : uint8_t { kAuto, kRequired, kNamed };

// JSON texts, as the line had them. io/chat_messages checks what a line says; a chat template checks only the outermost
// types.
struct ChatMessages {
  std::string messages_json;         // a non-empty array of message objects
  std::string tools_json;            // "" or an array
  std::string template_kwargs_json;  // "" or an object: extra variables (chat_template_kwargs)
  ToolChoice tool_choice = ToolChoice::kAuto;  // else there are tools, each a function with a name
  std::string tool_name;                       // of kNamed: one of the tools'
  bool has_one_call = false;                   // at most, where the form of an answer decides it
  std::string reasoning_effort;                // "": the template's own
  bool add_generation_prompt = true;
  bool continue_final_message = false;  // the prompt ends inside the last message; add_generation_prompt must be false
};

}  // namespace llmb
