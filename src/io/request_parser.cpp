#include "io/request_parser.h"

#include <simdjson.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "io/chat_messages.h"
#include "io/field_set.h"
#include "io/field_values.h"
#include "io/json_scan.h"
#include "io/long_strings.h"
#include "io/request_fields.h"
#include "io/request_params.h"

namespace llmb {

namespace {

namespace dom = simdjson::dom;

constexpr size_t kLargeLine = 1 << 20;  // above this the parser's buffers are not kept

constexpr std::array kPromptFields = {Field::kPrompt, Field::kMessages, Field::kPromptTokenIds};

const RequestError kTwoPrompts = {"invalid_request", "give exactly one of prompt, messages and prompt_token_ids",
                                  std::nullopt, std::nullopt};

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
  const MaybeError id_error =
      is_batch ? read_id(fields, Field::kCustomId, Field::kId) : read_id(fields, Field::kId, Field::kCustomId);
  if (is_batch) request.form = ApiForm::kOpenAiChat;
  if (error) return error;
  if (id_error) return id_error;
  return is_batch ? read_batch_line(fields) : read_request(fields);
}

// Sorts an object's members; the first fault is returned when all have been seen. strict: an OpenAI body, where no
// member is the user's own.
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
  if (id->is_string() && !is_string(*id)) return invalid_value(field_name(field), "a string or a 64-bit number", *id);
  append_json(request.id_json, *id);
  return std::nullopt;
}

// A body with a url beside it; or, where there is no prompt, any part of a batch line. A native line may have such
// fields of its own.
bool LineParse::is_batch_line(const FieldSet& fields) const {
  const JsonElement* const url = fields.find(Field::kUrl);
  const JsonElement* const body = fields.find(Field::kBody);
  bool has_prompt = false;
  for (const Field field : kPromptFields) has_prompt = has_prompt || fields.has(field);
  if (!has_prompt) return body != nullptr || (url != nullptr && fields.has(Field::kMethod));
  return body != nullptr && body->is_object() && url != nullptr && is_string(*url) &&
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
  if (MaybeError error = read_outer_params(line, &request)) return error;
  error_in_body = true;
  FieldSet fields;
  const MaybeError error = collect(object_of(*body), /*strict=*/true, &fields);
  if (const JsonElement* const model = fields.find(Field::kModel); model != nullptr && is_string(*model))
    request.model_name = string_of(*model);
  if (error) return error;
  for (const Field field : {Field::kMethod, Field::kUrl, Field::kBody, Field::kId, Field::kCustomId})
    if (fields.has(field))
      return field_error("unknown_field", field_name(field),
                         "unknown field " + std::string(field_name(field)) + " in body");
  return read_request(fields);
}

MaybeError LineParse::read_url(const FieldSet& line) {
  const JsonElement* const url = line.find(Field::kUrl);
  if (url == nullptr) return field_error("missing_field", "url", "a batch line needs a url");
  if (!is_string(*url)) return invalid_value("url", "a string", *url);
  const std::string_view text = string_of(*url);
  if (text == "/v1/completions") request.form = ApiForm::kOpenAiCompletion;
  else if (text != "/v1/chat/completions")
    return field_error("unsupported_url", "url",
                       "url " + shown(*url) + " is not supported; use /v1/chat/completions or /v1/completions");
  const JsonElement* const method = line.find(Field::kMethod);
  if (method != nullptr && !(is_string(*method) && string_of(*method) == "POST"))
    return invalid_value("method", "\"POST\"", *method);
  return std::nullopt;
}

MaybeError LineParse::read_request(const FieldSet& fields) {
  if (MaybeError error = read_prompt(fields)) return error;
  return read_params(fields, limits_, &request);
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
                        request.form == ApiForm::kNative ? std::nullopt : std::optional<std::string>(wanted),
                        std::nullopt};
  if (messages != nullptr) return read_chat(fields, &request.prompt.emplace<ChatMessages>());
  if (MaybeError error = refuse_chat_fields(fields)) return error;
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
  if (!is_string(value) || is_neutral(value, Neutral::kEmpty))
    return invalid_value("prompt", "a non-empty string, or token ids", value);
  request.prompt = std::string(string_of(value));
  return std::nullopt;
}

// OpenAI's completions take several prompts in an array, and token ids in place of text.
MaybeError LineParse::read_prompt_array(JsonElement value) {
  const dom::array array = array_of(value);
  if (array.begin() == array.end()) return invalid_value("prompt", "a non-empty string, or token ids", value);
  const JsonElement first = *array.begin();
  if (is_string(first) || first.is_array()) {
    if (++array.begin() != array.end())
      return field_error("unsupported_field", "prompt",
                         "several prompts in one line are not supported; give each its own line");
    if (is_string(first)) return read_prompt_value(first);
    value = first;
  }
  std::vector<TokenId> tokens;
  if (MaybeError error = read_token_ids("prompt", value, limits_.vocab_size, &tokens)) return error;
  if (tokens.empty()) return invalid_value("prompt", "a non-empty string, or token ids", value);
  request.prompt = std::move(tokens);
  return std::nullopt;
}

RequestError syntax_error(std::string_view bytes, simdjson::error_code code) {
  const std::optional<JsonFault> fault = find_json_fault(bytes);
  if (!fault && code == simdjson::CAPACITY)
    return {"invalid_request", "the line has more values, names and punctuation than a line may", std::nullopt, 0};
  if (!fault) return {"invalid_json", simdjson::error_message(code), std::nullopt, std::nullopt};
  if (fault->is_number_range)
    return {"invalid_value", fault->field.value_or("the line") + ": " + fault->what, fault->field, fault->byte_offset};
  return {"invalid_json", "not valid JSON at byte " + std::to_string(fault->byte_offset) + ": " + fault->what,
          fault->field, fault->byte_offset};
}

// Where the field that an error names stands in the line.
std::optional<int64_t> find_error_offset(std::string_view bytes, const LineParse& parse, const RequestError& error) {
  if (!error.param) return std::nullopt;
  const std::string_view field = std::string_view(*error.param).substr(0, error.param->find_first_of("[."));
  return find_member(bytes, parse.error_in_body, field, parse.error_is_duplicate ? 2 : 1);
}

// Calls f(text, factor) for each text of the messages. Templates put it into the prompt but for white space at its ends;
// of what an assistant or a tool said they may leave a part out, never more than what makes it shorter by the factor.
template <typename F>
void for_each_message_text(JsonElement request, const F& f) {
  dom::array messages, parts;
  if (request["messages"].get(messages) != simdjson::SUCCESS) return;
  for (const JsonElement message : messages) {
    std::string_view role, text;
    JsonElement content;
    if (message["role"].get(role) != simdjson::SUCCESS || message["content"].get(content) != simdjson::SUCCESS) continue;
    const size_t factor = role == "user" || role == "system" || role == "developer" ? 1 : 8;
    if (content.get(text) == simdjson::SUCCESS) f(text, factor);
    if (content.get(parts) != simdjson::SUCCESS) continue;
    for (const JsonElement part : parts)
      if (part["text"].get(text) == simdjson::SUCCESS) f(text, factor);
  }
}

// The error of a prompt that holds a long string, where that alone cannot fit, also when it is `factor` times shorter.
MaybeError refuse_text(std::string_view json_string, const PromptBound& bound, bool is_chat, size_t factor) {
  size_t num_tokens = 0, num_bytes = 0;
  for_each_piece(json_string, /*without_spaces=*/is_chat, [&](std::string_view piece) {
    // A token may belong to two pieces.
    num_tokens += std::max<size_t>(bound.num_tokens_at_least(piece), 1) - 1;
    num_bytes += piece.size();
  });
  num_tokens /= factor;
  num_bytes /= factor;
  if (bound.fits(num_tokens, num_bytes)) return std::nullopt;
  return text_too_long(bound, num_tokens, num_bytes, is_chat ? "messages" : "prompt");
}

ParseFailure failure_of(const InputLine& line, LineParse parse, RequestError error) {
  ParseFailure failure;
  failure.line = line.line;
  failure.error = std::move(error);
  if (!failure.error.byte_offset) failure.error.byte_offset = find_error_offset(line.bytes, parse, failure.error);
  failure.id_json = std::move(parse.request.id_json);
  failure.form = parse.request.form;
  failure.model_name = std::move(parse.request.model_name);
  failure.is_chat = parse.is_chat;
  return failure;
}

}  // namespace

struct RequestParser::State {
  std::optional<ParseFailure> refuse_long_prompt(const InputLine& line);

  GenerationParams defaults;
  RequestLimits limits;
  dom::parser parser;
  KnownExtras extras;
};

// For a large line. nullopt: it may be answered, or something else is wrong with it.
std::optional<ParseFailure> RequestParser::State::refuse_long_prompt(const InputLine& line) {
  const auto shortened = ShortenedLine::make(line.bytes, line.line.content_hash, kLargeLine);
  if (!shortened) return std::nullopt;
  JsonElement root;
  const simdjson::error_code code = parser.parse(shortened->text()).get(root);
  throw_if_out_of_memory(code);
  if (code != simdjson::SUCCESS) return std::nullopt;
  LineParse parse(defaults, limits, extras, root);
  if (parse.run() || parse.request.params.prompt.truncate) return std::nullopt;
  MaybeError error;
  const auto check = [&](std::string_view text, size_t factor) {
    if (const auto string = shortened->string_for(text); string && !error)
      error = refuse_text(*string, limits.prompt, parse.is_chat, factor);
  };
  if (const auto* text = std::get_if<std::string>(&parse.request.prompt)) check(*text, 1);
  if (parse.is_chat)
    for_each_message_text(parse.request.form == ApiForm::kNative ? root : root["body"].value_unsafe(), check);
  if (!error) return std::nullopt;
  return failure_of(line, std::move(parse), std::move(*error));
}

RequestParser::RequestParser(GenerationParams defaults, RequestLimits limits) : state_(std::make_unique<State>()) {
  state_->defaults = std::move(defaults);
  state_->limits = limits;
}

RequestParser::~RequestParser() = default;

std::variant<InputRequest, ParseFailure> RequestParser::parse(const InputLine& line) {
  ParseFailure failure;
  failure.line = line.line;
  if (line.too_long) {
    failure.error = {"line_too_long", "the line is longer than the limit on lines and was skipped", std::nullopt,
                     std::nullopt};
    return failure;
  }
  const bool is_large = line.bytes.size() > kLargeLine;
  if (is_large)
    if (auto refused = state_->refuse_long_prompt(line)) return std::move(*refused);
  const bool is_too_rich = is_large && count_json_parts(line.bytes) > state_->limits.max_json_parts;
  JsonElement root;
  simdjson::error_code code = is_too_rich ? simdjson::CAPACITY : state_->parser.parse(line.bytes).get(root);
  if (code == simdjson::NUMBER_ERROR)
    if (const auto marked = mark_large_integers(line.bytes)) code = state_->parser.parse(*marked).get(root);
  throw_if_out_of_memory(code);
  if (code != simdjson::SUCCESS) {
    failure.error = syntax_error(line.bytes, code);
    if (!line.has_newline && failure.error.code == "invalid_json") {
      failure.error.code = kIncompleteLine;
      failure.error.message +=
          "; the input ends here without a newline: is it still being written, or was it cut short?";
    }
    if (is_large) state_->parser = dom::parser();
    return failure;
  }
  LineParse parse(state_->defaults, state_->limits, state_->extras, root);
  MaybeError error = parse.run();
  if (is_large) state_->parser = dom::parser();
  if (!error) {
    parse.request.line = line.line;
    return std::move(parse.request);
  }
  return failure_of(line, std::move(parse), std::move(*error));
}

Completion to_completion(ParseFailure failure) {
  Completion completion;
  completion.line = std::move(failure.line);
  completion.form = failure.form;
  completion.id_json = std::move(failure.id_json);
  completion.model_name = std::move(failure.model_name);
  completion.is_chat = failure.is_chat;
  completion.error = std::move(failure.error);
  return completion;
}

}  // namespace llmb
