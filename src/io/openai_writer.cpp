#include "io/openai_writer.h"

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "base/utf8.h"
#include "io/record_parts.h"
#include "io/score_writer.h"
#include "io/responses_writer.h"

namespace llmb {

namespace {

// {"token": logprob, …}, best first; the chosen token is there even where it is not among the best. Two tokens may have
// the same text: a key is written once, for the better of them.
void write_top_object(JsonWriter& json, const Choice& c, const TokenDetail& detail, size_t chosen_text) {
  std::set<std::string> seen;
  const auto entry = [&](const TokenLogprob& token, const std::string& text) {
    std::string name;
    append_json_string(name, text);
    if (!seen.insert(name).second) return;
    json.key(text);
    write_logprob(json, token.logprob);
  };
  json.begin_object();
  for (size_t i = 0; i < detail.top.size(); ++i) entry(detail.top[i], c.logprob_texts[chosen_text + 1 + i]);
  entry(detail.chosen, c.logprob_texts[chosen_text]);
  json.end_object();
}

// OpenAI's completions form: four arrays, one entry per token.
void write_completion_logprobs(JsonWriter& json, const Choice& c) {
  json.begin_object();
  const auto array = [&](std::string_view name, auto write_entry) {
    json.key(name);
    json.begin_array();
    size_t text = 0;
    for (const TokenDetail& detail : c.logprobs) {
      write_entry(detail, text);
      text += 1 + detail.top.size();
    }
    json.end_array();
  };
  array("tokens", [&](const TokenDetail&, size_t text) { json.string(c.logprob_texts[text]); });
  array("token_logprobs", [&](const TokenDetail& detail, size_t) { write_logprob(json, detail.chosen.logprob); });
  const bool echoes = c.num_echoed_tokens > 0;
  array("top_logprobs", [&](const TokenDetail& detail, size_t text) {
    if (echoes && text == 0) json.null();
    else write_top_object(json, c, detail, text);
  });
  int64_t offset = -c.num_unshown_chars;
  array("text_offset", [&](const TokenDetail&, size_t text) {
    json.integer(std::max<int64_t>(offset, 0));
    offset += num_characters(c.logprob_texts[text]) + (!echoes && text == 0 && c.continues_character);
  });
  json.end_object();
}

void write_calls(JsonWriter& json, const AnswerParts& parts, const std::string& record, int64_t choice) {
  json.key("tool_calls");
  json.begin_array();
  for (size_t i = 0; i < parts.calls.size(); ++i) {
    json.begin_object();
    json.key("id");
    json.string(call_id(record, choice, i, parts.has_short_call_ids));
    json.key("type");
    json.string("function");
    json.key("function");
    json.begin_object();
    json.key("name");
    json.string(parts.calls[i].name);
    json.key("arguments");
    json.string(parts.calls[i].arguments);
    json.end_object();
    json.end_object();
  }
  json.end_array();
}

void write_message(JsonWriter& json, const Choice& c, const std::string& record, int64_t choice) {
  json.begin_object();
  json.key("role");
  json.string("assistant");
  json.key("content");
  if (!c.parts) json.string(c.text);
  else if (c.parts->content.empty()) json.null();
  else json.string(c.parts->content);
  json.key("refusal");
  json.null();
  if (c.parts && c.parts->has_reasoning) {
    json.key("reasoning_content");
    json.string(c.parts->reasoning);
  }
  if (c.parts && !c.parts->calls.empty()) write_calls(json, *c.parts, record, choice);
  json.end_object();
}

void write_choice(JsonWriter& json, const Completion& all, int64_t index, bool is_chat, const std::string& record) {
  const Choice& c = all.choices[index];
  json.begin_object();
  json.key("index");
  json.integer(index);
  if (is_chat) {
    json.key("message");
    write_message(json, c, record, index);
  } else {
    json.key("text");
    json.string(c.text);
  }
  json.key("logprobs");
  if (c.logprobs.empty()) {
    json.null();
  } else if (is_chat) {
    json.begin_object();
    json.key("content");
    write_logprob_list(json, c, /*with_ids=*/false);
    json.key("refusal");
    json.null();
    json.end_object();
  } else {
    write_completion_logprobs(json, c);
  }
  write_finish(json, c);
  if (all.return_token_ids) write_token_ids(json, c);
  if (!is_chat && all.has_prompt_logprobs) write_prompt_logprobs_by_id(json, all);
  json.end_object();
}

void write_body(JsonWriter& json, const Completion& c, const ResultFormat& format, const std::string& id) {
  const bool is_chat = c.form == ApiForm::kOpenAiChat;
  json.begin_object();
  json.key("id");
  json.string((is_chat ? "chatcmpl-" : "cmpl-") + id);
  json.key("object");
  json.string(is_chat ? "chat.completion" : "text_completion");
  json.key("created");
  json.integer(format.metrics ? format.stamp.created : 0);
  json.key("model");
  json.string(c.model_name);
  json.key("choices");
  json.begin_array();
  for (size_t i = 0; i < c.choices.size(); ++i)
    write_choice(json, c, static_cast<int64_t>(i), is_chat, id);
  json.end_array();
  write_usage(json, c);
  if (is_chat && c.has_prompt_logprobs) write_prompt_logprobs_by_id(json, c);
  json.end_object();
}

void write_embedding_body(JsonWriter& json, const Completion& c, const ResultFormat& format, const std::string& id) {
  json.begin_object();
  json.key("id");
  json.string("embd-" + id);
  json.key("object");
  json.string("list");
  json.key("created");
  json.integer(format.metrics ? format.stamp.created : 0);
  json.key("model");
  json.string(c.model_name);
  json.key("data");
  json.begin_array();
  for (size_t i = 0; i < c.choices.size(); ++i) {
    json.begin_object();
    json.key("index");
    json.integer(static_cast<int64_t>(i));
    json.key("object");
    json.string("embedding");
    json.key("embedding");
    write_embedding(json, c.choices[i], c.embed.is_base64);
    json.end_object();
  }
  json.end_array();
  write_usage(json, c);
  json.end_object();
}

// Errors that are no fault of the line.
bool is_server_error(const std::string& code) { return code == "numeric_error" || code == "internal_error"; }

void write_error_body(JsonWriter& json, const LineRef& line, const RequestError& error, bool server_error) {
  json.begin_object();
  json.key("error");
  json.begin_object();
  json.key("message");
  json.string(error.message);
  json.key("type");
  json.string(server_error ? "server_error" : "invalid_request_error");
  json.key("param");
  if (error.param) json.string(*error.param);
  else json.null();
  json.key("code");
  json.string(error.code);
  write_place(json, line, error);
  json.end_object();
  json.end_object();
}

}  // namespace

std::string call_id(const std::string& record, int64_t choice, size_t call, bool is_short) {
  constexpr std::string_view kDigits = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
  const uint64_t place = mix_bits((static_cast<uint64_t>(choice) << 32 | call) + 1);
  if (!is_short) return "call_" + record.substr(0, 16) + to_hex(place).substr(0, 8);
  std::string id(9, '0');
  uint64_t rest = mix_bits(place + std::stoull(record.substr(0, 16), nullptr, 16));
  for (char& c : id) c = kDigits[rest % kDigits.size()], rest /= kDigits.size();
  return id;
}

void write_openai(JsonWriter& json, const Completion& c, const ResultFormat& format) {
  const std::string id = record_id(format.stamp, c.line);
  const bool server_error = c.error && is_server_error(c.error->code);
  json.begin_object();
  json.key("id");
  json.string("batch_req_" + id);
  json.key("custom_id");
  write_id(json, c.id_json);
  json.key("response");
  json.begin_object();
  json.key("status_code");
  json.integer(!c.error ? 200 : server_error ? 500 : 400);
  json.key("request_id");
  json.string("req_" + id);
  json.key("body");
  if (c.error) write_error_body(json, c.line, *c.error, server_error);
  else if (c.form == ApiForm::kOpenAiResponses) write_response(json, c, format, id);
  else if (c.form == ApiForm::kOpenAiEmbedding) write_embedding_body(json, c, format, id);
  else if (c.task == Task::kClassify) write_scores_body(json, c, format, id);
  else write_body(json, c, format, id);
  json.end_object();
  json.key("error");
  json.null();
  json.key("index");
  json.integer(c.line.index);
  write_hash(json, c.line.content_hash);
  if (format.metrics && !c.error) write_metrics(json, c.latency);
  json.end_object();
}

}  // namespace llmb
