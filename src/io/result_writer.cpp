#include "io/result_writer.h"

#include <charconv>
#include <cmath>
#include <set>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "io/json_writer.h"

namespace llmb {

namespace {

// JSON has no -infinity; OpenAI's servers say -9999 for a token that cannot occur.
constexpr float kLogprobFloor = -9999.0f;

void write_logprob(JsonWriter& json, float logprob) { json.single(logprob < kLogprobFloor ? kLogprobFloor : logprob); }

void write_id(JsonWriter& json, const std::string& id_json) {
  if (id_json.empty()) json.null();
  else json.raw(id_json);
}

std::string to_hex(uint64_t hash) {
  std::string digits(16, '0');
  for (int i = 15; i >= 0; --i, hash >>= 4) digits[i] = "0123456789abcdef"[hash & 15];
  return digits;
}

void write_input(JsonWriter& json, const std::string& input_json) {
  if (input_json.empty()) return;
  json.key("input");
  json.raw(input_json);
}

void write_hash(JsonWriter& json, uint64_t hash) {
  json.key("hash");
  json.string(to_hex(hash));
}

// One to one (MurmurHash3's last step).
uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 33)) * 0xff51afd7ed558ccdu;
  x = (x ^ (x >> 33)) * 0xc4ceb9fe1a85ec53u;
  return x ^ (x >> 33);
}

// No two lines of a job have the first half in common: it is one to one in the index.
std::string record_id(const JobStamp& stamp, const LineRef& line) {
  const uint64_t first = mix(mix(static_cast<uint64_t>(line.index) + 1) + stamp.hash);
  return to_hex(first) + to_hex(mix(mix(line.content_hash + 1) + first));
}

void write_usage(JsonWriter& json, const Completion& c) {
  json.key("usage");
  json.begin_object();
  json.key("prompt_tokens");
  json.integer(c.num_prompt_tokens);
  json.key("completion_tokens");
  json.integer(c.num_output_tokens());
  json.key("total_tokens");
  json.integer(c.num_prompt_tokens + c.num_output_tokens());
  if (c.num_truncated_tokens > 0) {
    json.key("truncated_prompt_tokens");
    json.integer(c.num_truncated_tokens);
  }
  json.end_object();
}

void write_metrics(JsonWriter& json, const RequestLatency& latency) {
  json.key("metrics");
  json.begin_object();
  const auto field = [&](std::string_view name, double ms) {
    json.key(name);
    json.milliseconds(ms);
  };
  field("queue_ms", latency.queue_ms);
  field("ttft_ms", latency.ttft_ms);
  field("tpot_ms", latency.tpot_ms);
  field("e2e_ms", latency.e2e_ms);
  field("itl_p50_ms", latency.itl_p50_ms);
  field("itl_p90_ms", latency.itl_p90_ms);
  field("itl_p99_ms", latency.itl_p99_ms);
  json.key("num_preemptions");
  json.integer(latency.num_preemptions);
  json.key("cached_tokens");
  json.integer(latency.num_cached_tokens);
  json.key("drafted_tokens");
  json.integer(latency.num_drafted_tokens);
  json.key("accepted_tokens");
  json.integer(latency.num_accepted_tokens);
  json.end_object();
}

void write_finish(JsonWriter& json, const Choice& c) {
  json.key("finish_reason");
  json.string(finish_reason_name(c.finish_reason));
  json.key("stop_reason");
  if (c.stop_string) json.string(*c.stop_string);
  else if (c.stop_token) json.integer(*c.stop_token);
  else json.null();
}

void write_token_ids(JsonWriter& json, const Choice& c) {
  json.key("token_ids");
  json.begin_array();
  for (const TokenId token : c.token_ids) json.integer(token);
  json.end_array();
}

void write_token(JsonWriter& json, const TokenLogprob& token, std::string_view text, bool with_id) {
  json.key("token");
  json.string(text);
  if (with_id) {
    json.key("token_id");
    json.integer(token.token);
  }
  json.key("logprob");
  write_logprob(json, token.logprob);
  json.key("bytes");
  json.begin_array();
  for (const char c : text) json.integer(static_cast<unsigned char>(c));
  json.end_array();
}

// OpenAI's chat form, and with ids the native one.
void write_logprob_list(JsonWriter& json, const Choice& c, bool with_ids) {
  size_t text = 0;
  json.begin_array();
  for (const TokenDetail& detail : c.logprobs) {
    json.begin_object();
    write_token(json, detail.chosen, c.logprob_texts[text++], with_ids);
    json.key("top_logprobs");
    json.begin_array();
    for (const TokenLogprob& top : detail.top) {
      json.begin_object();
      write_token(json, top, c.logprob_texts[text++], with_ids);
      json.end_object();
    }
    json.end_array();
    json.end_object();
  }
  json.end_array();
}

size_t num_characters(std::string_view text) {
  size_t count = 0;
  for (const char c : text) count += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  return count;
}

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
  array("top_logprobs", [&](const TokenDetail& detail, size_t text) { write_top_object(json, c, detail, text); });
  size_t offset = 0;
  array("text_offset", [&](const TokenDetail&, size_t text) {
    json.unsigned_integer(offset);
    offset += num_characters(c.logprob_texts[text]) + (text == 0 && c.continues_character);
  });
  json.end_object();
}

void write_place(JsonWriter& json, const LineRef& line, const RequestError& error) {
  json.key("line");
  json.string(line.source + ":" + std::to_string(line.line_number));
  json.key("byte_offset");
  if (error.byte_offset) json.integer(*error.byte_offset);
  else json.null();
}

void write_error(JsonWriter& json, const LineRef& line, const RequestError& error) {
  json.begin_object();
  json.key("code");
  json.string(error.code);
  json.key("message");
  json.string(error.message);
  json.key("param");
  if (error.param) json.string(*error.param);
  else json.null();
  write_place(json, line, error);
  json.end_object();
}

void write_text(JsonWriter& json, const Choice& choice) {
  json.key("text");
  json.string(choice.text);
  write_finish(json, choice);
}

void write_details(JsonWriter& json, const Completion& c, const Choice& choice) {
  if (c.return_token_ids) write_token_ids(json, choice);
  if (choice.logprobs.empty()) return;
  json.key("logprobs");
  write_logprob_list(json, choice, /*with_ids=*/true);
}

void write_outputs(JsonWriter& json, const Completion& c) {
  json.key("outputs");
  json.begin_array();
  for (size_t i = 0; i < c.choices.size(); ++i) {
    json.begin_object();
    json.key("index");
    json.integer(static_cast<int64_t>(i));
    write_text(json, c.choices[i]);
    write_details(json, c, c.choices[i]);
    json.end_object();
  }
  json.end_array();
}

void write_native(JsonWriter& json, const Completion& c, const ResultFormat& format) {
  json.begin_object();
  json.key("index");
  json.integer(c.line.index);
  json.key("id");
  write_id(json, c.id_json);
  if (c.error) {
    json.key("error");
    write_error(json, c.line, *c.error);
    write_input(json, c.input_json);
    write_hash(json, c.line.content_hash);
  } else {
    if (c.choices.size() > 1) {
      write_outputs(json, c);
      write_usage(json, c);
    } else {
      write_text(json, c.choices[0]);
      write_usage(json, c);
      write_details(json, c, c.choices[0]);
    }
    write_input(json, c.input_json);
    write_hash(json, c.line.content_hash);
    if (format.metrics) write_metrics(json, c.latency);
  }
  json.end_object();
}

void write_choice(JsonWriter& json, const Choice& c, int64_t index, bool is_chat, bool with_token_ids) {
  json.begin_object();
  json.key("index");
  json.integer(index);
  if (is_chat) {
    json.key("message");
    json.begin_object();
    json.key("role");
    json.string("assistant");
    json.key("content");
    json.string(c.text);
    json.key("refusal");
    json.null();
    json.end_object();
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
  if (with_token_ids) write_token_ids(json, c);
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
    write_choice(json, c.choices[i], static_cast<int64_t>(i), is_chat, c.return_token_ids);
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

size_t num_logprob_texts(const Choice& choice) {
  size_t count = 0;
  for (const TokenDetail& detail : choice.logprobs) count += 1 + detail.top.size();
  return count;
}

}  // namespace

void ResultFormatter::format_to(std::string& out, const Completion& completion) const {
  const std::vector<Choice>& choices = completion.choices;
  LLMB_CHECK(completion.error || !choices.empty());
  for (const Choice& choice : choices) LLMB_CHECK(choice.logprob_texts.size() == num_logprob_texts(choice));
  JsonWriter json(out);
  if (completion.form == ApiForm::kNative) write_native(json, completion, format_);
  else write_openai(json, completion, format_);
  out += '\n';
}

std::string ResultFormatter::format(const Completion& completion) const {
  std::string out;
  out.reserve(512 + (completion.choices.empty() ? 0 : completion.choices[0].text.size()));
  format_to(out, completion);
  return out;
}

}  // namespace llmb
