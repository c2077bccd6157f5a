#include "io/request_parser.h"

#include <simdjson.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "io/data_line_parse.h"
#include "io/field_values.h"
#include "io/json_scan.h"
#include "io/line_parse.h"
#include "io/long_strings.h"

namespace llmb {

namespace {

namespace dom = simdjson::dom;

constexpr size_t kLargeLine = 1 << 20;  // above this the parser's buffers are not kept

RequestError syntax_error(std::string_view bytes, simdjson::error_code code) {
  const std::optional<JsonFault> fault = find_json_fault(bytes);
  if (!fault && code == simdjson::CAPACITY)
    return {"invalid_request", "the line has more values, names and punctuation than a line may", std::nullopt, 0};
  if (!fault) return {"invalid_json", simdjson::error_message(code), std::nullopt, std::nullopt};
  if (fault->is_number_range)
    return {"invalid_value", fault->field.value_or("the line") + ": " + fault->what, fault->field, fault->byte_offset};
  std::string message = "not valid JSON at byte " + std::to_string(fault->byte_offset) + ": " + fault->what;
  if (bytes.starts_with('[')) message += kArrayHint;
  return {"invalid_json", std::move(message), fault->field, fault->byte_offset};
}

// The last line of an input that ends without a newline may be the first part of a line.
void mark_incomplete(const InputLine& line, RequestError* error) {
  if (line.has_newline) return;
  error->code = kIncompleteLine;
  error->message += "; the input ends here without a newline: is it still being written, or was it cut short?";
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
  failure.input_json = std::move(parse.request.input_json);
  failure.form = parse.request.form;
  failure.model_name = std::move(parse.request.model_name);
  failure.is_chat = parse.is_chat;
  return failure;
}

void choose_adapter(const AdapterRules& rules, InputRequest* request) {
  if (!rules.are_there || request->adapter) return;
  const auto& names = rules.model_names;
  if (request->form == ApiForm::kNative || request->model_name.empty()) request->adapter = rules.default_name;
  else if (std::find(names.begin(), names.end(), request->model_name) == names.end())
    request->adapter = request->model_name;
}

void add_text_prompt(const std::string& prompt, InputRequest* request) {
  if (prompt.empty() || request->params.task != Task::kEmbed) return;
  const auto add = [&](PromptInput& input) {
    if (auto* text = std::get_if<std::string>(&input)) text->insert(0, prompt);
  };
  add(request->prompt);
  for (PromptInput& more : request->more_prompts) add(more);
}

}  // namespace

struct RequestParser::State {
  std::variant<InputRequest, ParseFailure> parse_json(const InputLine& line, const std::string& json);
  std::variant<InputRequest, ParseFailure> parse_data(const InputLine& line, JsonElement fields,
                                                      const std::string& json);
  std::optional<ParseFailure> refuse_long_prompt(const InputLine& line);
  std::string keep_fields(JsonElement fields);

  GenerationParams defaults;
  RequestLimits limits;
  DataMapping mapping;
  dom::parser parser;
  KnownExtras extras;
  std::vector<std::string> never_kept;  // of mapping.kept_fields, those that no line had
  bool has_kept_from_line = false;
};

// For a large line. nullopt: it may be answered, or something else is wrong with it.
std::optional<ParseFailure> RequestParser::State::refuse_long_prompt(const InputLine& line) {
  const auto shortened = ShortenedLine::make(line.bytes, line.line.content_hash, kLargeLine);
  if (!shortened) return std::nullopt;
  JsonElement root;
  const simdjson::error_code code = parser.parse(shortened->text()).get(root);
  throw_if_out_of_memory(code);
  if (code != simdjson::SUCCESS) return std::nullopt;
  if (mapping.maps_json_lines()) return std::nullopt;
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

RequestParser::RequestParser(GenerationParams defaults, RequestLimits limits, DataMapping mapping)
    : state_(std::make_unique<State>()) {
  state_->defaults = std::move(defaults);
  state_->limits = std::move(limits);
  state_->mapping = std::move(mapping);
  state_->never_kept = state_->mapping.kept_fields;
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
  if (line.format == InputFormat::kJsonLines) {
    auto parsed = state_->parse_json(line, line.bytes);
    if (line.bytes.size() > kLargeLine) state_->parser = dom::parser();
    return parsed;
  }
  const Result<std::string> fields = fields_of_line(line);
  if (fields.ok()) return state_->parse_json(line, *fields);
  failure.error = {"invalid_row", fields.status().message(), std::nullopt, std::nullopt};
  mark_incomplete(line, &failure.error);
  return failure;
}

std::variant<InputRequest, ParseFailure> RequestParser::State::parse_json(const InputLine& line,
                                                                          const std::string& json) {
  const bool is_large = json.size() > kLargeLine;
  if (is_large)
    if (auto refused = refuse_long_prompt(line)) return std::move(*refused);
  const bool is_too_rich = is_large && count_json_parts(json) > limits.max_json_parts;
  JsonElement root;
  simdjson::error_code code = is_too_rich ? simdjson::CAPACITY : parser.parse(json).get(root);
  if (code == simdjson::NUMBER_ERROR)
    if (const auto marked = mark_large_integers(json)) code = parser.parse(*marked).get(root);
  throw_if_out_of_memory(code);
  if (code != simdjson::SUCCESS) {
    ParseFailure failure;
    failure.line = line.line;
    failure.error = syntax_error(json, code);
    if (failure.error.code == "invalid_json") mark_incomplete(line, &failure.error);
    return failure;
  }
  if (line.format != InputFormat::kJsonLines || mapping.maps_json_lines()) return parse_data(line, root, json);
  LineParse parse(defaults, limits, extras, root);
  MaybeError error = parse.run();
  if (parse.request.form == ApiForm::kNative) parse.request.input_json = keep_fields(root);
  if (error) return failure_of(line, std::move(parse), std::move(*error));
  choose_adapter(limits.adapters, &parse.request);
  add_text_prompt(parse.text_prompt.value_or(limits.text_prompt), &parse.request);
  parse.request.line = line.line;
  return std::move(parse.request);
}

std::variant<InputRequest, ParseFailure> RequestParser::State::parse_data(const InputLine& line, JsonElement fields,
                                                                          const std::string& json) {
  InputRequest request;
  request.line = line.line;
  request.params = defaults;
  request.input_json = keep_fields(fields);
  MaybeError error = read_data_line(fields, json, line.format, mapping, &request);
  choose_adapter(limits.adapters, &request);
  add_text_prompt(limits.text_prompt, &request);
  if (!error) return request;
  ParseFailure failure;
  failure.line = line.line;
  failure.error = std::move(*error);
  failure.id_json = std::move(request.id_json);
  failure.input_json = std::move(request.input_json);
  failure.is_chat = mapping.system.has_value();
  return failure;
}

std::string RequestParser::State::keep_fields(JsonElement fields) {
  if (fields.is_object()) {
    has_kept_from_line = true;
    std::erase_if(never_kept, [&](const std::string& name) { return fields[name].error() == simdjson::SUCCESS; });
  }
  return kept_fields(fields, mapping);
}

std::vector<std::string> RequestParser::fields_never_kept() const {
  return state_->has_kept_from_line ? state_->never_kept : std::vector<std::string>();
}

Completion to_completion(ParseFailure failure) {
  Completion completion;
  completion.line = std::move(failure.line);
  completion.form = failure.form;
  completion.id_json = std::move(failure.id_json);
  completion.input_json = std::move(failure.input_json);
  completion.model_name = std::move(failure.model_name);
  completion.is_chat = failure.is_chat;
  completion.error = std::move(failure.error);
  return completion;
}

}  // namespace llmb
