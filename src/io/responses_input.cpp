#include <string>
#include <string_view>

#include "io/json_writer.h"
#include "io/responses_body.h"

namespace llmb {

namespace {

bool text_member(JsonElement item, const char* name, std::string_view* out) {
  JsonElement value;
  if (item[name].get(value) != simdjson::SUCCESS || !is_string(value)) return false;
  *out = string_of(value);
  return true;
}

// Items become messages; calls that follow each other belong to one message.
class InputReader {
 public:
  explicit InputReader(std::string* messages_json) : json_(*messages_json) { json_.begin_array(); }

  void add_text(std::string_view role, std::string_view text) {
    begin_message(role);
    json_.key("content");
    json_.string(text);
    json_.end_object();
  }

  MaybeError add_item(const std::string& place, JsonElement item) {
    if (!item.is_object()) return invalid_value(place, "an object", item);
    std::string_view type = "message";
    if (JsonElement given; item["type"].get(given) == simdjson::SUCCESS && !text_member(item, "type", &type))
      return invalid_value(place + ".type", "a string", given);
    if (type == "message") return add_message(place, item);
    if (type == "function_call") return add_call(place, item);
    if (type == "function_call_output") return add_result(place, item);
    return field_error("unsupported_field", place + ".type",
                       place + ".type: items of type " + std::string(type.substr(0, 60)) + " are not supported");
  }

  void end() {
    end_calls();
    json_.end_array();
  }

 private:
  void begin_message(std::string_view role) {
    end_calls();
    json_.begin_object();
    json_.key("role");
    json_.string(role);
  }

  void end_calls() {
    if (!has_calls_) return;
    json_.end_array();
    json_.end_object();
    has_calls_ = false;
  }

  // A text, or parts whose texts are those of a chat line.
  MaybeError add_content(const std::string& place, JsonElement content) {
    json_.key("content");
    if (is_string(content)) return json_.string(string_of(content)), std::nullopt;
    if (!content.is_array()) return invalid_value(place, "a string or an array of text parts", content);
    size_t index = 0;
    json_.begin_array();
    for (const JsonElement part : array_of(content)) {
      const std::string part_place = place + "[" + std::to_string(index++) + "]";
      std::string_view type, text;
      if (!part.is_object() || !text_member(part, "type", &type))
        return invalid_value(part_place, "an object with \"type\" and \"text\"", part);
      if (type != "input_text" && type != "output_text" && type != "text")
        return field_error("unsupported_field", part_place + ".type",
                           part_place + ".type: parts of type " + std::string(type.substr(0, 60)) + " are not supported");
      if (!text_member(part, "text", &text))
        return field_error("missing_field", part_place + ".text", part_place + ".text must be a string");
      json_.begin_object();
      json_.key("type");
      json_.string("text");
      json_.key("text");
      json_.string(text);
      json_.end_object();
    }
    json_.end_array();
    return std::nullopt;
  }

  MaybeError add_message(const std::string& place, JsonElement item) {
    std::string_view role;
    JsonElement content;
    if (!text_member(item, "role", &role) || role.empty())
      return field_error("missing_field", place + ".role", place + ".role must be a string");
    if (item["content"].get(content) != simdjson::SUCCESS)
      return field_error("missing_field", place + ".content", place + ".content is missing");
    begin_message(role);
    if (MaybeError error = add_content(place + ".content", content)) return error;
    json_.end_object();
    return std::nullopt;
  }

  MaybeError add_call(const std::string& place, JsonElement item) {
    std::string_view id, name, arguments;
    for (const auto& [member, out] : {std::pair{"call_id", &id}, {"name", &name}, {"arguments", &arguments}})
      if (!text_member(item, member, out))
        return field_error("missing_field", place + "." + member, place + "." + member + " must be a string");
    if (!has_calls_) {
      begin_message("assistant");
      json_.key("content");
      json_.string("");
      json_.key("tool_calls");
      json_.begin_array();
      has_calls_ = true;
    }
    json_.begin_object();
    json_.key("id");
    json_.string(id);
    json_.key("type");
    json_.string("function");
    json_.key("function");
    json_.begin_object();
    json_.key("name");
    json_.string(name);
    json_.key("arguments");
    json_.string(arguments);
    json_.end_object();
    json_.end_object();
    return std::nullopt;
  }

  MaybeError add_result(const std::string& place, JsonElement item) {
    std::string_view id;
    JsonElement output;
    if (!text_member(item, "call_id", &id))
      return field_error("missing_field", place + ".call_id", place + ".call_id must be a string");
    if (item["output"].get(output) != simdjson::SUCCESS)
      return field_error("missing_field", place + ".output", place + ".output is missing");
    begin_message("tool");
    json_.key("tool_call_id");
    json_.string(id);
    if (MaybeError error = add_content(place + ".output", output)) return error;
    json_.end_object();
    return std::nullopt;
  }

  JsonWriter json_;
  bool has_calls_ = false;
};

}  // namespace

MaybeError read_responses_input(const JsonElement* instructions, JsonElement input, std::string* messages_json) {
  InputReader reader(messages_json);
  if (instructions != nullptr) {
    if (!is_string(*instructions)) return invalid_value("instructions", "a string", *instructions);
    reader.add_text("system", string_of(*instructions));
  }
  if (is_string(input) && !is_neutral(input, Neutral::kEmpty)) {
    reader.add_text("user", string_of(input));
  } else if (input.is_array() && !is_neutral(input, Neutral::kEmpty)) {
    size_t index = 0;
    for (const JsonElement item : array_of(input))
      if (MaybeError error = reader.add_item("input[" + std::to_string(index++) + "]", item)) return error;
  } else {
    return invalid_value("input", "a non-empty string or array of items", input);
  }
  reader.end();
  return std::nullopt;
}

}  // namespace llmb
