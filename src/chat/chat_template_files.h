// Where a model keeps its chat templates and the special tokens that they name.
#pragma once

#include <map>
#include <string>

#include "base/status.h"

namespace llmb {

struct ChatTemplateFiles {
  std::map<std::string, std::string> templates;       // by name: "default", "tool_use"; at least one of them
  std::map<std::string, std::string> special_tokens;  // bos_token, eos_token, … → text
};

// ChatTemplate::load says what is read. Nothing is parsed here.
Result<ChatTemplateFiles> read_chat_template_files(const std::string& model_path, const std::string& template_file);

}  // namespace llmb
