#include "io/data_line_parse.h"

#include <utility>

#include "base/utf8.h"
#include "io/json_writer.h"

namespace llmb {

namespace {

namespace dom = simdjson::dom;

// A number or a truth value counts as its JSON text.
bool is_text_or_number(JsonElement value) { return value.is_string() || value.is_number() || value.is_bool(); }

std::string text_of(JsonElement value) {
  if (is_string(value)) return std::string(string_of(value));
  std::string text;
  append_json(text, value);
  return text;
}

std::string field_with_prompt(InputFormat format, const DataMapping& mapping) {
  if (!mapping.prompt_field.empty()) return mapping.prompt_field;
  return format == InputFormat::kText ? "text" : "prompt";
}

void read_id(JsonElement fields, InputRequest* request) {
  for (const char* name : {"id", "custom_id"}) {
    JsonElement id;
    if (fields[name].get(id) != simdjson::SUCCESS || !is_text_or_number(id)) continue;
    append_json(request->id_json, id);
    return;
  }
}

void write_message(JsonWriter& json, std::string_view role, std::string_view content) {
  json.begin_object();
  json.key("role");
  json.string(role);
  json.key("content");
  json.string(content);
  json.end_object();
}

ChatMessages conversation(std::string_view system, std::string_view prompt) {
  ChatMessages chat;
  JsonWriter json(chat.messages_json);
  json.begin_array();
  if (!system.empty()) write_message(json, "system", system);
  write_message(json, "user", prompt);
  json.end_array();
  return chat;
}

}  // namespace

Result<std::string> fields_of_line(const InputLine& line) {
  if (!is_valid_utf8(line.bytes)) return invalid_argument("the line is not valid UTF-8");
  if (line.format != InputFormat::kText)
    return csv_row_to_json(line.bytes, csv_separator(line.format), *line.columns);
  std::string json;
  JsonWriter writer(json);
  writer.begin_object();
  writer.key("text");
  writer.string(line.bytes);
  writer.end_object();
  return json;
}

MaybeError read_data_line(JsonElement fields, std::string_view fields_json, InputFormat format,
                          const DataMapping& mapping, InputRequest* request) {
  if (!fields.is_object()) return not_an_object(fields);
  read_id(fields, request);
  std::string prompt;
  if (mapping.render) {
    Result<std::string> rendered = mapping.render(fields_json);
    if (!rendered.ok())
      return RequestError{"template_error", rendered.status().message() + names_of_fields(fields), std::nullopt,
                          std::nullopt};
    prompt = std::move(*rendered);
  } else {
    const std::string name = field_with_prompt(format, mapping);
    JsonElement value;
    if (fields[name].get(value) != simdjson::SUCCESS)
      return RequestError{"missing_field", "the line has no field " + name + names_of_fields(fields), name,
                          std::nullopt};
    if (!is_text_or_number(value)) return invalid_value(name, "a text or a number", value);
    prompt = text_of(value);
  }
  if (mapping.system) request->prompt = conversation(*mapping.system, prompt);
  else request->prompt = std::move(prompt);
  return std::nullopt;
}

std::string kept_fields(JsonElement fields, const DataMapping& mapping) {
  std::string json;
  if ((!mapping.keeps_all && mapping.kept_fields.empty()) || !fields.is_object()) return json;
  JsonWriter writer(json);
  const auto write = [&](std::string_view name, JsonElement value) {
    std::string text;
    append_json(text, value);
    writer.key(name);
    writer.raw(text);
  };
  writer.begin_object();
  if (mapping.keeps_all) {
    for (const auto& [name, value] : object_of(fields)) write(name, value);
  } else {
    for (const std::string& name : mapping.kept_fields)
      if (JsonElement value; fields[name].get(value) == simdjson::SUCCESS) write(name, value);
  }
  writer.end_object();
  return json;
}

std::string names_of_fields(JsonElement fields) {
  constexpr size_t kMaxShown = 8, kMaxBytes = 40;
  std::string names;
  size_t count = 0;
  if (!fields.is_object()) return names;
  for (const auto& [name, value] : object_of(fields)) {
    if (++count > kMaxShown) continue;
    names += (count == 1 ? "; it has " : ", ") + std::string(name.substr(0, kMaxBytes));
  }
  if (count > kMaxShown) names += " and " + std::to_string(count - kMaxShown) + " others";
  return names;
}

}  // namespace llmb
