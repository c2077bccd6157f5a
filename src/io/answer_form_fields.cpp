#include "io/answer_form_fields.h"

#include <memory>
#include <string>
#include <utility>

namespace llmb {

namespace {

using Kind = AnswerForm::Kind;

// A schema may stand in a string, as vLLM's do.
MaybeError read_schema(const std::string& field, JsonElement value, AnswerForm* form) {
  form->kind = Kind::kJsonSchema;
  if (is_string(value)) form->text = string_of(value);
  else if (value.is_object() || value.is_bool()) append_json(form->text, value);
  else return invalid_value(field, "a JSON Schema", value);
  return std::nullopt;
}

MaybeError read_text(const std::string& field, JsonElement value, Kind kind, AnswerForm* form) {
  form->kind = kind;
  if (!is_string(value) || string_of(value).empty()) return invalid_value(field, "a non-empty string", value);
  form->text = string_of(value);
  return std::nullopt;
}

MaybeError read_choices(const std::string& field, JsonElement value, AnswerForm* form) {
  form->kind = Kind::kChoice;
  const char* const expected = "a non-empty array of non-empty strings";
  if (!value.is_array() || is_neutral(value, Neutral::kEmpty)) return invalid_value(field, expected, value);
  for (const JsonElement choice : array_of(value)) {
    if (!is_string(choice) || string_of(choice).empty()) return invalid_value(field, expected, choice);
    form->choices.emplace_back(string_of(choice));
  }
  return std::nullopt;
}

RequestError unsupported_member(const std::string& field) {
  return field_error("unsupported_field", field, field + " is not supported");
}

// {"name": …, "schema": {…}, "strict": false}
MaybeError read_json_schema(JsonElement value, AnswerForm* form) {
  const std::string place = "response_format.json_schema";
  if (!value.is_object()) return invalid_value(place, "an object with a schema", value);
  bool has_schema = false;
  for (const auto& [name, member] : object_of(value)) {
    const std::string field = place + "." + std::string(name);
    MaybeError error;
    if (name == "schema") error = read_schema(field, member, form), has_schema = true;
    else if (name == "strict" && !member.is_null()) error = read_bool(field, member, &form->is_strict);
    else if (name != "name" && name != "description" && name != "strict") error = unsupported_member(field);
    if (error) return error;
  }
  if (!has_schema) return field_error("missing_field", place + ".schema", place + ".schema is missing");
  form->field = place + ".schema";
  return std::nullopt;
}

MaybeError read_response_format(JsonElement value, std::shared_ptr<AnswerForm>* form) {
  const char* const expected = "an object whose type is text, json_object or json_schema";
  JsonElement type;
  if (!value.is_object() || value["type"].get(type) != simdjson::SUCCESS || !is_string(type))
    return invalid_value("response_format", expected, value);
  const std::string_view name = string_of(type);
  for (const auto& [key, member] : object_of(value))
    if (key != "type" && (key != "json_schema" || name != "json_schema") && !member.is_null())
      return unsupported_member("response_format." + std::string(key));
  if (name == "text") {
    form->reset();
    return std::nullopt;
  }
  (*form)->field = "response_format";
  if (name == "json_object") return std::nullopt;
  if (name != "json_schema") return invalid_value("response_format.type", "text, json_object or json_schema", type);
  JsonElement schema;
  if (value["json_schema"].get(schema) != simdjson::SUCCESS)
    return field_error("missing_field", "response_format.json_schema", "response_format.json_schema is missing");
  return read_json_schema(schema, form->get());
}

MaybeError read_structured_output(const std::string& field, std::string_view name, JsonElement value,
                                  AnswerForm* form) {
  if (name == "json") return read_schema(field, value, form);
  if (name == "regex") return read_text(field, value, Kind::kRegex, form);
  if (name == "grammar") return read_text(field, value, Kind::kGrammar, form);
  if (name == "choice") return read_choices(field, value, form);
  if (name != "json_object") return unsupported_member(field);
  if (!value.is_bool() || !value.get_bool().value_unsafe()) return invalid_value(field, "true", value);
  return std::nullopt;
}

MaybeError read_structured_outputs(JsonElement value, AnswerForm* form) {
  const std::string field_of_all = "structured_outputs";
  const auto one_expected = [&field_of_all] {
    return field_error("invalid_value", field_of_all,
                       "structured_outputs must have exactly one of json, regex, choice, grammar and json_object");
  };
  if (!value.is_object()) return invalid_value(field_of_all, "an object", value);
  for (const auto& [name, member] : object_of(value)) {
    if (member.is_null() || is_neutral(member, Neutral::kFalse)) continue;
    const std::string field = "structured_outputs." + std::string(name);
    if (MaybeError error = read_structured_output(field, name, member, form)) return error;
    if (!form->field.empty()) return one_expected();
    form->field = field;
  }
  if (form->field.empty()) return one_expected();
  return std::nullopt;
}

MaybeError read_form(Field field, JsonElement value, std::shared_ptr<AnswerForm>* form) {
  const std::string name(field_name(field));
  if (field == Field::kResponseFormat) return read_response_format(value, form);
  if (field == Field::kStructuredOutputs) return read_structured_outputs(value, form->get());
  (*form)->field = name;
  if (field == Field::kGuidedJson) return read_schema(name, value, form->get());
  if (field == Field::kGuidedRegex) return read_text(name, value, Kind::kRegex, form->get());
  if (field == Field::kGuidedChoice) return read_choices(name, value, form->get());
  return read_text(name, value, Kind::kGrammar, form->get());
}

}  // namespace

MaybeError read_answer_form(const FieldSet& fields, InputRequest* request) {
  std::shared_ptr<const AnswerForm>& chosen = request->params.form;
  std::string first;  // field of the line that asks for a form
  for (const Field field : {Field::kResponseFormat, Field::kStructuredOutputs, Field::kGuidedJson, Field::kGuidedRegex,
                            Field::kGuidedChoice, Field::kGuidedGrammar}) {
    const JsonElement* const value = fields.find(field);
    if (value == nullptr) continue;
    auto form = std::make_shared<AnswerForm>();
    if (MaybeError error = read_form(field, *value, &form)) return error;
    const std::string name(field_name(field));
    if (form != nullptr && !first.empty())
      return field_error("invalid_value", name, name + " cannot stand beside " + first);
    if (form != nullptr) first = name;
    if (form != nullptr || first.empty()) chosen = std::move(form);
  }
  // Calls take the place of a form that all lines have.
  const auto* chat = std::get_if<ChatMessages>(&request->prompt);
  const bool has_calls = chat != nullptr && chat->tool_choice != ToolChoice::kAuto;
  if (has_calls && chosen != nullptr && !first.empty())
    return field_error("invalid_value", first, first + " cannot stand beside tool_choice");
  if (chosen == nullptr && !has_calls) return std::nullopt;
  const bool has_beams = request->params.sampling.beams.has_value();
  if (!has_beams && !request->params.stop.ignore_eos) return std::nullopt;
  const std::string beside = has_beams ? "use_beam_search" : "ignore_eos";
  return field_error("invalid_value", beside, beside + " cannot stand beside a form of the answer (" + (has_calls ? "tool_choice" : chosen->field) + ")");
}

}  // namespace llmb
