// A conversation: io reads it from a line, chat renders it to the prompt's text.
#pragma once

#include <string>

namespace llmb {

// JSON texts, as the line had them. io/chat_messages checks what a line says; a chat template checks only the outermost
// types.
struct ChatMessages {
  std::string messages_json;         // a non-empty array of message objects
  std::string tools_json;            // "" or an array
  std::string template_kwargs_json;  // "" or an object: extra variables (chat_template_kwargs)
  bool add_generation_prompt = true;
  bool continue_final_message = false;  // the prompt ends inside the last message; add_generation_prompt must be false
};

}  // namespace llmb
