#include "tokenizer/chat_template.h"

namespace llmb {

struct ChatTemplate::Parts {};

ChatTemplate::ChatTemplate(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
ChatTemplate::~ChatTemplate() = default;

Result<std::unique_ptr<ChatTemplate>> ChatTemplate::load(const std::string&) {
  return unsupported("chat templates are not built yet");
}

Result<std::unique_ptr<ChatTemplate>> ChatTemplate::parse(std::string_view, std::map<std::string, std::string>) {
  return unsupported("chat templates are not built yet");
}

Result<std::string> ChatTemplate::render(const ChatTemplateInput&) const {
  return unsupported("chat templates are not built yet");
}

}  // namespace llmb
