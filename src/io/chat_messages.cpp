#include "io/chat_messages.h"

#include <algorithm>
#include <array>

#include "io/json_scan.h"
#include "io/json_writer.h"
#include "io/tool_fields.h"

namespace llmb {

namespace {

namespace dom = simdjson::dom;

// Members of a message that carry what is not built: they may only be null or empty.
bool is_unsupported_member(std::string_view key) { return key == "function_call" || key == "audio"; }

bool is_tool_role(std::string_view role) { return role == "tool" || role == "ipython"; }

// [{"type": "text", "text": …}, …]
MaybeError check_text_parts(const std::string& field, dom::array parts) {
  size_t index = 0;
  for (const JsonElement part : parts) {
    const std::string place = field + "[" + std::to_string(index++) + "]";
    if (!part.is_object()) return invalid_value(place, "an object with \"type\" and \"text\"", part);
    std::string_view type;
    JsonElement content;
    if (part["type"].get(type) != simdjson::SUCCESS)
      return field_error("missing_field", place + ".type", place + ".type must be a string");
    if (type != "text")
      return field_error("unsupported_field", place + ".type",
                         place + ".type: parts of type " + shown(part["type"].value_unsafe()) +
                             " are not supported; only \"text\" is");
    if (part["text"].get(content) != simdjson::SUCCESS)
      return field_error("missing_field", place + ".text", place + ".text is missing");
    if (!is_string(content)) return invalid_value(place + ".text", "a string", content);
  }
  return std::nullopt;
}

MaybeError append_content(const std::string& field, std::string_view role, JsonElement content, std::string* out) {
  if (content.is_array()) {
    if (MaybeError error = check_text_parts(field, array_of(content))) return error;
  } else if (!content.is_null() && !is_string(content) && !(content.is_object() && is_tool_role(role))) {
    return invalid_value(field, "a string, null or an array of text parts", content);
  }
  append_json(*out, content);
  return std::nullopt;
}

// A call's arguments: the object that a string holds, or the value as it is.
void append_arguments(JsonElement value, std::string* out) {
  if (is_string(value)) {
    const std::string_view text = string_of(value);
    if (text.empty()) {
      *out += "{}";
      return;
    }
    dom::parser parser;
    JsonElement parsed;
    simdjson::error_code code = parser.parse(text.data(), text.size()).get(parsed);
    throw_if_out_of_memory(code);
    if (code != simdjson::SUCCESS)
      if (const auto marked = mark_large_integers(text)) code = parser.parse(*marked).get(parsed);
    throw_if_out_of_memory(code);
    if (code == simdjson::SUCCESS && parsed.is_object()) return append_json(*out, parsed);
  }
  append_json(*out, value);
}

// {"id": …, "type": "function", "function": {"name": …, "arguments": …}}, or the function's members without a roof.
void append_call(dom::object call, bool is_function, std::string* out) {
  bool first = true;
  *out += '{';
  for (const auto& [key, member] : call) {
    if (!first) *out += ',';
    first = false;
    append_json_string(*out, key);
    *out += ':';
    if (key == "arguments") append_arguments(member, out);
    else if (key == "function" && !is_function && member.is_object()) append_call(object_of(member), true, out);
    else append_json(*out, member);
  }
  *out += '}';
}

MaybeError append_tool_calls(const std::string& field, JsonElement value, std::string* out) {
  if (!value.is_array()) return invalid_value(field, "an array of calls", value);
  size_t index = 0;
  *out += '[';
  for (const JsonElement call : array_of(value)) {
    if (!call.is_object()) return invalid_value(field + "[" + std::to_string(index) + "]", "an object", call);
    if (index++ > 0) *out += ',';
    append_call(object_of(call), false, out);
  }
  *out += ']';
  return std::nullopt;
}

MaybeError append_message(const std::string& place, JsonElement message, std::string* out) {
  if (!message.is_object()) return invalid_value(place, "an object with \"role\" and \"content\"", message);
  std::string_view role;
  if (message["role"].get(role) != simdjson::SUCCESS) role = "";
  int num_roles = 0, num_contents = 0;
  bool first = true, has_calls = false;
  *out += '{';
  for (const auto& [key, member] : object_of(message)) {
    const std::string field = place + "." + std::string(key.substr(0, 40));
    const bool is_calls = key == "tool_calls";
    if (is_unsupported_member(key) || is_calls) {
      if (is_neutral(member, Neutral::kEmpty)) continue;
      if (!is_calls) return field_error("unsupported_field", field, field + " is not supported");
    }
    if (!first) *out += ',';
    first = false;
    append_json_string(*out, key);
    *out += ':';
    if (key == "role" && ++num_roles == 1 && (!is_string(member) || is_neutral(member, Neutral::kEmpty)))
      return invalid_value(field, "a non-empty string", member);
    MaybeError error;
    if (key == "content") error = append_content(field, role, member, out);
    else if (is_calls) error = append_tool_calls(field, member, out);
    else append_json(*out, member);
    if (error) return error;
    num_contents += key == "content";
    has_calls = has_calls || is_calls;
  }
  *out += '}';
  for (const auto& [name, count] : {std::pair{".role", num_roles}, std::pair{".content", num_contents}}) {
    const bool is_needed = !has_calls || name == std::string_view(".role");
    if (count == 0 && is_needed) return field_error("missing_field", place + name, place + name + " is missing");
    if (count > 1) return field_error("duplicate_field", place + name, place + name + " is given twice");
  }
  return std::nullopt;
}

MaybeError read_messages(JsonElement value, std::string* messages_json) {
  if (!value.is_array() || is_neutral(value, Neutral::kEmpty))
    return invalid_value("messages", "a non-empty array of messages", value);
  size_t index = 0;
  *messages_json = "[";
  for (const JsonElement message : array_of(value)) {
    const std::string place = "messages[" + std::to_string(index) + "]";
    if (index++ > 0) *messages_json += ',';
    if (MaybeError error = append_message(place, message, messages_json)) return error;
  }
  *messages_json += ']';
  return std::nullopt;
}

// Whatever a template makes of it: it is refused where the template does not know it.
MaybeError read_effort(const FieldSet& fields, ChatMessages* chat) {
  const JsonElement* const value = fields.find(Field::kReasoningEffort);
  if (value == nullptr) return std::nullopt;
  constexpr std::array kEfforts = {"none", "minimal", "low", "medium", "high", "xhigh", "max"};
  const bool is_known = is_string(*value) && std::find(kEfforts.begin(), kEfforts.end(), string_of(*value)) != kEfforts.end();
  if (!is_known) return invalid_value("reasoning_effort", "none, minimal, low, medium, high, xhigh or max", *value);
  chat->reasoning_effort = string_of(*value);
  return std::nullopt;
}

MaybeError read_prompt_end(const FieldSet& fields, ChatMessages* chat) {
  if (const JsonElement* const value = fields.find(Field::kContinueFinalMessage)) {
    if (MaybeError error = read_bool("continue_final_message", *value, &chat->continue_final_message)) return error;
    chat->add_generation_prompt = !chat->continue_final_message;
  }
  if (const JsonElement* const value = fields.find(Field::kAddGenerationPrompt))
    if (MaybeError error = read_bool("add_generation_prompt", *value, &chat->add_generation_prompt)) return error;
  if (chat->continue_final_message && chat->add_generation_prompt)
    return field_error("invalid_value", "continue_final_message",
                       "continue_final_message and add_generation_prompt cannot be combined");
  return std::nullopt;
}

constexpr Field kChatFields[] = {Field::kTools, Field::kToolChoice, Field::kChatTemplateKwargs,
                                 Field::kAddGenerationPrompt, Field::kContinueFinalMessage, Field::kReasoningEffort,
                                 Field::kThinkingTokenBudget};

// Accepted in a line of any kind, as it asks for nothing.
bool asks_for_nothing(Field field, JsonElement value) {
  switch (field) {
    case Field::kTools:
      return is_neutral(value, Neutral::kEmpty);
    case Field::kToolChoice:
      return is_neutral(value, Neutral::kNoneOrAuto);
    case Field::kAddGenerationPrompt:
      return is_neutral(value, Neutral::kTrue);
    case Field::kContinueFinalMessage:
      return is_neutral(value, Neutral::kFalse);
    default:
      return false;
  }
}

}  // namespace

MaybeError read_chat(const FieldSet& fields, ChatMessages* chat) {
  if (MaybeError error = read_messages(*fields.find(Field::kMessages), &chat->messages_json)) return error;
  if (MaybeError error = read_tools(fields, chat)) return error;
  if (const JsonElement* const kwargs = fields.find(Field::kChatTemplateKwargs)) {
    if (!kwargs->is_object()) return invalid_value("chat_template_kwargs", "an object", *kwargs);
    append_json(chat->template_kwargs_json, *kwargs);
  }
  if (MaybeError error = read_effort(fields, chat)) return error;
  return read_prompt_end(fields, chat);
}

MaybeError refuse_chat_fields(const FieldSet& fields) {
  for (const Field field : kChatFields) {
    const JsonElement* const value = fields.find(field);
    if (value == nullptr || asks_for_nothing(field, *value)) continue;
    const std::string name(field_name(field));
    return field_error("invalid_value", name, name + " is for messages, which the line does not have");
  }
  return std::nullopt;
}

}  // namespace llmb
