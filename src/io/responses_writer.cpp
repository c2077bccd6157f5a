#include "io/responses_writer.h"

#include "io/openai_writer.h"
#include "io/record_parts.h"

namespace llmb {

namespace {

void write_member(JsonWriter& json, const char* name, const std::string& value) {
  json.key(name);
  json.string(value);
}

void begin_item(JsonWriter& json, const std::string& id, const char* type) {
  json.begin_object();
  write_member(json, "id", id);
  write_member(json, "type", type);
}

void write_reasoning_item(JsonWriter& json, const std::string& reasoning, const std::string& id) {
  begin_item(json, "rs_" + id, "reasoning");
  json.key("summary");
  json.begin_array();
  json.end_array();
  json.key("content");
  json.begin_array();
  json.begin_object();
  write_member(json, "type", "reasoning_text");
  write_member(json, "text", reasoning);
  json.end_object();
  json.end_array();
  json.end_object();
}

void write_message_item(JsonWriter& json, const Choice& choice, const std::string& text, const std::string& id) {
  begin_item(json, "msg_" + id, "message");
  write_member(json, "status", choice.finish_reason == FinishReason::kStop ? "completed" : "incomplete");
  write_member(json, "role", "assistant");
  json.key("content");
  json.begin_array();
  json.begin_object();
  write_member(json, "type", "output_text");
  write_member(json, "text", text);
  json.key("annotations");
  json.begin_array();
  json.end_array();
  if (!choice.logprobs.empty()) {
    json.key("logprobs");
    write_logprob_list(json, choice, /*with_ids=*/false);
  }
  json.end_object();
  json.end_array();
  json.end_object();
}

void write_output(JsonWriter& json, const Choice& choice, const std::string& id) {
  const bool has_parts = choice.parts.has_value();
  const std::string& text = has_parts ? choice.parts->content : choice.text;
  json.key("output");
  json.begin_array();
  if (has_parts && choice.parts->has_reasoning) write_reasoning_item(json, choice.parts->reasoning, id);
  if (!text.empty() || !has_parts || choice.parts->calls.empty()) write_message_item(json, choice, text, id);
  for (size_t i = 0; has_parts && i < choice.parts->calls.size(); ++i) {
    begin_item(json, "fc_" + call_id(id, 0, i, /*is_short=*/false).substr(5), "function_call");
    write_member(json, "status", "completed");
    write_member(json, "call_id", call_id(id, 0, i, choice.parts->has_short_call_ids));
    write_member(json, "name", choice.parts->calls[i].name);
    write_member(json, "arguments", choice.parts->calls[i].arguments);
    json.end_object();
  }
  json.end_array();
}

void write_end(JsonWriter& json, FinishReason reason) {
  write_member(json, "status", reason == FinishReason::kStop ? "completed" : "incomplete");
  json.key("error");
  json.null();
  json.key("incomplete_details");
  if (reason == FinishReason::kStop) return json.null();
  json.begin_object();
  write_member(json, "reason", reason == FinishReason::kLength ? "max_output_tokens" : finish_reason_name(reason));
  json.end_object();
}

// Hits of the cache depend on the schedule: `metrics` tells them.
void write_response_usage(JsonWriter& json, const Completion& c) {
  const auto count = [&](const char* name, int64_t value) {
    json.key(name);
    json.integer(value);
  };
  json.key("usage");
  json.begin_object();
  count("input_tokens", c.num_prompt_tokens);
  json.key("input_tokens_details");
  json.begin_object();
  count("cached_tokens", 0);
  count("cache_write_tokens", 0);
  json.end_object();
  count("output_tokens", c.num_output_tokens());
  json.key("output_tokens_details");
  json.begin_object();
  count("reasoning_tokens", c.choices[0].num_reasoning_tokens);
  json.end_object();
  count("total_tokens", c.num_prompt_tokens + c.num_output_tokens());
  json.end_object();
}

}  // namespace

void write_response(JsonWriter& json, const Completion& c, const ResultFormat& format, const std::string& id) {
  json.begin_object();
  write_member(json, "id", "resp_" + id);
  write_member(json, "object", "response");
  json.key("created_at");
  json.integer(format.metrics ? format.stamp.created : 0);
  write_end(json, c.choices[0].finish_reason);
  write_member(json, "model", c.model_name);
  write_output(json, c.choices[0], id);
  json.members(c.settings_json);
  write_response_usage(json, c);
  json.end_object();
}

}  // namespace llmb
