#include "io/request_parser.h"

#include <simdjson.h>

#include <array>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "io/chat_messages.h"
#include "io/field_values.h"
#include "io/json_scan.h"
#include "io/request_fields.h"

namespace llmb {

namespace {

namespace dom = simdjson::dom;

// The request fields of one object: of the line, or of an OpenAI line's body.
class FieldSet {
 public:
  // nullptr where absent or null.
  const JsonElement* find(Field field) const {
    const Slot& slot = slots_[static_cast<int>(field)];
    return slot.count > 0 && !slot.value.is_null() ? &slot.value : nullptr;
  }
  bool has(Field field) const { return find(field) != nullptr; }

  // False where the field was there before.
  bool add(Field field, JsonElement value) {
    Slot& slot = slots_[static_cast<int>(field)];
    if (slot.count++ > 0) return false;
    slot.value = value;
    return true;
  }

 private:
  struct Slot {
    JsonElement value;
    int count = 0;
  };
  std::array<Slot, kNumFields> slots_;
};

constexpr std::array kPromptFields = {Field::kPrompt, Field::kMessages, Field::kPromptTokenIds};

const RequestError kTwoPrompts = {"invalid_request", "give exactly one of prompt, messages and prompt_token_ids",
                                  std::nullopt, std::nullopt};

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

// Names that lines of this run hold and that mean nothing here: their near-miss check is done once. Bounded.
class KnownExtras {
 public:
  bool contains(std::string_view name) const { return names_.count(std::string(name)) > 0; }
  void add(std::string_view name) {
    constexpr size_t kMaxNames = 256;
    if (names_.size() < kMaxNames) names_.emplace(name);
  }

 private:
  std::unordered_set<std::string> names_;
};

// One line on its way to a request.
class LineParse {
 public:
  LineParse(const GenerationParams& defaults, const RequestLimits& limits, KnownExtras& extras, JsonElement root)
      : limits_(limits), extras_(extras), root_(root) {
    request.params = defaults;
  }

  MaybeError run();

  InputRequest request;
  bool is_chat = false;
  bool error_in_body = false;  // where the field of the error stands
  bool error_is_duplicate = false;

 private:
  MaybeError collect(dom::object object, bool strict, FieldSet* fields);
  MaybeError check_other_field(std::string_view name, const FieldSpec* spec, JsonElement value, bool strict,
                               int* num_checked);
  MaybeError read_id(const FieldSet& fields, Field first, Field second);
  bool is_batch_line(const FieldSet& fields) const;
  MaybeError read_batch_line(const FieldSet& line);
  MaybeError read_url(const FieldSet& line);
  MaybeError read_request(const FieldSet& fields);
  MaybeError read_prompt(const FieldSet& fields);
  MaybeError read_prompt_value(JsonElement value);
  MaybeError read_prompt_array(JsonElement value);
  MaybeError read_sampling(const FieldSet& fields);
  MaybeError read_logprobs(const FieldSet& fields);
  MaybeError read_stopping(const FieldSet& fields);
  MaybeError read_max_tokens(const FieldSet& fields);
  MaybeError read_rest(const FieldSet& fields);

  const RequestLimits& limits_;
  KnownExtras& extras_;
  JsonElement root_;
};

MaybeError LineParse::run() {
  dom::object object;
  if (root_.get(object) != simdjson::SUCCESS)
    return RequestError{"invalid_request", "a line must be a JSON object; got " + shown(root_), std::nullopt, 0};
  FieldSet fields;
  const MaybeError error = collect(object, /*strict=*/false, &fields);
  const bool is_batch = is_batch_line(fields);
  // The record of a bad line carries its id wherever that can be read.
  const MaybeError id_error = is_batch ? read_id(fields, Field::kCustomId, Field::kId)
                                       : read_id(fields, Field::kId, Field::kCustomId);
  if (is_batch) request.form = ApiForm::kOpenAiChat;
  if (error) return error;
  if (id_error) return id_error;
  return is_batch ? read_batch_line(fields) : read_request(fields);
}

// Sorts an object's members; the first fault is returned when all have been seen. strict: an OpenAI body, where no member
// is the user's own.
MaybeError LineParse::collect(dom::object object, bool strict, FieldSet* fields) {
  MaybeError first_error;
  int num_checked = 0;
  for (const auto& [name, value] : object) {
    const FieldSpec* const spec = find_field(name);
    if (spec != nullptr && spec->kind == FieldKind::kRequest) {
      if (fields->add(spec->field, value) || first_error) continue;
      first_error = field_error("duplicate_field", name, std::string(name) + " is given twice");
      error_is_duplicate = true;
    } else if (!first_error) {
      first_error = check_other_field(name, spec, value, strict, &num_checked);
    }
  }
  return first_error;
}

MaybeError LineParse::check_other_field(std::string_view name, const FieldSpec* spec, JsonElement value, bool strict,
                                        int* num_checked) {
  constexpr int kMaxChecked = 64;  // near misses are looked for among so many unknown members of a line
  if (spec != nullptr && spec->kind == FieldKind::kHarmless) return std::nullopt;
  if (spec != nullptr) {
    if (is_neutral(value, spec->neutral)) return std::nullopt;
    std::string message = spec->neutral == Neutral::kNull
                              ? std::string(name) + " is not supported"
                              : std::string(name) + " is supported only as " + std::string(neutral_text(spec->neutral));
    return field_error("unsupported_field", name, message + "; got " + shown(value));
  }
  if (!strict && (extras_.contains(name) || ++*num_checked > kMaxChecked)) return std::nullopt;
  const std::optional<std::string_view> meant = near_miss(name);
  if (!strict && !meant) {
    extras_.add(name);
    return std::nullopt;
  }
  const std::string shown_name(name.substr(0, 100));
  return field_error("unknown_field", shown_name,
                     "unknown field " + shown_name + (meant ? "; did you mean " + std::string(*meant) + "?" : ""));
}

MaybeError LineParse::read_id(const FieldSet& fields, Field first, Field second) {
  const Field field = fields.has(first) ? first : second;
  const JsonElement* const id = fields.find(field);
  if (id == nullptr) return std::nullopt;
  if (id->is_array() || id->is_object())
    return invalid_value(field_name(field), "a string, a number, true, false or null", *id);
  append_json(request.id_json, *id);
  return std::nullopt;
}

// A body with a url beside it; or, where there is no prompt, any part of a batch line. A native line may have such fields
// of its own.
bool LineParse::is_batch_line(const FieldSet& fields) const {
  const JsonElement* const url = fields.find(Field::kUrl);
  const JsonElement* const body = fields.find(Field::kBody);
  bool has_prompt = false;
  for (const Field field : kPromptFields) has_prompt = has_prompt || fields.has(field);
  if (!has_prompt) return body != nullptr || (url != nullptr && fields.has(Field::kMethod));
  return body != nullptr && body->is_object() && url != nullptr && url->is_string() &&
         string_of(*url).substr(0, 4) == "/v1/";
}

MaybeError LineParse::read_batch_line(const FieldSet& line) {
  if (MaybeError error = read_url(line)) return error;
  is_chat = request.form == ApiForm::kOpenAiChat;
  const JsonElement* const body = line.find(Field::kBody);
  if (body == nullptr) return field_error("missing_field", "body", "a batch line needs a body");
  if (!body->is_object()) return invalid_value("body", "an object", *body);
  for (const Field field : kPromptFields)
    if (line.has(field)) return kTwoPrompts;
  for (int i = static_cast<int>(Field::kModel); i < kNumFields; ++i) {
    const auto field = static_cast<Field>(i);
    if (field == Field::kArrivalMs || field == Field::kModel || !line.has(field)) continue;
    return field_error("invalid_request", field_name(field),
                       std::string(field_name(field)) + " of a batch line belongs inside its body");
  }
  if (MaybeError error = read_rest(line)) return error;
  error_in_body = true;
  FieldSet fields;
  const MaybeError error = collect(object_of(*body), /*strict=*/true, &fields);
  if (const JsonElement* const model = fields.find(Field::kModel); model != nullptr && model->is_string())
    request.model_name = string_of(*model);
  if (error) return error;
  for (const Field field : {Field::kMethod, Field::kUrl, Field::kBody, Field::kId, Field::kCustomId})
    if (fields.has(field))
      return field_error("unknown_field", field_name(field), "unknown field " + std::string(field_name(field)) + " in body");
  return read_request(fields);
}

MaybeError LineParse::read_url(const FieldSet& line) {
  const JsonElement* const url = line.find(Field::kUrl);
  if (url == nullptr) return field_error("missing_field", "url", "a batch line needs a url");
  if (!url->is_string()) return invalid_value("url", "a string", *url);
  const std::string_view text = string_of(*url);
  if (text == "/v1/completions") request.form = ApiForm::kOpenAiCompletion;
  else if (text != "/v1/chat/completions")
    return field_error("unsupported_url", "url",
                       "url " + shown(*url) + " is not supported; use /v1/chat/completions or /v1/completions");
  const JsonElement* const method = line.find(Field::kMethod);
  if (method != nullptr && !(method->is_string() && string_of(*method) == "POST"))
    return invalid_value("method", "\"POST\"", *method);
  return std::nullopt;
}

MaybeError LineParse::read_request(const FieldSet& fields) {
  if (MaybeError error = read_prompt(fields)) return error;
  if (MaybeError error = read_sampling(fields)) return error;
  if (MaybeError error = read_logprobs(fields)) return error;
  if (MaybeError error = read_stopping(fields)) return error;
  return read_rest(fields);
}

MaybeError LineParse::read_prompt(const FieldSet& fields) {
  int num_prompts = 0;
  for (const Field field : kPromptFields) num_prompts += fields.has(field);
  const JsonElement* const messages = fields.find(Field::kMessages);
  is_chat = is_chat || messages != nullptr;
  if (num_prompts > 1) return kTwoPrompts;
  const std::string_view wanted = request.form == ApiForm::kNative       ? "prompt, messages or prompt_token_ids"
                                  : request.form == ApiForm::kOpenAiChat ? "messages"
                                                                         : "prompt";
  const bool wrong_kind = request.form == ApiForm::kOpenAiChat         ? messages == nullptr
                          : request.form == ApiForm::kOpenAiCompletion ? messages != nullptr
                                                                       : false;
  if (num_prompts == 0 || wrong_kind)
    return RequestError{"missing_field", "the line needs " + std::string(wanted),
                        request.form == ApiForm::kNative ? std::nullopt : std::optional<std::string>(wanted), std::nullopt};
  const JsonElement* const kwargs = fields.find(Field::kChatTemplateKwargs);
  if (kwargs != nullptr && (messages == nullptr || !kwargs->is_object()))
    return invalid_value("chat_template_kwargs", "an object, beside messages", *kwargs);
  if (messages != nullptr) {
    ChatMessages chat;
    if (MaybeError error = read_messages(*messages, &chat.messages_json)) return error;
    if (kwargs != nullptr) append_json(chat.template_kwargs_json, *kwargs);
    request.prompt = std::move(chat);
    return std::nullopt;
  }
  if (const JsonElement* const prompt = fields.find(Field::kPrompt)) return read_prompt_value(*prompt);
  const JsonElement& ids = *fields.find(Field::kPromptTokenIds);
  std::vector<TokenId> tokens;
  if (MaybeError error = read_token_ids("prompt_token_ids", ids, limits_.vocab_size, &tokens)) return error;
  if (tokens.empty()) return invalid_value("prompt_token_ids", "a non-empty array of token ids", ids);
  request.prompt = std::move(tokens);
  return std::nullopt;
}

MaybeError LineParse::read_prompt_value(JsonElement value) {
  if (value.is_array()) return read_prompt_array(value);
  if (!value.is_string() || is_neutral(value, Neutral::kEmpty))
    return invalid_value("prompt", "a non-empty string, or token ids", value);
  request.prompt = std::string(string_of(value));
  return std::nullopt;
}

// OpenAI's completions take several prompts in an array, and token ids in place of text.
MaybeError LineParse::read_prompt_array(JsonElement value) {
  const dom::array array = array_of(value);
  if (array.begin() == array.end()) return invalid_value("prompt", "a non-empty string, or token ids", value);
  const JsonElement first = *array.begin();
  if (first.is_string() || first.is_array()) {
    if (++array.begin() != array.end())
      return field_error("unsupported_field", "prompt", "several prompts in one line are not supported; give each its own line");
    if (first.is_string()) return read_prompt_value(first);
    value = first;
  }
  std::vector<TokenId> tokens;
  if (MaybeError error = read_token_ids("prompt", value, limits_.vocab_size, &tokens)) return error;
  if (tokens.empty()) return invalid_value("prompt", "a non-empty string, or token ids", value);
  request.prompt = std::move(tokens);
  return std::nullopt;
}

MaybeError LineParse::read_sampling(const FieldSet& fields) {
  SamplingParams& sampling = request.params.sampling;
  for (const FloatField& entry : kFloatFields) {
    const JsonElement* const value = fields.find(entry.field);
    if (value == nullptr) continue;
    if (MaybeError error = read_float(field_name(entry.field), *value, entry.range, &(sampling.*entry.member))) return error;
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
    return read_logit_bias("logit_bias", *value, limits_.vocab_size, &sampling.logit_bias);
  return std::nullopt;
}

// Completions count alternatives in logprobs, chat in top_logprobs beside logprobs: true; native lines may do either.
MaybeError LineParse::read_logprobs(const FieldSet& fields) {
  const JsonElement* const logprobs = fields.find(Field::kLogprobs);
  const JsonElement* const top = fields.find(Field::kTopLogprobs);
  std::optional<int32_t>& wanted = request.params.sampling.num_logprobs;
  int32_t count = 0;
  const bool is_flag = logprobs != nullptr && logprobs->is_bool();
  if (logprobs != nullptr && request.form == ApiForm::kOpenAiChat && !is_flag)
    return invalid_value("logprobs", "true or false", *logprobs);
  if (logprobs != nullptr && (!is_flag || request.form == ApiForm::kOpenAiCompletion)) {
    if (MaybeError error = read_int32("logprobs", *logprobs, 0, limits_.max_logprobs, &count)) return error;
    wanted = count;
  } else if (is_flag) {
    wanted = logprobs->get_bool().value_unsafe() ? std::optional<int32_t>(0) : std::nullopt;
  }
  if (top == nullptr) return std::nullopt;
  if (request.form == ApiForm::kOpenAiCompletion || (logprobs != nullptr && !is_flag))
    return field_error("invalid_value", "top_logprobs", "top_logprobs cannot stand beside a number in logprobs");
  if (MaybeError error = read_int32("top_logprobs", *top, 0, limits_.max_logprobs, &count)) return error;
  const bool off = is_flag ? !wanted : request.form == ApiForm::kOpenAiChat && !wanted;
  if (off && count > 0) return field_error("invalid_value", "top_logprobs", "top_logprobs needs logprobs: true");
  if (!off) wanted = count;
  return std::nullopt;
}

MaybeError LineParse::read_stopping(const FieldSet& fields) {
  StopParams& stop = request.params.stop;
  if (MaybeError error = read_max_tokens(fields)) return error;
  if (const JsonElement* const value = fields.find(Field::kStop))
    if (MaybeError error = read_stop("stop", *value, limits_.max_stop_strings, &stop.stop)) return error;
  if (const JsonElement* const value = fields.find(Field::kStopTokenIds))
    if (MaybeError error = read_token_ids("stop_token_ids", *value, limits_.vocab_size, &stop.stop_token_ids)) return error;
  if (const JsonElement* const value = fields.find(Field::kIgnoreEos))
    if (MaybeError error = read_bool("ignore_eos", *value, &stop.ignore_eos)) return error;
  if (const JsonElement* const value = fields.find(Field::kIncludeStopStr))
    return read_bool(field_name(Field::kIncludeStopStr), *value, &stop.include_stop_str_in_output);
  return std::nullopt;
}

MaybeError LineParse::read_max_tokens(const FieldSet& fields) {
  StopParams& stop = request.params.stop;
  std::optional<int32_t> given;
  for (const Field field : {Field::kMaxTokens, Field::kMaxCompletionTokens}) {
    const JsonElement* const value = fields.find(field);
    if (value == nullptr) continue;
    int32_t number = 0;
    if (MaybeError error = read_int32(field_name(field), *value, 1, INT32_MAX, &number)) return error;
    if (given && *given != number)
      return field_error("invalid_value", field_name(field), "max_completion_tokens and max_tokens differ; give one of them");
    given = number;
  }
  if (given) stop.max_tokens = given;
  else if (!stop.max_tokens && request.form == ApiForm::kOpenAiCompletion) stop.max_tokens = limits_.completion_max_tokens;
  const int32_t most = stop.max_tokens.value_or(INT32_MAX);
  if (const JsonElement* const value = fields.find(Field::kMinTokens))
    return read_int32("min_tokens", *value, 0, most, &stop.min_tokens);
  stop.min_tokens = std::min(stop.min_tokens, most);  // a default gives way to the line's own limit
  return std::nullopt;
}

MaybeError LineParse::read_rest(const FieldSet& fields) {
  constexpr FloatRange kArrivalRange = {0, 1e12};  // some thirty years
  OutputParams& output = request.params.output;
  if (const JsonElement* const value = fields.find(Field::kModel))
    if (MaybeError error = read_string("model", *value, &request.model_name)) return error;
  if (const JsonElement* const value = fields.find(Field::kSkipSpecialTokens))
    if (MaybeError error = read_bool("skip_special_tokens", *value, &output.skip_special_tokens)) return error;
  if (const JsonElement* const value = fields.find(Field::kReturnTokenIds))
    if (MaybeError error = read_bool("return_token_ids", *value, &output.return_token_ids)) return error;
  if (const JsonElement* const value = fields.find(Field::kArrivalMs)) {
    double arrival_ms = 0;
    if (MaybeError error = read_double("arrival_ms", *value, kArrivalRange, &arrival_ms)) return error;
    request.arrival_ms = arrival_ms;
  }
  return std::nullopt;
}

RequestError syntax_error(std::string_view bytes, simdjson::error_code code) {
  const std::optional<JsonFault> fault = find_json_fault(bytes);
  if (!fault) return {"invalid_json", simdjson::error_message(code), std::nullopt, std::nullopt};
  if (fault->is_number_range)
    return {"invalid_value", fault->field.value_or("the line") + ": " + fault->what, fault->field, fault->byte_offset};
  return {"invalid_json", "not valid JSON at byte " + std::to_string(fault->byte_offset) + ": " + fault->what, fault->field,
          fault->byte_offset};
}

// Where the field that an error names stands in the line.
std::optional<int64_t> find_error_offset(std::string_view bytes, const LineParse& parse, const RequestError& error) {
  if (!error.param) return std::nullopt;
  const std::string_view field = std::string_view(*error.param).substr(0, error.param->find_first_of("[."));
  return find_member(bytes, parse.error_in_body, field, parse.error_is_duplicate ? 2 : 1);
}

}  // namespace

struct RequestParser::State {
  GenerationParams defaults;
  RequestLimits limits;
  dom::parser parser;
  KnownExtras extras;
};

RequestParser::RequestParser(GenerationParams defaults, RequestLimits limits) : state_(std::make_unique<State>()) {
  state_->defaults = std::move(defaults);
  state_->limits = limits;
}

RequestParser::~RequestParser() = default;

std::variant<InputRequest, ParseFailure> RequestParser::parse(const InputLine& line) {
  constexpr size_t kLargeLine = 1 << 20;  // above this the parser's buffers are not kept
  ParseFailure failure;
  failure.line = line.line;
  if (line.too_long) {
    failure.error = {"line_too_long", "the line is longer than the limit on lines and was skipped", std::nullopt, std::nullopt};
    return failure;
  }
  JsonElement root;
  const simdjson::error_code code = state_->parser.parse(line.bytes).get(root);
  if (code != simdjson::SUCCESS) {
    failure.error = syntax_error(line.bytes, code);
    if (line.bytes.size() > kLargeLine) state_->parser = dom::parser();
    return failure;
  }
  LineParse parse(state_->defaults, state_->limits, state_->extras, root);
  MaybeError error = parse.run();
  if (line.bytes.size() > kLargeLine) state_->parser = dom::parser();
  if (!error) {
    parse.request.line = line.line;
    return std::move(parse.request);
  }
  failure.error = std::move(*error);
  if (!failure.error.byte_offset) failure.error.byte_offset = find_error_offset(line.bytes, parse, failure.error);
  failure.id_json = std::move(parse.request.id_json);
  failure.form = parse.request.form;
  failure.model_name = std::move(parse.request.model_name);
  failure.is_chat = parse.is_chat;
  return failure;
}

Completion to_completion(ParseFailure failure) {
  Completion completion;
  completion.line = std::move(failure.line);
  completion.form = failure.form;
  completion.id_json = std::move(failure.id_json);
  completion.model_name = std::move(failure.model_name);
  completion.is_chat = failure.is_chat;
  completion.finish_reason = FinishReason::kError;
  completion.error = std::move(failure.error);
  return completion;
}

}  // namespace llmb
