// One line of JSON on its way to a request. Private to the parser of requests.
#pragma once

#include <string>
#include <string_view>
#include <unordered_set>

#include "core/request.h"
#include "io/field_set.h"
#include "io/field_values.h"
#include "io/request_parser.h"

namespace llmb {

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
  std::optional<std::string> text_prompt;  // that the line names, of a run that embeds
  bool is_chat = false;
  bool error_in_body = false;  // where the field of the error stands
  bool error_is_duplicate = false;

 private:
  MaybeError collect(simdjson::dom::object object, bool strict, FieldSet* fields);
  MaybeError check_other_field(std::string_view name, const FieldSpec* spec, JsonElement value, bool strict,
                               int* num_checked);
  MaybeError read_id(const FieldSet& fields, Field first, Field second);
  bool is_batch_line(const FieldSet& fields) const;
  MaybeError read_batch_line(const FieldSet& line);
  MaybeError read_url(const FieldSet& line);
  MaybeError find_form(JsonElement url);
  // line_texts.cpp
  MaybeError read_texts_body(simdjson::dom::object body);
  MaybeError read_native_texts(const FieldSet& fields, bool* is_read);
  MaybeError refuse_repeated_texts(simdjson::dom::object object);
  MaybeError check_pairs() const;
  MaybeError refuse_lone_texts() const;
  MaybeError read_prompt_name(JsonElement value);
  MaybeError read_instruction(simdjson::dom::object object);
  MaybeError read_pairs(simdjson::dom::object object);
  MaybeError read_documents(simdjson::dom::object object);
  static bool is_of_pair(std::string_view name);  // a native field of pairs or documents
  std::string task_of_texts() const;  // for messages: "; --task …" where the line has texts that another task reads
  void take_prompts(std::vector<PromptInput> prompts);
  MaybeError read_embed_field(std::string_view name, JsonElement value);
  MaybeError read_input(JsonElement value);
  MaybeError read_inputs(simdjson::dom::array inputs);
  // line_parse.cpp
  MaybeError read_responses(simdjson::dom::object body);
  MaybeError read_request(const FieldSet& fields);
  MaybeError read_prompt(const FieldSet& fields);
  MaybeError read_prompt_value(JsonElement value);
  MaybeError read_prompt_array(JsonElement value);

  const RequestLimits& limits_;
  KnownExtras& extras_;
  JsonElement root_;
};

}  // namespace llmb
