#include "io/line_parse.h"

#include <array>
#include <memory>
#include <utility>
#include <vector>

#include "io/chat_messages.h"
#include "io/data_line_parse.h"
#include "io/request_fields.h"
#include "io/request_params.h"
#include "io/responses_body.h"

namespace llmb {

namespace dom = simdjson::dom;

namespace {

constexpr std::array kPromptFields = {Field::kPrompt, Field::kMessages, Field::kPromptTokenIds};

const RequestError kTwoPrompts = {"invalid_request", "give exactly one of prompt, messages and prompt_token_ids",
                                  std::nullopt, std::nullopt};

// Names of chat lines' fields, made those of /v1/responses.
std::string with_responses_names(std::string text) {
  constexpr std::pair<std::string_view, std::string_view> kNames[] = {{"response_format.json_schema", "text.format"},
                                                                      {"response_format", "text.format"},
                                                                      {"reasoning_effort", "reasoning.effort"}};
  for (const auto& [chat, responses] : kNames)
    for (size_t at = text.find(chat); at != text.npos; at = text.find(chat, at + responses.size()))
      text.replace(at, chat.size(), responses);
  return text;
}

}  // namespace

MaybeError LineParse::run() {
  dom::object object;
  if (root_.get(object) != simdjson::SUCCESS) return not_an_object(root_);
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
  if (!strict && request.params.task == Task::kClassify && is_of_pair(name)) return std::nullopt;
  if (spec != nullptr) {
    if (is_neutral(value, spec->neutral)) return std::nullopt;
    std::string message = spec->neutral == Neutral::kNull
                              ? std::string(name) + " is not supported"
                              : std::string(name) + " is supported only as " + std::string(neutral_text(spec->neutral));
    return field_error("unsupported_field", name,
                       message + "; got " + shown(value) + (strict ? std::string() : task_of_texts()));
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
  is_chat = request.form == ApiForm::kOpenAiChat || request.form == ApiForm::kOpenAiResponses;
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
  if (request.form == ApiForm::kOpenAiResponses) return read_responses(object_of(*body));
  if (request.params.task == Task::kEmbed || request.params.task == Task::kClassify)
    return read_texts_body(object_of(*body));
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

// As the chat line that asks for the same; messages name the fields of the line.
MaybeError LineParse::read_responses(dom::object body) {
  JsonElement model, chat;
  if (body["model"].get(model) == simdjson::SUCCESS && is_string(model)) request.model_name = string_of(model);
  request.settings_json = repeated_settings(body);
  std::string chat_json;
  if (MaybeError error = chat_body_of_responses(body, &chat_json)) return error;
  dom::parser parser;
  simdjson::error_code code = parser.parse(chat_json).get(chat);
  if (code == simdjson::NUMBER_ERROR)
    if (const auto marked = mark_large_integers(chat_json)) code = parser.parse(*marked).get(chat);
  throw_if_out_of_memory(code);
  if (code != simdjson::SUCCESS) return RequestError{"invalid_json", "the body cannot be read", "body", std::nullopt};
  FieldSet fields;
  MaybeError error = collect(object_of(chat), /*strict=*/true, &fields);
  if (!error) error = read_request(fields);
  if (error) error->message = with_responses_names(std::move(error->message));
  if (error && error->param) error->param = with_responses_names(std::move(*error->param));
  if (request.params.form != nullptr && request.params.form->field.starts_with("response_format")) {
    auto form = std::make_shared<AnswerForm>(*request.params.form);
    form->field = with_responses_names(std::move(form->field));
    request.params.form = std::move(form);
  }
  return error;
}

MaybeError LineParse::find_form(JsonElement url) {
  struct Url {
    std::string_view name;
    ApiForm form;
    Task task;  // kGenerate: of runs that embed or classify not
  };
  constexpr Url kUrls[] = {{"/v1/chat/completions", ApiForm::kOpenAiChat, Task::kGenerate},
                           {"/v1/completions", ApiForm::kOpenAiCompletion, Task::kGenerate},
                           {"/v1/responses", ApiForm::kOpenAiResponses, Task::kGenerate},
                           {"/v1/embeddings", ApiForm::kOpenAiEmbedding, Task::kEmbed},
                           {"/v1/classify", ApiForm::kClassify, Task::kClassify},
                           {"/v1/score", ApiForm::kScore, Task::kClassify},
                           {"/v1/rerank", ApiForm::kRerank, Task::kClassify}};
  const Task own = request.params.task == Task::kScore ? Task::kGenerate : request.params.task;
  std::string names;
  for (const Url& known : kUrls) {
    const bool is_own = known.task == own;
    if (is_own) names += (names.empty() ? "" : ", ") + std::string(known.name);
    // As `vllm run-batch` has it: /score and /rerank, behind any version or none.
    const bool has_versions = known.form == ApiForm::kScore || known.form == ApiForm::kRerank;
    if (known.name != string_of(url) && !(has_versions && string_of(url).ends_with(known.name.substr(3)))) continue;
    request.form = known.form;
    if (is_own) return std::nullopt;
    if (own == Task::kGenerate)
      return field_error(
          "unsupported_url", "url",
          std::string(known.name) + (known.task == Task::kEmbed ? " needs a run that embeds: --task embed"
                                                                : " needs a run that classifies: --task classify"));
  }
  return field_error("unsupported_url", "url",
                     "url " + shown(url) + " is not supported" +
                         (own == Task::kEmbed      ? " in a run that embeds (--task embed)"
                          : own == Task::kClassify ? " in a run that classifies (--task classify)"
                                                   : "") +
                         "; use " + names);
}

MaybeError LineParse::read_url(const FieldSet& line) {
  const JsonElement* const url = line.find(Field::kUrl);
  if (url == nullptr) return field_error("missing_field", "url", "a batch line needs a url");
  if (!is_string(*url)) return invalid_value("url", "a string", *url);
  if (MaybeError error = find_form(*url)) return error;
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
  bool is_read = false;
  const bool takes_input = request.params.task == Task::kEmbed || request.params.task == Task::kClassify;
  if (takes_input)
    if (MaybeError error = read_native_texts(fields, &is_read); error || is_read) return error;
  for (const Field field : kPromptFields) num_prompts += fields.has(field);
  const JsonElement* const messages = fields.find(Field::kMessages);
  is_chat = is_chat || messages != nullptr;
  if (num_prompts > 1) return kTwoPrompts;
  const std::string_view native =
      takes_input ? "input, prompt, messages or prompt_token_ids" : "prompt, messages or prompt_token_ids";
  const std::string_view wanted = request.form == ApiForm::kNative       ? native
                                  : request.form == ApiForm::kOpenAiChat ? "messages"
                                                                         : "prompt";
  const bool wrong_kind = request.form == ApiForm::kOpenAiChat         ? messages == nullptr
                          : request.form == ApiForm::kOpenAiCompletion ? messages != nullptr
                                                                       : false;
  if (num_prompts == 0 || wrong_kind)
    return RequestError{"missing_field",
                        "the line needs " + std::string(wanted) +
                            (request.form == ApiForm::kNative ? names_of_fields(root_) + task_of_texts() : std::string()),
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

}  // namespace llmb
