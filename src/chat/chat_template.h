// A model's chat template: renders a conversation to the prompt text, as transformers' apply_chat_template does.
// The template is the model's; nothing from an input line is ever parsed as a template.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "core/chat_messages.h"

namespace llmb {

// A content that is a list of text parts, given to a template that does not read parts.
enum class TextParts {
  kAsGiven,  // the template prints what it would in transformers: nothing, or the list itself
  kJoined,   // becomes one string, a newline between parts
};

// A template's demands on its caller and on the interpreter, for people.
struct ChatTemplateSummary {
  std::vector<std::string> variables;  // names that it reads and does not set: messages, tools, enable_thinking, …
  std::vector<std::string> unknown_names;  // filters and tests that there are not; an error where one is reached
  bool reads_text_parts = false;
  bool has_tool_template = false;  // another one serves requests with tools
};

// Immutable after construction; render() may be called from any number of threads.
// Invariants: 1. a render uses at most the budgets of jinja::Limits (steps, memory, output, depth), whatever the
// template and the messages are; 2. render() depends on its arguments and, through strftime_now only, on the clock.
class ChatTemplate {
 public:
  // From <model_dir>/chat_template.jinja, else from tokenizer_config.json's chat_template: a string, or a list of
  // {name, template} with "default" and "tool_use" (used for requests with tools). Or from a GGUF file. kNotFound: the
  // model has none.
  // template_file, where given (--chat-template), takes the place of the model's templates, not of its special tokens.
  static Result<std::unique_ptr<ChatTemplate>> load(const std::string& model_dir,
                                                    const std::string& template_file = "");

  // special_tokens: name (bos_token, eos_token, …) → text; each becomes a variable of the template.
  static Result<std::unique_ptr<ChatTemplate>> parse(std::string_view source,
                                                     std::map<std::string, std::string> special_tokens);
  ~ChatTemplate();

  // The prompt text. kInvalidArgument: the template or its raise_exception refused the conversation, or the
  // conversation is not what it should be; kResourceExhausted: a budget. The message is ready for a template_error
  // record.
  Result<std::string> render(const ChatMessages& chat, TextParts text_parts = TextParts::kAsGiven) const;

  ChatTemplateSummary summary() const;
  // Makes template variables of the conversation's reasoning_effort: reasoning_effort where the template reads it, and
  // enable_thinking or thinking, false for "none". Variables that the conversation sets stay. False: it reads none.
  bool set_effort(ChatMessages* chat) const;

 private:
  struct Parts;
  explicit ChatTemplate(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace llmb
