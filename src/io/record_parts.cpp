#include "io/record_parts.h"

#include <bit>
#include <cmath>
#include <string>

#include "base/base64.h"

namespace llmb {

namespace {

// JSON has no -infinity; OpenAI's servers say -9999 for a token that cannot occur.
constexpr float kLogprobFloor = -9999.0f;

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

}  // namespace

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

void write_hash(JsonWriter& json, uint64_t hash) {
  json.key("hash");
  json.string(to_hex(hash));
}

// MurmurHash3's last step.
uint64_t mix_bits(uint64_t x) {
  x = (x ^ (x >> 33)) * 0xff51afd7ed558ccdu;
  x = (x ^ (x >> 33)) * 0xc4ceb9fe1a85ec53u;
  return x ^ (x >> 33);
}

// The first half is one to one in the index.
std::string record_id(const JobStamp& stamp, const LineRef& line) {
  const uint64_t first = mix_bits(mix_bits(static_cast<uint64_t>(line.index) + 1) + stamp.hash);
  return to_hex(first) + to_hex(mix_bits(mix_bits(line.content_hash + 1) + first));
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

// Sums over all drafters, then each of them.
void write_drafted(JsonWriter& json, const std::vector<DraftedTokens>& drafted) {
  const auto write_tokens = [&](int64_t num_drafted, int64_t num_accepted) {
    json.key("drafted_tokens");
    json.integer(num_drafted);
    json.key("accepted_tokens");
    json.integer(num_accepted);
  };
  int64_t num_drafted = 0, num_accepted = 0;
  for (const DraftedTokens& by : drafted) num_drafted += by.num_drafted, num_accepted += by.num_accepted;
  write_tokens(num_drafted, num_accepted);
  if (drafted.empty()) return;
  json.key("speculation");
  json.begin_object();
  for (const DraftedTokens& by : drafted) {
    json.key(by.drafter);
    json.begin_object();
    write_tokens(by.num_drafted, by.num_accepted);
    json.key("steps");
    json.integer(by.num_steps);
    json.key("tokens_per_step");
    json.floating(std::round(1000 * by.tokens_per_step()) / 1000);
    json.end_object();
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
  write_drafted(json, latency.drafted);
  json.end_object();
}

void write_finish(JsonWriter& json, const Choice& c) {
  json.key("finish_reason");
  const bool has_calls = c.parts && !c.parts->calls.empty() && c.finish_reason == FinishReason::kStop;
  json.string(has_calls ? "tool_calls" : finish_reason_name(c.finish_reason));
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

void write_embedding(JsonWriter& json, const Choice& choice, bool as_base64) {
  if (as_base64) {
    std::string bytes;
    for (const float x : choice.embedding)
      for (int shift = 0; shift < 32; shift += 8)
        bytes += static_cast<char>(std::bit_cast<uint32_t>(x) >> shift & 0xff);
    json.string(encode_base64(bytes));
    return;
  }
  json.begin_array();
  for (const float x : choice.embedding) json.single(x);
  json.end_array();
}

void write_prompt_logprobs(JsonWriter& json, const Completion& c) {
  json.key("prompt_logprobs");
  size_t text = 1;
  json.begin_array();
  json.null();
  for (const TokenDetail& detail : c.prompt_logprobs) {
    json.begin_object();
    write_token(json, detail.chosen, c.prompt_texts[text++], /*with_id=*/true);
    json.key("top_logprobs");
    json.begin_array();
    for (const TokenLogprob& top : detail.top) {
      json.begin_object();
      write_token(json, top, c.prompt_texts[text++], /*with_id=*/true);
      json.end_object();
    }
    json.end_array();
    json.end_object();
  }
  json.end_array();
}

void write_prompt_logprobs_by_id(JsonWriter& json, const Completion& c) {
  json.key("prompt_logprobs");
  size_t text = 1;
  json.begin_array();
  json.null();
  for (const TokenDetail& detail : c.prompt_logprobs) {
    const auto at = [&](const TokenLogprob& token, const std::string& decoded, size_t rank) {
      json.key(std::to_string(token.token));
      json.begin_object();
      json.key("logprob");
      write_logprob(json, token.logprob);
      json.key("rank");
      if (rank == 0) json.null();
      else json.integer(static_cast<int64_t>(rank));
      json.key("decoded_token");
      json.string(decoded);
      json.end_object();
    };
    const size_t chosen_text = text++;
    bool is_among_best = false;
    json.begin_object();
    for (size_t i = 0; i < detail.top.size(); ++i) {
      at(detail.top[i], c.prompt_texts[text++], i + 1);
      is_among_best |= detail.top[i].token == detail.chosen.token;
    }
    if (!is_among_best) at(detail.chosen, c.prompt_texts[chosen_text], 0);
    json.end_object();
  }
  json.end_array();
}

void write_place(JsonWriter& json, const LineRef& line, const RequestError& error) {
  json.key("line");
  json.string(line.source + ":" + std::to_string(line.line_number));
  json.key("byte_offset");
  if (error.byte_offset) json.integer(*error.byte_offset);
  else json.null();
}

}  // namespace llmb
