#include "io/tool_fields.h"

#include <algorithm>

namespace llmb {

namespace {

// {"type": "function", "function": {"name": "f"}}, or as /v1/responses has it: {"type": "function", "name": "f"}
MaybeError read_named_choice(JsonElement value, ChatMessages* chat) {
  JsonElement type, function, name;
  const bool is_function = value["type"].get(type) == simdjson::SUCCESS && is_string(type) && string_of(type) == "function";
  const bool has_name = value["function"].get(function) == simdjson::SUCCESS
                            ? function["name"].get(name) == simdjson::SUCCESS
                            : value["name"].get(name) == simdjson::SUCCESS;
  if (!is_function || !has_name || !is_string(name))
    return field_error("unsupported_field", "tool_choice",
                       "tool_choice is supported as \"none\", \"auto\", \"required\" or {\"type\": \"function\", "
                       "\"function\": {\"name\": …}}; got " + shown(value));
  chat->tool_choice = ToolChoice::kNamed;
  chat->tool_name = string_of(name);
  return std::nullopt;
}

MaybeError read_choice(JsonElement value, bool* is_none, ChatMessages* chat) {
  if (value.is_object()) return read_named_choice(value, chat);
  const std::string_view text = is_string(value) ? string_of(value) : std::string_view();
  *is_none = text == "none";
  if (text == "required") chat->tool_choice = ToolChoice::kRequired;
  else if (!*is_none && text != "auto")
    return invalid_value("tool_choice", "none, auto, required or an object that names a function", value);
  return std::nullopt;
}

bool is_name(std::string_view text) {
  return !text.empty() && text.size() <= 256 && std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' || c == '.';
  });
}

// A tool that an answer may have to call must be a function with a name of its own.
MaybeError check_function(const std::string& place, JsonElement tool, std::vector<std::string_view>* names) {
  JsonElement type, function, name, parameters, strict;
  if (tool["type"].get(type) == simdjson::SUCCESS && !(is_string(type) && string_of(type) == "function"))
    return field_error("unsupported_field", place + ".type",
                       place + ".type: only functions can be called; got " + shown(type));
  if (tool["function"].get(function) != simdjson::SUCCESS || !function.is_object())
    return field_error("missing_field", place + ".function", place + ".function must be an object");
  if (function["name"].get(name) != simdjson::SUCCESS || !is_string(name) || !is_name(string_of(name)))
    return field_error("invalid_value", place + ".function.name",
                       place + ".function.name must be letters, digits, _, - and . where tool_choice asks for a call");
  if (function["parameters"].get(parameters) == simdjson::SUCCESS && !parameters.is_object() && !parameters.is_null())
    return invalid_value(place + ".function.parameters", "a JSON Schema", parameters);
  if (function["strict"].get(strict) == simdjson::SUCCESS && !strict.is_bool() && !strict.is_null())
    return invalid_value(place + ".function.strict", "true or false", strict);
  if (std::count(names->begin(), names->end(), string_of(name)) > 0)
    return field_error("invalid_value", place + ".function.name", "two tools have the name " + shown(name));
  names->push_back(string_of(name));
  return std::nullopt;
}

MaybeError check_forced(const JsonElement* tools, const ChatMessages& chat) {
  if (tools == nullptr || is_neutral(*tools, Neutral::kEmpty))
    return field_error("invalid_value", "tool_choice", "tool_choice asks for a call, but there are no tools");
  std::vector<std::string_view> names;
  for (const JsonElement tool : array_of(*tools))
    if (MaybeError error = check_function("tools[" + std::to_string(names.size()) + "]", tool, &names)) return error;
  if (chat.tool_choice == ToolChoice::kNamed && std::count(names.begin(), names.end(), chat.tool_name) == 0)
    return field_error("invalid_value", "tool_choice", "tool_choice names " + chat.tool_name.substr(0, 100) +
                                                           ", which is none of the tools");
  return std::nullopt;
}

}  // namespace

MaybeError read_tools(const FieldSet& fields, ChatMessages* chat) {
  bool is_none = false;
  if (const JsonElement* const choice = fields.find(Field::kToolChoice))
    if (MaybeError error = read_choice(*choice, &is_none, chat)) return error;
  if (const JsonElement* const value = fields.find(Field::kParallelToolCalls)) {
    bool may_be_several = true;
    if (MaybeError error = read_bool("parallel_tool_calls", *value, &may_be_several)) return error;
    chat->has_one_call = !may_be_several;
  }
  const JsonElement* const tools = fields.find(Field::kTools);
  const bool has_tools = tools != nullptr && !is_neutral(*tools, Neutral::kEmpty);
  if (has_tools && !tools->is_array()) return invalid_value("tools", "an array of objects", *tools);
  size_t index = 0;
  if (has_tools)
    for (const JsonElement tool : array_of(*tools)) {
      if (!tool.is_object()) return invalid_value("tools[" + std::to_string(index) + "]", "an object", tool);
      ++index;
    }
  if (chat->tool_choice != ToolChoice::kAuto)
    if (MaybeError error = check_forced(tools, *chat)) return error;
  if (has_tools && !is_none) append_json(chat->tools_json, *tools);
  return std::nullopt;
}

}  // namespace llmb
