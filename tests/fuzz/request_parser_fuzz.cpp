// Any bytes as an input line: a request whose values are in the ranges of core/request.h, or an error whose record is
// one line of JSON. The three JSON readers agree on what is JSON.
#include "io/request_parser.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "io/json_scan.h"
#include "io/result_writer.h"
#include "tests/fuzz/fuzz_target.h"

namespace llmb::test {

namespace {

const RequestLimits kLimits = {.vocab_size = 1000, .max_logprobs = 20, .max_stop_strings = 4};

bool in_vocab(const std::vector<TokenId>& ids) {
  for (const TokenId id : ids)
    if (id < 0 || id >= kLimits.vocab_size) return false;
  return true;
}

void check_params(const GenerationParams& params) {
  const SamplingParams& s = params.sampling;
  LLMB_CHECK(s.temperature >= 0 && s.temperature <= 100);
  LLMB_CHECK(s.top_p > 0 && s.top_p <= 1);
  LLMB_CHECK(s.top_k >= 0);
  LLMB_CHECK(s.min_p >= 0 && s.min_p <= 1);
  LLMB_CHECK(s.repetition_penalty > 0 && std::isfinite(s.repetition_penalty));
  LLMB_CHECK(std::abs(s.presence_penalty) <= 2 && std::abs(s.frequency_penalty) <= 2);
  for (size_t i = 0; i < s.logit_bias.size(); ++i) {
    LLMB_CHECK(in_vocab({s.logit_bias[i].first}) && std::isfinite(s.logit_bias[i].second));
    LLMB_CHECK(i == 0 || s.logit_bias[i - 1].first < s.logit_bias[i].first);
  }
  LLMB_CHECK(!s.num_logprobs || (*s.num_logprobs >= 0 && *s.num_logprobs <= kLimits.max_logprobs));

  const StopParams& stop = params.stop;
  LLMB_CHECK(!stop.max_tokens || *stop.max_tokens >= 1);
  LLMB_CHECK(stop.min_tokens >= 0 && stop.min_tokens <= stop.max_tokens.value_or(INT32_MAX));
  LLMB_CHECK(static_cast<int32_t>(stop.stop.size()) <= kLimits.max_stop_strings);
  for (const std::string& text : stop.stop) LLMB_CHECK(!text.empty());
  LLMB_CHECK(in_vocab(stop.stop_token_ids));
}

void check_request(const InputRequest& request) {
  check_params(request.params);
  LLMB_CHECK(request.id_json.empty() || nlohmann::json::parse(request.id_json).is_primitive());
  LLMB_CHECK(!request.arrival_ms || (*request.arrival_ms >= 0 && std::isfinite(*request.arrival_ms)));
  if (const auto* ids = std::get_if<std::vector<TokenId>>(&request.prompt)) {
    LLMB_CHECK(!ids->empty() && in_vocab(*ids));
  } else if (const auto* chat = std::get_if<ChatMessages>(&request.prompt)) {
    const auto messages = nlohmann::json::parse(chat->messages_json);
    LLMB_CHECK(messages.is_array() && !messages.empty());
    for (const auto& message : messages) LLMB_CHECK(message.at("role").is_string());
    LLMB_CHECK(chat->template_kwargs_json.empty() || nlohmann::json::parse(chat->template_kwargs_json).is_object());
  } else {
    LLMB_CHECK(nlohmann::json(std::get<std::string>(request.prompt)).dump().size() >= 2);  // throws where not UTF-8
  }
}

// `fault` against a third reader. Ours is stricter about depth and the size of numbers, leaves a byte order mark to the
// line reader, and does not take NUL for the end of the text.
void compare_with_other_reader(std::string_view text, const std::optional<JsonFault>& fault) {
  const bool other_accepts = nlohmann::json::accept(text);
  if (!fault) LLMB_CHECK(other_accepts);
  if (fault) LLMB_CHECK(fault->byte_offset >= 0 && fault->byte_offset <= static_cast<int64_t>(text.size()));
  const bool stricter = fault && (fault->is_number_range || fault->what.find("deeper") != std::string::npos ||
                                  text.starts_with("\xEF\xBB\xBF") || text.find('\0') != std::string_view::npos);
  if (fault && other_accepts) LLMB_CHECK_MSG(stricter, fault->what);
}

}  // namespace

}  // namespace llmb::test

LLMB_FUZZ_TARGET(request_parser) {
  static llmb::RequestParser used_before({}, kLimits);
  static const llmb::ResultFormatter formatter;
  llmb::InputLine line;
  line.line.source = "in\xFF\n.jsonl";
  line.bytes = input;
  const auto fault = llmb::find_json_fault(input);
  compare_with_other_reader(input, fault);

  auto parsed = llmb::RequestParser({}, kLimits).parse(line);
  LLMB_CHECK(parsed.index() == used_before.parse(line).index());
  if (const auto* request = std::get_if<llmb::InputRequest>(&parsed)) {
    LLMB_CHECK(!fault);
    check_request(*request);
    return;
  }
  auto& failure = std::get<llmb::ParseFailure>(parsed);
  line.has_newline = false;
  const auto at_end = used_before.parse(line);
  const std::string& end_code = std::get<llmb::ParseFailure>(at_end).error.code;
  LLMB_CHECK(end_code == failure.error.code ||
             (end_code == llmb::kIncompleteLine && failure.error.code == "invalid_json"));
  if (fault) LLMB_CHECK(failure.error.byte_offset.has_value());
  const std::string record = formatter.format(llmb::to_completion(std::move(failure)));
  LLMB_CHECK(record.find('\n') == record.size() - 1);
  LLMB_CHECK(nlohmann::json::accept(record));
}
