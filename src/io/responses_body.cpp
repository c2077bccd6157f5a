#include "io/responses_body.h"

#include <algorithm>
#include <array>
#include <set>

#include "io/json_writer.h"

namespace llmb {

namespace {

// Fields that chat lines read under the same names.
constexpr std::array kSharedFields = {
    "model", "chat_template_kwargs", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty",
    "frequency_penalty", "logit_bias", "seed", "min_tokens", "thinking_token_budget", "stop", "stop_token_ids",
    "ignore_eos", "include_stop_str_in_output", "skip_special_tokens", "allowed_token_ids", "bad_words",
    "structured_outputs", "truncate_prompt_tokens", "truncation_side", "tool_choice", "parallel_tool_calls"};

constexpr std::array kIgnored = {"user", "metadata", "service_tier", "safety_identifier", "prompt_cache_key",
                                 "prompt_cache_retention", "request_id", "cache_salt"};

// Taken only with the value that asks for nothing.
constexpr std::pair<const char*, Neutral> kRefused[] = {
    {"previous_response_id", Neutral::kNull}, {"conversation", Neutral::kNull}, {"store", Neutral::kFalse},
    {"background", Neutral::kFalse},          {"prompt", Neutral::kNull},       {"stream", Neutral::kFalse},
    {"stream_options", Neutral::kNull},       {"max_tool_calls", Neutral::kNull}, {"context_management", Neutral::kNull}};

RequestError refused(const std::string& field, JsonElement value) {
  return field_error("unsupported_field", field, field + " is not supported; got " + shown(value));
}

class BodyTranslator {
 public:
  explicit BodyTranslator(std::string* chat_json) : json_(*chat_json) {}

  MaybeError translate(simdjson::dom::object body) {
    json_.begin_object();
    for (const auto& [name, value] : body) {
      const std::string field(name.substr(0, 100));
      if (!seen_.insert(std::string(name)).second)
        return field_error("duplicate_field", field, field + " is given twice");
      if (value.is_null()) continue;
      if (MaybeError error = add_member(field, value)) return error;
    }
    if (!has_input_) return field_error("missing_field", "input", "the body needs an input");
    std::string messages;
    if (MaybeError error = read_responses_input(has_instructions_ ? &instructions_ : nullptr, input_, &messages))
      return error;
    json_.key("messages");
    json_.raw(messages);
    if (wants_logprobs_ || top_logprobs_ > 0) {
      json_.key("logprobs");
      json_.boolean(true);
      json_.key("top_logprobs");
      json_.integer(top_logprobs_);
    }
    json_.end_object();
    return std::nullopt;
  }

 private:
  MaybeError add_member(const std::string& name, JsonElement value) {
    if (name == "input") return input_ = value, has_input_ = true, std::nullopt;
    if (name == "instructions") return instructions_ = value, has_instructions_ = true, std::nullopt;
    if (name == "tools") return add_tools(value);
    if (name == "text") return add_text(value);
    if (name == "reasoning") return add_reasoning(value);
    if (name == "include") return add_include(value);
    if (name == "top_logprobs") return read_int32(name, value, 0, kMaxTopLogprobs, &top_logprobs_);
    if (name == "max_output_tokens") {
      int32_t count = 0;
      if (MaybeError error = read_int32(name, value, 1, INT32_MAX, &count)) return error;
      return add("max_tokens", value);
    }
    if (name == "truncation") {
      if (is_string(value) && string_of(value) == "disabled") return std::nullopt;
      return refused(name, value);
    }
    for (const auto& [refused_name, neutral] : kRefused)
      if (name == refused_name) return is_neutral(value, neutral) ? MaybeError() : refused(name, value);
    if (std::find(kIgnored.begin(), kIgnored.end(), name) != kIgnored.end()) return std::nullopt;
    if (std::find(kSharedFields.begin(), kSharedFields.end(), name) != kSharedFields.end()) return add(name, value);
    return field_error("unknown_field", name, "unknown field " + name + " of /v1/responses");
  }

  MaybeError add(const std::string& name, JsonElement value) {
    std::string text;
    append_json(text, value);
    json_.key(name);
    json_.raw(text);
    return std::nullopt;
  }

  // {"type": "function", "name": …, "parameters": …} becomes {"type": "function", "function": {…}}.
  MaybeError add_tools(JsonElement value) {
    if (!value.is_array()) return invalid_value("tools", "an array of objects", value);
    json_.key("tools");
    json_.begin_array();
    size_t index = 0;
    for (const JsonElement tool : array_of(value)) {
      const std::string place = "tools[" + std::to_string(index++) + "]";
      JsonElement type;
      if (!tool.is_object()) return invalid_value(place, "an object", tool);
      if (tool["type"].get(type) != simdjson::SUCCESS || !is_string(type) || string_of(type) != "function")
        return field_error("unsupported_field", place + ".type", place + ".type: only functions are supported");
      json_.begin_object();
      json_.key("type");
      json_.string("function");
      json_.key("function");
      json_.begin_object();
      for (const auto& [name, member] : object_of(tool))
        if (name != "type" && !member.is_null()) add(std::string(name), member);
      json_.end_object();
      json_.end_object();
    }
    json_.end_array();
    return std::nullopt;
  }

  MaybeError add_text(JsonElement value) {
    if (!value.is_object()) return invalid_value("text", "an object", value);
    for (const auto& [name, member] : object_of(value)) {
      if (member.is_null()) continue;
      if (name != "format") return refused("text." + std::string(name), member);
      if (MaybeError error = add_format(member)) return error;
    }
    return std::nullopt;
  }

  // {"type": "json_schema", "name": …, "schema": …, "strict": …} is what chat lines have in an object of its own.
  MaybeError add_format(JsonElement value) {
    JsonElement type;
    if (!value.is_object() || value["type"].get(type) != simdjson::SUCCESS || !is_string(type))
      return invalid_value("text.format", "an object whose type is text, json_object or json_schema", value);
    if (string_of(type) != "json_schema") return add("response_format", value);
    json_.key("response_format");
    json_.begin_object();
    json_.key("type");
    json_.string("json_schema");
    json_.key("json_schema");
    json_.begin_object();
    for (const auto& [name, member] : object_of(value))
      if (name != "type") add(std::string(name), member);
    json_.end_object();
    json_.end_object();
    return std::nullopt;
  }

  MaybeError add_reasoning(JsonElement value) {
    if (!value.is_object()) return invalid_value("reasoning", "an object", value);
    for (const auto& [name, member] : object_of(value)) {
      if (member.is_null()) continue;
      if (name != "effort") return refused("reasoning." + std::string(name), member);
      add("reasoning_effort", member);
    }
    return std::nullopt;
  }

  MaybeError add_include(JsonElement value) {
    if (!value.is_array()) return invalid_value("include", "an array of strings", value);
    for (const JsonElement part : array_of(value)) {
      if (!is_string(part) || string_of(part) != "message.output_text.logprobs") return refused("include", part);
      wants_logprobs_ = true;
    }
    return std::nullopt;
  }

  JsonWriter json_;
  std::set<std::string> seen_;
  JsonElement input_, instructions_;
  bool has_input_ = false, has_instructions_ = false, wants_logprobs_ = false;
  int32_t top_logprobs_ = 0;
};

}  // namespace

MaybeError chat_body_of_responses(simdjson::dom::object body, std::string* chat_json) {
  return BodyTranslator(chat_json).translate(body);
}

std::string repeated_settings(simdjson::dom::object body) {
  constexpr std::pair<std::string_view, std::string_view> kRepeated[] = {{"instructions", "null"},
                                                               {"max_output_tokens", "null"},
                                                               {"metadata", "{}"},
                                                               {"parallel_tool_calls", "true"},
                                                               {"reasoning", "null"},
                                                               {"temperature", "null"},
                                                               {"text", R"({"format":{"type":"text"}})"},
                                                               {"tool_choice", R"("auto")"},
                                                               {"tools", "[]"},
                                                               {"top_p", "null"},
                                                               {"truncation", R"("disabled")"}};
  std::string text;
  for (const auto& [name, otherwise] : kRepeated) {
    text += (text.empty() ? "\"" : ",\"") + std::string(name) + "\":";
    JsonElement value;
    if (body[name].get(value) == simdjson::SUCCESS && !value.is_null()) append_json(text, value);
    else text += otherwise;
  }
  return text;
}

}  // namespace llmb
