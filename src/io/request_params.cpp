#include "io/request_params.h"

#include <algorithm>

#include "io/answer_form_fields.h"

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

// A default of best_of gives way to the line's own n and to greedy sampling.
MaybeError read_choices(const FieldSet& fields, InputRequest* request) {
  SamplingParams& sampling = request->params.sampling;
  if (const JsonElement* const value = fields.find(Field::kN))
    if (MaybeError error = read_int32("n", *value, 1, kMaxChoices, &sampling.n)) return error;
  const JsonElement* const value = fields.find(Field::kBestOf);
  if (value == nullptr) {
    if (sampling.best_of) sampling.best_of = std::max(*sampling.best_of, sampling.n);
    return std::nullopt;
  }
  int32_t best_of = 0;
  if (MaybeError error = read_int32("best_of", *value, 1, kMaxChoices, &best_of)) return error;
  const std::string given = "; got best_of " + std::to_string(best_of) + " and n " + std::to_string(sampling.n);
  if (best_of < sampling.n) return field_error("invalid_value", "best_of", "best_of must be at least n" + given);
  if (best_of > sampling.n && sampling.temperature == 0)
    return field_error("invalid_value", "best_of",
                       "best_of must be n with temperature 0, where all choices are equal" + given);
  sampling.best_of = best_of;
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
    OutputParams& output = request->params.output;
    if (MaybeError error = read_int32(field_name(field), *value, output.echo ? 0 : 1, INT32_MAX, &number)) return error;
    if (number == 0) output.hides_answer = true, number = 1;
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
  if (const JsonElement* const value = fields.find(Field::kThinkingTokenBudget)) {
    int32_t budget = 0;
    if (MaybeError error = read_int32("thinking_token_budget", *value, -1, INT32_MAX, &budget)) return error;
    if (budget >= 0) stop.thinking_budget = budget;
  }
  if (const JsonElement* const value = fields.find(Field::kIgnoreEos))
    if (MaybeError error = read_bool("ignore_eos", *value, &stop.ignore_eos)) return error;
  if (const JsonElement* const value = fields.find(Field::kIncludeStopStr))
    return read_bool(field_name(Field::kIncludeStopStr), *value, &stop.include_stop_str_in_output);
  return std::nullopt;
}

MaybeError read_echo(const FieldSet& fields, InputRequest* request) {
  const JsonElement* const value = fields.find(Field::kEcho);
  bool& echo = request->params.output.echo;
  if (value == nullptr) return std::nullopt;
  if (MaybeError error = read_bool("echo", *value, &echo)) return error;
  if (echo && std::holds_alternative<ChatMessages>(request->prompt))
    return field_error("unsupported_field", "echo", "echo is supported only for prompts, not for messages");
  return std::nullopt;
}

// Beside echo, log-probabilities are those of the prompt's tokens, too.
MaybeError read_echoed_logprobs(InputRequest* request) {
  GenerationParams& params = request->params;
  const std::optional<int32_t> count = params.sampling.num_logprobs;
  if (!params.output.echo || !count) return std::nullopt;
  if (params.task != Task::kGenerate || params.sampling.beams)
    return field_error("unsupported_field", "echo",
                       "echo cannot stand beside logprobs with use_beam_search: true, or in a run that generates nothing");
  if (params.score.prompt_logprobs && params.score.prompt_logprobs != count)
    return field_error("invalid_value", "prompt_logprobs",
                       "beside echo and logprobs, prompt_logprobs must be the same number as logprobs");
  params.score.hides_details = !params.score.prompt_logprobs;
  params.score.prompt_logprobs = count;
  return std::nullopt;
}

MaybeError read_token_rules(const FieldSet& fields, const RequestLimits& limits, InputRequest* request) {
  TokenRules& rules = request->params.token_rules;
  if (const JsonElement* const value = fields.find(Field::kAllowedTokenIds)) {
    if (MaybeError error = read_token_ids("allowed_token_ids", *value, limits.vocab_size, &rules.allowed)) return error;
    if (rules.allowed.empty()) return invalid_value("allowed_token_ids", "a non-empty array of token ids", *value);
  }
  if (const JsonElement* const value = fields.find(Field::kBadWords))
    return read_stop("bad_words", *value, limits.max_stop_strings, &rules.bad_words);
  return std::nullopt;
}

MaybeError read_early_stopping(JsonElement value, EarlyStopping* out) {
  if (value.is_bool()) {
    *out = value.get_bool().value_unsafe() ? EarlyStopping::kTrue : EarlyStopping::kFalse;
    return std::nullopt;
  }
  if (!is_string(value) || string_of(value) != "never")
    return invalid_value("early_stopping", "true, false or \"never\"", value);
  *out = EarlyStopping::kNever;
  return std::nullopt;
}

// A line that asks for one of these things asks for draws, or for what beams are not built with. Defaults of how to
// draw give way.
MaybeError refuse_beside_beams(const FieldSet& fields, const GenerationParams& params) {
  const SamplingParams& sampling = params.sampling;
  const struct {
    Field field;
    bool is_asked_for;
  } kRefused[] = {
      {Field::kTemperature, fields.find(Field::kTemperature) && sampling.temperature != 0 && sampling.temperature != 1},
      {Field::kTopP, fields.find(Field::kTopP) && sampling.top_p != 1},
      {Field::kTopK, fields.find(Field::kTopK) && sampling.top_k != 0},
      {Field::kMinP, fields.find(Field::kMinP) && sampling.min_p != 0},
      {Field::kBestOf, fields.find(Field::kBestOf) != nullptr},
      {Field::kRepetitionPenalty, sampling.repetition_penalty != 1},
      {Field::kPresencePenalty, sampling.presence_penalty != 0},
      {Field::kFrequencyPenalty, sampling.frequency_penalty != 0},
      {Field::kLogitBias, !sampling.logit_bias.empty()},
      {Field::kLogprobs, sampling.num_logprobs.has_value()},
      {Field::kStop, !params.stop.stop.empty()},
      {Field::kAllowedTokenIds, !params.token_rules.allowed.empty()},
      {Field::kBadWords, !params.token_rules.bad_words.empty()},
  };
  for (const auto& [field, is_asked_for] : kRefused)
    if (is_asked_for)
      return field_error("invalid_value", field_name(field),
                         std::string(field_name(field)) + " cannot stand beside use_beam_search: true");
  return std::nullopt;
}

MaybeError read_beams(const FieldSet& fields, const RequestLimits& limits, InputRequest* request) {
  SamplingParams& sampling = request->params.sampling;
  bool is_wanted = false;
  if (const JsonElement* const value = fields.find(Field::kUseBeamSearch))
    if (MaybeError error = read_bool("use_beam_search", *value, &is_wanted)) return error;
  BeamParams beams;
  const JsonElement* const width = fields.find(Field::kBeamWidth);
  if (width != nullptr)
    if (MaybeError error = read_int32("beam_width", *width, 1, kMaxChoices, &beams.width)) return error;
  if (const JsonElement* const value = fields.find(Field::kLengthPenalty))
    if (MaybeError error = read_float("length_penalty", *value, {-10, 10}, &beams.length_penalty)) return error;
  if (const JsonElement* const value = fields.find(Field::kEarlyStopping))
    if (MaybeError error = read_early_stopping(*value, &beams.early_stopping)) return error;
  if (!is_wanted) {
    const std::optional<Field> field = beams.width != 1            ? std::optional(Field::kBeamWidth)
                                       : beams.length_penalty != 1 ? Field::kLengthPenalty
                                       : beams.early_stopping != EarlyStopping::kFalse ? Field::kEarlyStopping
                                                                                       : std::optional<Field>();
    if (!field) return std::nullopt;
    return field_error("invalid_value", field_name(*field),
                       std::string(field_name(*field)) + " needs use_beam_search: true");
  }
  if (width == nullptr) beams.width = sampling.n;
  const std::string given = "; got beam_width " + std::to_string(beams.width);
  if (beams.width < sampling.n)
    return field_error("invalid_value", "n",
                       "n must be at most beam_width" + given + " and n " + std::to_string(sampling.n));
  if (beams.width > limits.vocab_size)
    return field_error("invalid_value", "beam_width", "beam_width must be at most the vocabulary's size" + given);
  if (MaybeError error = refuse_beside_beams(fields, request->params)) return error;
  sampling.temperature = 0;
  sampling.top_p = 1;
  sampling.top_k = 0;
  sampling.min_p = 0;
  sampling.best_of.reset();
  sampling.beams = beams;
  return std::nullopt;
}

bool pools(Task task) { return task == Task::kEmbed || task == Task::kClassify; }

MaybeError read_prompt_logprobs(const FieldSet& fields, const RequestLimits& limits, InputRequest* request) {
  const JsonElement* const value = fields.find(Field::kPromptLogprobs);
  if (value == nullptr) return std::nullopt;
  if (request->form == ApiForm::kOpenAiResponses)
    return field_error("unsupported_field", "prompt_logprobs", "prompt_logprobs are no part of a response");
  if (fields.find(Field::kOptions) != nullptr || request->params.sampling.beams || pools(request->params.task))
    return field_error(
        "invalid_value", "prompt_logprobs",
        "prompt_logprobs cannot stand beside options or use_beam_search: true, or in a run that embeds or classifies");
  int32_t count = 0;
  if (MaybeError error = read_int32("prompt_logprobs", *value, 0, limits.max_logprobs, &count)) return error;
  request->params.score.prompt_logprobs = count;
  return std::nullopt;
}

// A line that names options asks how likely they are, and for no answer.
MaybeError read_options(const FieldSet& fields, InputRequest* request) {
  const JsonElement* const value = fields.find(Field::kOptions);
  if (value == nullptr) return std::nullopt;
  if (request->form != ApiForm::kNative)
    return field_error("unsupported_field", "options", "options stand beside \"prompt\" or \"messages\", not in a body");
  if (pools(request->params.task))
    return field_error("unsupported_field", "options", "options have no place in a run that embeds or classifies");
  ScoreParams& score = request->params.score;
  if (MaybeError error = read_strings("options", *value, kMaxChoices, &score.options)) return error;
  if (score.options.empty()) return invalid_value("options", "a non-empty array of strings", *value);
  for (const Field field : {Field::kN, Field::kBestOf, Field::kUseBeamSearch, Field::kResponseFormat,
                            Field::kStructuredOutputs, Field::kGuidedJson, Field::kGuidedRegex, Field::kGuidedChoice,
                            Field::kGuidedGrammar, Field::kTools, Field::kEcho})
    if (fields.find(field) != nullptr)
      return field_error("invalid_value", field_name(field),
                         std::string(field_name(field)) + " cannot stand beside options, which ask for no answer");
  score.num_logprobs = request->params.sampling.num_logprobs;
  return std::nullopt;
}

}  // namespace

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

MaybeError read_params(const FieldSet& fields, const RequestLimits& limits, InputRequest* request) {
  if (MaybeError error = read_sampling(fields, limits, request)) return error;
  if (MaybeError error = read_choices(fields, request)) return error;
  if (MaybeError error = read_logprobs(fields, limits, request)) return error;
  if (MaybeError error = read_echo(fields, request)) return error;
  if (MaybeError error = read_stopping(fields, limits, request)) return error;
  if (MaybeError error = read_truncation(fields, request)) return error;
  if (MaybeError error = read_token_rules(fields, limits, request)) return error;
  if (MaybeError error = read_beams(fields, limits, request)) return error;
  if (MaybeError error = read_answer_form(fields, request)) return error;
  if (MaybeError error = read_prompt_logprobs(fields, limits, request)) return error;
  if (MaybeError error = read_options(fields, request)) return error;
  if (MaybeError error = read_echoed_logprobs(request)) return error;
  return read_outer_params(fields, request);
}

MaybeError read_outer_params(const FieldSet& fields, InputRequest* request) {
  constexpr FloatRange kArrivalRange = {0, 1e12};  // some thirty years
  OutputParams& output = request->params.output;
  if (const JsonElement* const value = fields.find(Field::kModel))
    if (MaybeError error = read_string("model", *value, &request->model_name)) return error;
  if (const JsonElement* const value = fields.find(Field::kAdapter))
    if (MaybeError error = read_string("adapter", *value, &request->adapter.emplace())) return error;
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
