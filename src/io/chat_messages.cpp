#include "io/chat_messages.h"

#include "io/json_writer.h"

namespace llmb {

namespace {

namespace dom = simdjson::dom;

// Members of a message that carry what is not built: they may only be null or empty.
bool is_unsupported_member(std::string_view key) {
  return key == "tool_calls" || key == "function_call" || key == "audio";
}

// [{"type": "text", "text": …}, …]
MaybeError join_text_parts(const std::string& field, dom::array parts, std::string* text) {
  size_t index = 0;
  for (const JsonElement part : parts) {
    const std::string place = field + "[" + std::to_string(index) + "]";
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
    if (!content.is_string()) return invalid_value(place + ".text", "a string", content);
    if (index++ > 0) *text += '\n';
    *text += string_of(content);
  }
  return std::nullopt;
}

MaybeError append_content(const std::string& field, JsonElement content, std::string* out) {
  if (content.is_null() || content.is_string()) {
    append_json(*out, content);
    return std::nullopt;
  }
  if (!content.is_array()) return invalid_value(field, "a string, null or an array of text parts", content);
  std::string text;
  if (MaybeError error = join_text_parts(field, array_of(content), &text)) return error;
  append_json_string(*out, text);
  return std::nullopt;
}

MaybeError append_message(const std::string& place, JsonElement message, std::string* out) {
  if (!message.is_object()) return invalid_value(place, "an object with \"role\" and \"content\"", message);
  int num_roles = 0, num_contents = 0;
  bool first = true;
  *out += '{';
  for (const auto& [key, member] : object_of(message)) {
    if (is_unsupported_member(key)) {
      if (is_neutral(member, Neutral::kEmpty)) continue;
      const std::string field = place + "." + std::string(key);
      return field_error("unsupported_field", field, field + " is not supported");
    }
    if (!first) *out += ',';
    first = false;
    append_json_string(*out, key);
    *out += ':';
    if (key == "role" && ++num_roles == 1 && (!member.is_string() || is_neutral(member, Neutral::kEmpty)))
      return invalid_value(place + ".role", "a non-empty string", member);
    if (key == "content") {
      ++num_contents;
      if (MaybeError error = append_content(place + ".content", member, out)) return error;
    } else {
      append_json(*out, member);
    }
  }
  *out += '}';
  for (const auto& [name, count] : {std::pair{".role", num_roles}, std::pair{".content", num_contents}}) {
    if (count == 0) return field_error("missing_field", place + name, place + name + " is missing");
    if (count > 1) return field_error("duplicate_field", place + name, place + name + " is given twice");
  }
  return std::nullopt;
}

}  // namespace

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

}  // namespace llmb
