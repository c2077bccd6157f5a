#include "io/request_params.h"

#include <algorithm>

namespace llmb {

namespace {

struct FloatField {
  Field field;
  float SamplingParams::*member;
  FloatRange range;
};
constexpr FloatField kFloatFields[] = {
    {Field::kTemperature, &SamplingParams::temperature, {0, 100}},
    {Field::kTopP, &SamplingParams::top_p, {0, 1, false}},
    {Field::kMinP, &SamplingParams::min_p, {0, 1}},
    {Field::kRepetitionPenalty, &SamplingParams::repetition_penalty, {0, 100, false}},
    {Field::kPresencePenalty, &SamplingParams::presence_penalty, {-2, 2}},
    {Field::kFrequencyPenalty, &SamplingParams::frequency_penalty, {-2, 2}},
};

MaybeError read_sampling(const FieldSet& fields, const RequestLimits& limits, InputRequest* request) {
  SamplingParams& sampling = request->params.sampling;
  for (const FloatField& entry : kFloatFields) {
    const JsonElement* const value = fields.find(entry.field);
    if (value == nullptr) continue;
    if (MaybeError error = read_float(field_name(entry.field), *value, entry.range, &(sampling.*entry.member)))
      return error;
  }
  if (const JsonElement* const value = fields.find(Field::kTopK)) {
    if (MaybeError error = read_int32("top_k", *value, -1, INT32_MAX, &sampling.top_k)) return error;
    if (sampling.top_k == -1) sampling.top_k = 0;
  }
  if (const JsonElement* const value = fields.find(Field::kSeed)) {
    uint64_t seed = 0;
    if (MaybeError error = read_seed("seed", *value, &seed)) return error;
    sampling.seed = seed;
  }
  if (const JsonElement* const value = fields.find(Field::kLogitBias))
    return read_logit_bias("logit_bias", *value, limits.vocab_size, &sampling.logit_bias);
  return std::nullopt;
}

// Completions count alternatives in logprobs, chat in top_logprobs beside logprobs: true; native lines may do either.
MaybeError read_logprobs(const FieldSet& fields, const RequestLimits& limits, InputRequest* request) {
  const JsonElement* const logprobs = fields.find(Field::kLogprobs);
  const JsonElement* const top = fields.find(Field::kTopLogprobs);
  std::optional<int32_t>& wanted = request->params.sampling.num_logprobs;
  int32_t count = 0;
  const bool is_flag = logprobs != nullptr && logprobs->is_bool();
  if (logprobs != nullptr && request->form == ApiForm::kOpenAiChat && !is_flag)
    return invalid_value("logprobs", "true or false", *logprobs);
  if (logprobs != nullptr && (!is_flag || request->form == ApiForm::kOpenAiCompletion)) {
    if (MaybeError error = read_int32("logprobs", *logprobs, 0, limits.max_logprobs, &count)) return error;
    wanted = count;
  } else if (is_flag) {
    wanted = logprobs->get_bool().value_unsafe() ? std::optional<int32_t>(0) : std::nullopt;
  }
  if (top == nullptr) return std::nullopt;
  if (request->form == ApiForm::kOpenAiCompletion || (logprobs != nullptr && !is_flag))
    return field_error("invalid_value", "top_logprobs", "top_logprobs cannot stand beside a number in logprobs");
  if (MaybeError error = read_int32("top_logprobs", *top, 0, limits.max_logprobs, &count)) return error;
  const bool off = is_flag ? !wanted : request->form == ApiForm::kOpenAiChat && !wanted;
  if (off && count > 0) return field_error("invalid_value", "top_logprobs", "top_logprobs needs logprobs: true");
  if (!off) wanted = count;
  return std::nullopt;
}

MaybeError read_max_tokens(const FieldSet& fields, const RequestLimits& limits, InputRequest* request) {
  StopParams& stop = request->params.stop;
  std::optional<int32_t> given;
  for (const Field field : {Field::kMaxTokens, Field::kMaxCompletionTokens}) {
    const JsonElement* const value = fields.find(field);
    if (value == nullptr) continue;
    int32_t number = 0;
    if (MaybeError error = read_int32(field_name(field), *value, 1, INT32_MAX, &number)) return error;
    if (given && *given != number)
      return field_error("invalid_value", field_name(field),
                         "max_completion_tokens and max_tokens differ; give one of them");
    given = number;
  }
  if (given) stop.max_tokens = given;
  else if (!stop.max_tokens && request->form == ApiForm::kOpenAiCompletion)
    stop.max_tokens = limits.completion_max_tokens;
  const int32_t most = stop.max_tokens.value_or(INT32_MAX);
  if (const JsonElement* const value = fields.find(Field::kMinTokens))
    return read_int32("min_tokens", *value, 0, most, &stop.min_tokens);
  stop.min_tokens = std::min(stop.min_tokens, most);  // a default gives way to the line's own limit
  return std::nullopt;
}

MaybeError read_stopping(const FieldSet& fields, const RequestLimits& limits, InputRequest* request) {
  StopParams& stop = request->params.stop;
  if (MaybeError error = read_max_tokens(fields, limits, request)) return error;
  if (const JsonElement* const value = fields.find(Field::kStop))
    if (MaybeError error = read_stop("stop", *value, limits.max_stop_strings, &stop.stop)) return error;
  if (const JsonElement* const value = fields.find(Field::kStopTokenIds))
    if (MaybeError error = read_token_ids("stop_token_ids", *value, limits.vocab_size, &stop.stop_token_ids))
      return error;
  if (const JsonElement* const value = fields.find(Field::kIgnoreEos))
    if (MaybeError error = read_bool("ignore_eos", *value, &stop.ignore_eos)) return error;
  if (const JsonElement* const value = fields.find(Field::kIncludeStopStr))
    return read_bool(field_name(Field::kIncludeStopStr), *value, &stop.include_stop_str_in_output);
  return std::nullopt;
}

// As vLLM has them: -1 is the model's own limit, and the beginning is what is cut where nothing says otherwise.
MaybeError read_truncation(const FieldSet& fields, InputRequest* request) {
  PromptParams& prompt = request->params.prompt;
  if (const JsonElement* const value = fields.find(Field::kTruncatePromptTokens)) {
    int32_t limit = 0;
    if (MaybeError error = read_int32("truncate_prompt_tokens", *value, -1, INT32_MAX, &limit)) return error;
    if (limit == 0) return invalid_value("truncate_prompt_tokens", "-1 or a positive integer", *value);
    if (limit > 0) prompt.max_prompt_tokens = limit;
    if (!prompt.truncate) prompt.truncate = TruncateSide::kLeft;
  }
  const JsonElement* const side = fields.find(Field::kTruncationSide);
  if (side == nullptr) return std::nullopt;
  if (!is_string(*side) || (string_of(*side) != "left" && string_of(*side) != "right"))
    return invalid_value("truncation_side", "\"left\" or \"right\"", *side);
  if (!prompt.truncate)
    return field_error("invalid_value", "truncation_side",
                       "truncation_side needs truncate_prompt_tokens or --truncate");
  prompt.truncate = string_of(*side) == "left" ? TruncateSide::kLeft : TruncateSide::kRight;
  return std::nullopt;
}

}  // namespace

MaybeError read_params(const FieldSet& fields, const RequestLimits& limits, InputRequest* request) {
  if (MaybeError error = read_sampling(fields, limits, request)) return error;
  if (MaybeError error = read_logprobs(fields, limits, request)) return error;
  if (MaybeError error = read_stopping(fields, limits, request)) return error;
  if (MaybeError error = read_truncation(fields, request)) return error;
  return read_outer_params(fields, request);
}

MaybeError read_outer_params(const FieldSet& fields, InputRequest* request) {
  constexpr FloatRange kArrivalRange = {0, 1e12};  // some thirty years
  OutputParams& output = request->params.output;
  if (const JsonElement* const value = fields.find(Field::kModel))
    if (MaybeError error = read_string("model", *value, &request->model_name)) return error;
  if (const JsonElement* const value = fields.find(Field::kSkipSpecialTokens))
    if (MaybeError error = read_bool("skip_special_tokens", *value, &output.skip_special_tokens)) return error;
  if (const JsonElement* const value = fields.find(Field::kReturnTokenIds))
    if (MaybeError error = read_bool("return_token_ids", *value, &output.return_token_ids)) return error;
  if (const JsonElement* const value = fields.find(Field::kArrivalMs)) {
    double arrival_ms = 0;
    if (MaybeError error = read_double("arrival_ms", *value, kArrivalRange, &arrival_ms)) return error;
    request->arrival_ms = arrival_ms;
  }
  return std::nullopt;
}

}  // namespace llmb
