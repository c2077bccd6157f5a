#include "chat/chat_template.h"

#include <algorithm>
#include <array>
#include <mutex>
#include <new>
#include <nlohmann/json.hpp>
#include <set>

#include "chat/chat_template_files.h"
#include "jinja/interpreter.h"
#include "jinja/json.h"
#include "jinja/lexer.h"
#include "jinja/ops.h"
#include "jinja/parser.h"
#include "jinja/text.h"

namespace llmb {

namespace {

using jinja::Dict;
using jinja::Heap;
using jinja::Interpreter;
using jinja::List;
using jinja::Type;
using jinja::Value;
using SpecialTokens = std::map<std::string, std::string>;

struct Source {
  std::string text;
  std::unique_ptr<jinja::Template> parsed;
  // Whether it reads contents that are lists of parts; found out where the first one comes.
  mutable std::once_flag looked;
  mutable bool reads_parts = false;
};

Status parse_source(std::string_view text, Source* source) {
  try {
    source->parsed = jinja::parse_template(text);
    source->text = text;
    return {};
  } catch (const jinja::Error& e) {
    return e.status();
  }
}

// ---- what transformers does to a conversation before and after the template ---------------------

// Goes behind the text that is to be continued; where it comes out is where the prompt ends.
constexpr std::string_view kContinueTag = "CONTINUE_FINAL_MESSAGE_TAG ";
constexpr std::array<std::string_view, 3> kReasoningFields = {"reasoning_content", "thinking", "reasoning"};

// A message without its null fields, its reasoning known under each of the names that templates read.
Value prepare_message(Heap& heap, const Value& message) {
  if (!message.is(Type::kDict)) throw jinja::value_error("each message must be a JSON object");
  auto& given = message.as<Dict>();
  Value reasoning;
  for (const std::string_view field : kReasoningFields) {
    const Value* v = given.find(field);
    if (reasoning.is_missing() && v != nullptr && !v->is_none()) reasoning = *v;
  }
  auto* dict = heap.make<Dict>();
  Value result(Type::kDict, dict);
  const auto key = [&](std::string_view name) { return jinja::make_string(heap, std::string(name)); };
  if (!reasoning.is_missing()) dict->set(key("thinking"), reasoning);
  for (const auto& [name, value] : given.entries) {
    if (!value.is_none()) dict->set(name, value);
  }
  if (!reasoning.is_missing()) dict->set(key("reasoning_content"), reasoning);
  return result;
}

// The text of a content that is a list of text parts; missing where it is anything else.
Value joined_parts(Heap& heap, const Value& content) {
  if (!content.is(Type::kList) || content.as<List>().items.empty()) return {};
  std::string text;
  for (const Value& part : content.as<List>().items) {
    const Value* found = part.is(Type::kDict) ? part.as<Dict>().find("text") : nullptr;
    if (found == nullptr || !found->is_string()) return {};
    if (&part != &content.as<List>().items.front()) text += '\n';
    text += jinja::text_of(*found);
  }
  return jinja::make_string(heap, std::move(text));
}

template <typename ReadsParts>
void join_parts(Heap& heap, const Value& messages, const ReadsParts& reads_parts) {
  for (const Value& message : messages.as<List>().items) {
    const Value* content = message.as<Dict>().find("content");
    const Value text = content != nullptr ? joined_parts(heap, *content) : Value();
    if (text.is_missing()) continue;
    if (reads_parts()) return;
    message.as<Dict>().set(jinja::make_string(heap, "content"), text);
  }
}

Value prepare_messages(Heap& heap, const std::string& json) {
  const Value given = jinja::parse_json(heap, json, "messages");
  if (!given.is(Type::kList)) throw jinja::value_error("messages must be a JSON array");
  if (given.as<List>().items.empty()) throw jinja::value_error("messages must not be empty");
  auto* list = heap.make<List>();
  Value result = jinja::make_list(list);
  for (const Value& message : given.as<List>().items) list->push(prepare_message(heap, message));
  return result;
}

// Puts the tag behind the last message's text, which it returns.
Value tag_final_message(Heap& heap, const Value& messages, const std::string& template_text) {
  auto& last = messages.as<List>().items.back().as<Dict>();
  const Value* content = last.find("content");
  if (content == nullptr)
    throw jinja::value_error("continue_final_message: the final message has no content to continue");
  if (template_text.find("content") == std::string::npos) {
    throw jinja::value_error("continue_final_message: the chat template does not use content");
  }
  const auto tagged = [&](const Value& text) {
    if (!text.is_string()) throw jinja::type_error("continue_final_message: the content to continue is not text");
    return binary(heap, jinja::BinaryOp::kAdd, text, jinja::make_string(heap, std::string(kContinueTag)));
  };
  Value text = *content;
  if (!text.is(Type::kList)) {
    last.set(jinja::make_string(heap, "content"), tagged(text));
    return text;
  }
  const auto& blocks = text.as<List>().items;
  for (auto block = blocks.rbegin(); block != blocks.rend(); ++block) {
    const Value* found = block->is(Type::kDict) ? block->as<Dict>().find("text") : nullptr;
    if (found == nullptr) continue;
    const Value original = *found;
    block->as<Dict>().set(jinja::make_string(heap, "text"), tagged(original));
    return original;
  }
  throw jinja::value_error("continue_final_message: the final message has no text to continue");
}

// Cuts the prompt where the tag came out.
std::string cut_at_tag(std::string prompt, std::string_view final_text) {
  const std::string_view tag = jinja::strip(kContinueTag, jinja::Side::kRight);
  const size_t at = prompt.rfind(tag);
  if (at == std::string::npos ||
      jinja::find_text(prompt, jinja::strip(final_text, jinja::Side::kBoth)) == std::string::npos) {
    throw jinja::value_error("continue_final_message: the chat template does not print the final message as it is");
  }
  const bool kept = std::string_view(prompt).substr(at).starts_with(kContinueTag);
  prompt.resize(at);
  // Where the template trimmed the message, what stood before the tag goes too.
  if (!kept) prompt.resize(jinja::strip(prompt, jinja::Side::kRight).size());
  return prompt;
}

// The caller's variables; some are the request's own flags under another roof.
void set_keyword_variables(Interpreter& interpreter, const Value& keywords, bool* generate, bool* continue_final) {
  for (const auto& [name, value] : keywords.as<Dict>().entries) {
    const std::string key(jinja::text_of(name));
    if (key == "messages" || key == "conversation" || key == "chat_template" || key == "tokenize") {
      throw jinja::value_error("chat_template_kwargs must not set '" + key + "'");
    }
    if (key == "add_generation_prompt") *generate = truthy(value);
    else if (key == "continue_final_message") *continue_final = truthy(value);
    else interpreter.set_variable(key, value);
  }
}

bool reads_parts(const Source& source, const SpecialTokens& special_tokens);

std::string render_source(const Source& source, const SpecialTokens& special_tokens, const ChatMessages& chat,
                          TextParts text_parts) {
  Heap heap{jinja::Limits{}};
  std::string prompt;
  {
    Interpreter interpreter(*source.parsed, heap);
    for (const auto& [name, text] : special_tokens) interpreter.set_variable(name, jinja::make_string(heap, text));
    interpreter.set_variable("documents", Value::none());
    interpreter.set_variable("tools", Value::none());
    if (!chat.tools_json.empty()) {
      const Value tools = jinja::parse_json(heap, chat.tools_json, "tools");
      if (!tools.is(Type::kList)) throw jinja::value_error("tools must be a JSON array");
      interpreter.set_variable("tools", tools);
    }
    bool generate = chat.add_generation_prompt, continue_final = chat.continue_final_message;
    if (!chat.template_kwargs_json.empty()) {
      const Value keywords = jinja::parse_json(heap, chat.template_kwargs_json, "chat_template_kwargs");
      if (!keywords.is(Type::kDict)) throw jinja::value_error("chat_template_kwargs must be a JSON object");
      set_keyword_variables(interpreter, keywords, &generate, &continue_final);
    }
    if (generate && continue_final) {
      throw jinja::value_error("continue_final_message and add_generation_prompt cannot be combined");
    }
    const Value messages = prepare_messages(heap, chat.messages_json);
    if (text_parts == TextParts::kJoined)
      join_parts(heap, messages, [&] { return reads_parts(source, special_tokens); });
    const Value final_text = continue_final ? tag_final_message(heap, messages, source.text) : Value();
    interpreter.set_variable("messages", messages);
    interpreter.set_variable("add_generation_prompt", Value::boolean(generate));
    prompt = interpreter.run();
    if (continue_final) prompt = cut_at_tag(std::move(prompt), jinja::text_of(final_text));
  }
  return prompt;
}

// The text around the word in the prompt that the template makes of a message with this content; "" where it refuses.
std::string surroundings(const Source& source, const SpecialTokens& special_tokens, const std::string& content_json) {
  constexpr std::string_view kWord = "WORD";
  constexpr size_t kWidth = 8;
  try {
    ChatMessages chat;
    chat.messages_json = R"([{"role":"user","content":)" + content_json + "}]";
    const std::string prompt = render_source(source, special_tokens, chat, TextParts::kAsGiven);
    const size_t at = prompt.rfind(kWord);
    if (at == std::string::npos) return "";
    const size_t begin = at - std::min(at, kWidth);
    return prompt.substr(begin, at - begin + kWord.size() + kWidth);
  } catch (const jinja::Error&) {
    return "";
  }
}

// A template reads parts if it prints the same for a text as for the list that holds it.
bool reads_parts(const Source& source, const SpecialTokens& special_tokens) {
  std::call_once(source.looked, [&] {
    const std::string text = surroundings(source, special_tokens, R"("WORD")");
    const std::string parts = surroundings(source, special_tokens, R"([{"type":"text","text":"WORD"}])");
    source.reads_parts = !parts.empty() && parts == text;
  });
  return source.reads_parts;
}

}  // namespace

struct ChatTemplate::Parts {
  SpecialTokens special_tokens;
  Source standard;  // no parsed template: the model has only one for tools
  Source tool_use;  // no parsed template: the standard one serves requests with tools too
  bool reads_effort = false;      // a variable reasoning_effort
  std::string thinking_variable;  // that switches thinking on and off; "": none
};

ChatTemplate::ChatTemplate(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {
  for (const Source* source : {&parts_->standard, &parts_->tool_use}) {
    // It may be read within a macro only.
    parts_->reads_effort = parts_->reads_effort || source->text.find("reasoning_effort") != std::string::npos;
    if (source->parsed == nullptr) continue;
    for (const jinja::Variable& variable : source->parsed->block.frame.variables)
      if (variable.name == "enable_thinking" || variable.name == "thinking")
        if (parts_->thinking_variable != "enable_thinking") parts_->thinking_variable = variable.name;
  }
}
ChatTemplate::~ChatTemplate() = default;

Result<std::unique_ptr<ChatTemplate>> ChatTemplate::load(const std::string& model_dir,
                                                         const std::string& template_file) {
  LLMB_ASSIGN_OR_RETURN(ChatTemplateFiles files, read_chat_template_files(model_dir, template_file));
  auto parts = std::make_unique<Parts>();
  parts->special_tokens = std::move(files.special_tokens);
  for (auto& [name, place] : {std::pair{"default", &parts->standard}, std::pair{"tool_use", &parts->tool_use}}) {
    const auto text = files.templates.find(name);
    if (text == files.templates.end()) continue;
    LLMB_RETURN_IF_ERROR(parse_source(text->second, place)
                             .with_context((template_file.empty() ? model_dir : template_file) + ": chat template"));
  }
  return std::unique_ptr<ChatTemplate>(new ChatTemplate(std::move(parts)));
}

Result<std::unique_ptr<ChatTemplate>> ChatTemplate::parse(std::string_view source, SpecialTokens special_tokens) {
  auto parts = std::make_unique<Parts>();
  parts->special_tokens = std::move(special_tokens);
  LLMB_RETURN_IF_ERROR(parse_source(source, &parts->standard));
  return std::unique_ptr<ChatTemplate>(new ChatTemplate(std::move(parts)));
}

namespace {

void collect_names(const jinja::FrameInfo& frame, std::set<std::string>* names) {
  for (const jinja::Variable& variable : frame.variables)
    if (variable.load == jinja::Load::kResolve) names->insert(variable.name);
}

void collect_unknown(const jinja::Body& body, std::set<std::string>* names) {
  jinja::visit_tree(body, [&](const jinja::Expr& e) {
    const bool is_call = e.kind == jinja::ExprKind::kFilter || e.kind == jinja::ExprKind::kTest;
    if (is_call && e.function == nullptr) names->insert(e.text);
  });
}

}  // namespace

ChatTemplateSummary ChatTemplate::summary() const {
  ChatTemplateSummary summary;
  summary.has_tool_template = parts_->tool_use.parsed != nullptr;
  std::set<std::string> variables, unknown;
  for (const Source* source : {&parts_->standard, &parts_->tool_use}) {
    if (source->parsed == nullptr) continue;
    collect_names(source->parsed->block.frame, &variables);
    collect_unknown(source->parsed->block.body, &unknown);
  }
  summary.variables.assign(variables.begin(), variables.end());
  summary.unknown_names.assign(unknown.begin(), unknown.end());
  if (parts_->standard.parsed != nullptr)
    summary.reads_text_parts = reads_parts(parts_->standard, parts_->special_tokens);
  return summary;
}

bool ChatTemplate::set_effort(ChatMessages* chat) const {
  nlohmann::ordered_json keywords = nlohmann::ordered_json::object();
  if (!chat->template_kwargs_json.empty()) keywords = nlohmann::ordered_json::parse(chat->template_kwargs_json);
  bool is_read = false;
  const auto set = [&](const char* name, const nlohmann::ordered_json& value) {
    if (!keywords.contains(name)) keywords[name] = value;
    is_read = true;
  };
  const bool thinks = chat->reasoning_effort != "none";
  if (parts_->reads_effort) set("reasoning_effort", chat->reasoning_effort);
  if (!parts_->thinking_variable.empty()) set(parts_->thinking_variable.c_str(), thinks);
  chat->template_kwargs_json = keywords.dump();
  return is_read;
}

Result<std::string> ChatTemplate::render(const ChatMessages& chat, TextParts text_parts) const {
  const bool for_tools = !chat.tools_json.empty() && parts_->tool_use.parsed != nullptr;
  const Source& source = for_tools ? parts_->tool_use : parts_->standard;
  if (source.parsed == nullptr) return invalid_argument("the model has a chat template for requests with tools only");
  try {
    return render_source(source, parts_->special_tokens, chat, text_parts);
  } catch (const jinja::Error& e) {
    return e.status();
  }
}

}  // namespace llmb
