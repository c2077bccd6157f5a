// Lines of runs that embed or classify: inputs, pairs of texts, and documents for a query.
#include <algorithm>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/line_parse.h"
#include "io/request_fields.h"
#include "io/request_params.h"

namespace llmb {

namespace dom = simdjson::dom;

namespace {

constexpr size_t kMaxInputs = 2048;  // as OpenAI

constexpr std::string_view kEmbedFields[] = {"dimensions", "encoding_format", "prompt_name"};
constexpr std::string_view kPairFields[] = {"text_1", "text_2",           "query",       "documents",
                                            "top_n",  "return_documents", "prompt_name", "instruction"};

constexpr std::string_view kCutFields[] = {"truncate_prompt_tokens", "truncation_side"};

// Names of the first and of the second texts of pairs in vLLM's requests for /v1/score.
constexpr std::string_view kFirstTexts[] = {"text_1", "queries", "data_1"};
constexpr std::string_view kSecondTexts[] = {"text_2", "documents", "items", "data_2"};
constexpr std::span<const std::string_view> kTextsOfPairs[] = {kFirstTexts, kSecondTexts};

template <size_t kSize>
bool is_one_of(std::string_view name, const std::string_view (&names)[kSize]) {
  for (const std::string_view known : names)
    if (name == known) return true;
  return false;
}

// Strings, or objects with a string "text".
MaybeError read_texts(std::string_view field, JsonElement value, std::vector<std::string>* out) {
  const dom::array array = array_of(value);
  if (array.begin() == array.end()) return invalid_value(field, "a text, or a non-empty array of texts", value);
  for (JsonElement entry : array) {
    if (out->size() == kMaxInputs)
      return field_error("invalid_value", field,
                         std::string(field) + " may hold at most " + std::to_string(kMaxInputs) + " texts");
    JsonElement text;
    if (entry.is_object() && entry["text"].get(text) == simdjson::SUCCESS) entry = text;
    if (!is_string(entry) || is_neutral(entry, Neutral::kEmpty))
      return invalid_value(std::string(field) + "[" + std::to_string(out->size()) + "]", "a non-empty string", entry);
    out->emplace_back(string_of(entry));
  }
  return std::nullopt;
}

// The same, or one text.
MaybeError read_text_or_texts(std::string_view field, JsonElement value, bool* is_list, std::vector<std::string>* out) {
  *is_list = value.is_array();
  if (*is_list) return read_texts(field, value, out);
  if (!is_string(value) || is_neutral(value, Neutral::kEmpty))
    return invalid_value(field, "a non-empty string, or an array of such", value);
  out->emplace_back(string_of(value));
  return std::nullopt;
}

bool is_of_scored_pair(std::string_view name) { return is_one_of(name, kFirstTexts) || is_one_of(name, kSecondTexts); }

// The one of `names` that a line has; a line that has several, or none, is an error.
MaybeError find_texts(dom::object object, std::span<const std::string_view> names, std::string_view* found) {
  for (const std::string_view name : names) {
    JsonElement value;
    if (object[name].get(value) != simdjson::SUCCESS || value.is_null()) continue;
    if (!found->empty())
      return field_error("invalid_value", name, std::string(name) + " is given beside " + std::string(*found));
    *found = name;
  }
  if (!found->empty()) return std::nullopt;
  return field_error("missing_field", names[0], "the line needs " + std::string(names[0]));
}

}  // namespace

// A body for /v1/embeddings, /v1/classify, /v1/score or /v1/rerank.
MaybeError LineParse::read_texts_body(dom::object body) {
  const bool has_pairs = request.form == ApiForm::kScore || request.form == ApiForm::kRerank;
  std::optional<JsonElement> input;
  FieldSet truncation;
  if (MaybeError error = refuse_repeated_texts(body)) return error;
  for (const auto& [name, value] : body) {
    const FieldSpec* const spec = find_field(name);
    if (value.is_null() || (spec != nullptr && spec->kind == FieldKind::kHarmless)) continue;
    if (name == "model") {
      if (MaybeError error = read_string("model", value, &request.model_name)) return error;
    } else if (is_one_of(name, kCutFields)) {
      truncation.add(spec->field, value);
    } else if (name == "input" && !has_pairs) {
      input = value;
    } else if (request.form == ApiForm::kOpenAiEmbedding && is_one_of(name, kEmbedFields)) {
      if (MaybeError error = read_embed_field(name, value)) return error;
    } else if (!is_one_of(name, kPairFields) || !has_pairs) {
      if (request.form == ApiForm::kScore && is_of_scored_pair(name)) continue;
      return field_error("unknown_field", name.substr(0, 100), "unknown field " + std::string(name.substr(0, 100)));
    }
  }
  if (MaybeError error = read_truncation(truncation, &request)) return error;
  if (has_pairs) return request.form == ApiForm::kScore ? read_pairs(body) : read_documents(body);
  if (MaybeError error = refuse_lone_texts()) return error;
  if (!input) return field_error("missing_field", "input", "the body needs an input");
  return read_input(*input);
}

// A field that says what is asked for is given once.
MaybeError LineParse::refuse_repeated_texts(dom::object object) {
  std::vector<std::string_view> seen;
  for (const auto& [name, value] : object) {
    const bool is_text = name == "input" || is_one_of(name, kPairFields) || is_of_scored_pair(name);
    const bool is_setting = name == "model" || is_one_of(name, kEmbedFields) || is_one_of(name, kCutFields);
    if (!is_text && !is_setting) continue;
    if (std::find(seen.begin(), seen.end(), name) == seen.end()) {
      seen.push_back(name);
      continue;
    }
    error_is_duplicate = true;
    return field_error("duplicate_field", name, std::string(name) + " is given twice");
  }
  return std::nullopt;
}

// Reads the texts that a native line has in the place of a prompt. is_read: there are such.
MaybeError LineParse::read_native_texts(const FieldSet& fields, bool* is_read) {
  const bool embeds = request.params.task == Task::kEmbed;
  const auto has = [&](std::string_view name) {
    JsonElement value;
    return root_[name].get(value) == simdjson::SUCCESS && !value.is_null();
  };
  for (const std::string_view name : kEmbedFields)
    if (embeds && has(name))
      if (MaybeError error = read_embed_field(name, root_[name].value_unsafe())) return error;
  if (fields.has(Field::kPrompt) || fields.has(Field::kMessages) || fields.has(Field::kPromptTokenIds))
    return refuse_lone_texts();
  if (MaybeError error = refuse_repeated_texts(object_of(root_))) return error;
  *is_read = true;
  if (!embeds && has("text_1") && has("text_2")) return read_pairs(object_of(root_));
  if (!embeds && has("query") && has("documents")) return read_documents(object_of(root_));
  if (!embeds)
    if (MaybeError error = refuse_lone_texts()) return error;
  if (has("input")) return read_input(root_["input"].value_unsafe());
  *is_read = false;
  return std::nullopt;
}

// A model that judges by a word has scores of pairs only.
MaybeError LineParse::refuse_lone_texts() const {
  if (!limits_.takes_instructions || request.params.task != Task::kClassify) return std::nullopt;
  return RequestError{"unsupported_field",
                      "this model judges pairs of texts; give text_1 and text_2, or a query and documents",
                      std::nullopt, std::nullopt};
}

MaybeError LineParse::read_prompt_name(JsonElement value) {
  const bool is_text = is_string(value);
  const auto found = is_text ? limits_.named_prompts.find(std::string(string_of(value))) : limits_.named_prompts.end();
  if (found != limits_.named_prompts.end()) {
    if (request.params.task == Task::kClassify) request.params.classify.instruction = found->second;
    else text_prompt = found->second;
    return std::nullopt;
  }
  std::string names;
  for (const auto& [name, text] : limits_.named_prompts) names += (names.empty() ? "" : ", ") + name;
  if (names.empty())
    return field_error("unsupported_field", "prompt_name", "prompt_name: the model's files name no prompts");
  return invalid_value("prompt_name", "one of " + names.substr(0, 400), value);
}

// By what a pair is judged: the line's own text, a prompt of the model's files, the default one, or the template's.
MaybeError LineParse::read_instruction(dom::object object) {
  request.params.classify.instruction = limits_.takes_instructions ? limits_.text_prompt : "";
  JsonElement value;
  for (const std::string_view name : {"prompt_name", "instruction"}) {
    if (object[name].get(value) != simdjson::SUCCESS || value.is_null()) continue;
    if (!limits_.takes_instructions)
      return field_error("unsupported_field", name, std::string(name) + ": the model does not judge by instructions");
    if (name == "prompt_name") {
      if (MaybeError error = read_prompt_name(value)) return error;
    } else if (!is_string(value) || is_neutral(value, Neutral::kEmpty)) {
      return invalid_value(name, "a non-empty string", value);
    } else {
      request.params.classify.instruction = string_of(value);
    }
  }
  return std::nullopt;
}

MaybeError LineParse::check_pairs() const {
  if (limits_.num_labels == 1) return std::nullopt;
  return RequestError{"unsupported_field",
                      "pairs are scored by a model with one label; this one has " + std::to_string(limits_.num_labels),
                      std::nullopt, std::nullopt};
}

// One text with one or with each of several, or as many with as many.
MaybeError LineParse::read_pairs(dom::object object) {
  if (MaybeError error = check_pairs()) return error;
  if (MaybeError error = read_instruction(object)) return error;
  std::vector<std::string> texts[2];
  bool are_lists[2] = {};
  for (const int i : {0, 1}) {
    std::string_view name;
    if (MaybeError error = find_texts(object, kTextsOfPairs[i], &name)) return error;
    if (MaybeError error = read_text_or_texts(name, object[name].value_unsafe(), &are_lists[i], &texts[i])) return error;
  }
  if (texts[0].size() != 1 && texts[0].size() != texts[1].size())
    return field_error("invalid_value", "text_2",
                       "text_1 has " + std::to_string(texts[0].size()) + " texts and text_2 " +
                           std::to_string(texts[1].size()) + "; give one text_1, or as many of both");
  request.first_texts = std::move(texts[0]);
  request.params.classify.pairs = TextPairs::kScore;
  take_prompts({std::make_move_iterator(texts[1].begin()), std::make_move_iterator(texts[1].end())});
  request.params.embed.is_list = are_lists[0] || are_lists[1];
  return std::nullopt;
}

bool LineParse::is_of_pair(std::string_view name) { return is_one_of(name, kPairFields); }

std::string LineParse::task_of_texts() const {
  if (!root_.is_object() || request.params.task == Task::kEmbed || request.params.task == Task::kClassify) return {};
  const auto has = [&](std::string_view name) {
    JsonElement value;
    return root_[name].get(value) == simdjson::SUCCESS;
  };
  for (const std::string_view name : {"prompt", "messages", "prompt_token_ids"})
    if (has(name)) return {};
  if (has("query") && has("documents")) return "; --task classify ranks the documents for a query";
  if (has("text_1") && has("text_2")) return "; --task classify scores pairs of texts";
  if (has("input")) return "; --task embed takes an input, so does --task classify";
  return {};
}

MaybeError LineParse::read_documents(dom::object object) {
  if (MaybeError error = check_pairs()) return error;
  if (MaybeError error = read_instruction(object)) return error;
  ClassifyParams& classify = request.params.classify;
  classify.returns_documents = request.form == ApiForm::kRerank;
  std::string query;
  std::vector<std::string> documents;
  JsonElement value;
  for (const std::string_view name : {"query", "documents"})
    if (object[name].get(value) != simdjson::SUCCESS || value.is_null())
      return field_error("missing_field", name, "the line needs " + std::string(name));
  value = object["query"].value_unsafe();
  if (!is_string(value) || is_neutral(value, Neutral::kEmpty)) return invalid_value("query", "a non-empty string", value);
  query = string_of(value);
  bool is_list = false;
  value = object["documents"].value_unsafe();
  if (MaybeError error = read_text_or_texts("documents", value, &is_list, &documents)) return error;
  if (object["top_n"].get(value) == simdjson::SUCCESS && !value.is_null()) {
    int32_t top_n = 0;  // 0 is all, as in vLLM
    if (MaybeError error = read_int32("top_n", value, 0, INT32_MAX, &top_n)) return error;
    if (top_n > 0) classify.top_n = top_n;
  }
  if (object["return_documents"].get(value) == simdjson::SUCCESS && !value.is_null())
    if (MaybeError error = read_bool("return_documents", value, &classify.returns_documents)) return error;
  request.first_texts = {std::move(query)};
  classify.pairs = TextPairs::kRerank;
  request.params.output.echo = classify.returns_documents;
  take_prompts({std::make_move_iterator(documents.begin()), std::make_move_iterator(documents.end())});
  return std::nullopt;
}

// At least one.
void LineParse::take_prompts(std::vector<PromptInput> prompts) {
  request.prompt = std::move(prompts.front());
  request.more_prompts.assign(std::make_move_iterator(prompts.begin() + 1), std::make_move_iterator(prompts.end()));
  request.params.embed.is_list = true;
}

MaybeError LineParse::read_embed_field(std::string_view name, JsonElement value) {
  EmbedParams& embed = request.params.embed;
  if (name == "prompt_name") return read_prompt_name(value);
  if (name == "dimensions") {
    int32_t dimensions = 0;
    if (MaybeError error = read_int32("dimensions", value, 1, limits_.max_dimensions, &dimensions)) return error;
    if (limits_.only_dimensions && dimensions != *limits_.only_dimensions)
      return field_error("invalid_value", name,
                         "dimensions is " + std::to_string(dimensions) + ", and all rows of this output have " +
                             std::to_string(*limits_.only_dimensions));
    embed.dimensions = dimensions;
    return std::nullopt;
  }
  const std::string_view format = is_string(value) ? string_of(value) : "";
  if (format != "float" && format != "base64") return invalid_value(name, "\"float\" or \"base64\"", value);
  embed.is_base64 = format == "base64";
  return std::nullopt;
}

// Texts, or arrays of token ids.
MaybeError LineParse::read_inputs(dom::array inputs) {
  std::vector<PromptInput> prompts;
  for (const JsonElement entry : inputs) {
    const std::string name = "input[" + std::to_string(prompts.size()) + "]";
    if (prompts.size() == kMaxInputs)
      return field_error("invalid_value", "input", "input may hold at most " + std::to_string(kMaxInputs) + " inputs");
    if (entry.is_array()) {
      std::vector<TokenId> tokens;
      if (MaybeError error = read_token_ids(name, entry, limits_.vocab_size, &tokens)) return error;
      if (tokens.empty()) return invalid_value(name, "a non-empty array of token ids", entry);
      prompts.emplace_back(std::move(tokens));
    } else if (is_string(entry) && !is_neutral(entry, Neutral::kEmpty)) {
      prompts.emplace_back(std::string(string_of(entry)));
    } else {
      return invalid_value(name, "a non-empty string, or token ids", entry);
    }
  }
  take_prompts(std::move(prompts));
  return std::nullopt;
}

// A text or token ids, or an array of such.
MaybeError LineParse::read_input(JsonElement value) {
  if (value.is_array()) {
    const dom::array array = array_of(value);
    if (array.begin() != array.end() && (is_string(*array.begin()) || (*array.begin()).is_array()))
      return read_inputs(array);
  }
  MaybeError error = read_prompt_value(value);
  if (!error) return error;
  for (size_t at = error->message.find("prompt"); at != std::string::npos; at = error->message.find("prompt", at + 5))
    error->message.replace(at, 6, "input");
  error->param = "input";
  return error;
}

}  // namespace llmb
