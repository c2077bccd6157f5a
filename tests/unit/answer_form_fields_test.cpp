// io/answer_form_fields, through the parser of lines.
#include <doctest/doctest.h>

#include <string>
#include <variant>

#include "io/request_parser.h"

namespace llmb {
namespace {

using Kind = AnswerForm::Kind;

std::variant<InputRequest, ParseFailure> parse(const std::string& members, GenerationParams defaults = {}) {
  RequestParser parser(std::move(defaults), {});
  InputLine line;
  line.bytes = R"({"prompt": "x", )" + members + "}";
  return parser.parse(line);
}

std::shared_ptr<const AnswerForm> form_of(const std::string& members, GenerationParams defaults = {}) {
  const auto parsed = parse(members, std::move(defaults));
  if (const auto* failure = std::get_if<ParseFailure>(&parsed)) FAIL(failure->error.message);
  return std::get<InputRequest>(parsed).params.form;
}

// "code param: message"
std::string error_of(const std::string& members, GenerationParams defaults = {}) {
  const auto parsed = parse(members, std::move(defaults));
  const auto* failure = std::get_if<ParseFailure>(&parsed);
  if (failure == nullptr) return "";
  return failure->error.code + " " + failure->error.param.value_or("") + ": " + failure->error.message;
}

GenerationParams with_form() {
  GenerationParams params;
  params.form = std::make_shared<AnswerForm>(AnswerForm{Kind::kRegex, "a+", {}, false, "regex"});
  return params;
}

}  // namespace

TEST_CASE("every way to ask for a form gives its kind, its text and the field that asked") {
  const struct {
    const char* members;
    Kind kind;
    const char *text, *field;
  } kCases[] = {
      {R"("response_format": {"type": "json_object"})", Kind::kJsonObject, "", "response_format"},
      {R"("response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "null"}}})",
       Kind::kJsonSchema, R"({"type":"null"})", "response_format.json_schema.schema"},
      {R"("guided_json": {"const": 1.0})", Kind::kJsonSchema, R"({"const":1.0})", "guided_json"},
      {R"("guided_json": "{\"const\": 1}")", Kind::kJsonSchema, R"({"const": 1})", "guided_json"},
      {R"("guided_regex": "[a-z]+")", Kind::kRegex, "[a-z]+", "guided_regex"},
      {R"("guided_grammar": "root ::= \"a\"")", Kind::kGrammar, R"(root ::= "a")", "guided_grammar"},
      {R"("structured_outputs": {"json": true})", Kind::kJsonSchema, "true", "structured_outputs.json"},
      {R"("structured_outputs": {"regex": "a", "json": null})", Kind::kRegex, "a", "structured_outputs.regex"},
      {R"("structured_outputs": {"grammar": "g"})", Kind::kGrammar, "g", "structured_outputs.grammar"},
      {R"("structured_outputs": {"json_object": true, "disable_any_whitespace": false})", Kind::kJsonObject, "",
       "structured_outputs.json_object"},
  };
  for (const auto& [members, kind, text, field] : kCases) {
    CAPTURE(members);
    const auto form = form_of(members);
    REQUIRE(form != nullptr);
    CHECK(form->kind == kind);
    CHECK(form->text == text);
    CHECK(form->field == field);
    CHECK(!form->is_strict);
  }
  CHECK(form_of(R"("guided_choice": ["a", "b c"])")->choices == std::vector<std::string>{"a", "b c"});
  CHECK(form_of(R"("structured_outputs": {"choice": ["x"]})")->choices == std::vector<std::string>{"x"});
  CHECK(form_of(R"("response_format": {"type": "json_schema", "json_schema": {"schema": {}, "strict": true}})")->is_strict);
}

TEST_CASE("a line's own form wins over the default; text asks for none; null for nothing") {
  CHECK(form_of(R"("n": 1)", with_form())->field == "regex");
  CHECK(form_of(R"("guided_regex": null)", with_form())->field == "regex");
  CHECK(form_of(R"("guided_choice": ["a"])", with_form())->kind == Kind::kChoice);
  CHECK(form_of(R"("response_format": {"type": "text"})", with_form()) == nullptr);
  CHECK(form_of(R"("response_format": {"type": "text"}, "guided_regex": "b")", with_form())->text == "b");
  CHECK(form_of(R"("n": 1)") == nullptr);
}

TEST_CASE("what asks for no form that there is, or for two, is an error that names the field") {
  const struct {
    const char *members, *error;
  } kCases[] = {
      {R"("guided_regex": "a", "guided_choice": ["b"])",
       "invalid_value guided_choice: guided_choice cannot stand beside guided_regex"},
      {R"("guided_regex": "")", "invalid_value guided_regex: guided_regex must be a non-empty string; got \"\""},
      {R"("guided_choice": [])",
       "invalid_value guided_choice: guided_choice must be a non-empty array of non-empty strings; got []"},
      {R"("guided_choice": ["a", 1])",
       "invalid_value guided_choice: guided_choice must be a non-empty array of non-empty strings; got 1"},
      {R"("guided_json": 7)", "invalid_value guided_json: guided_json must be a JSON Schema; got 7"},
      {R"("response_format": {"type": "json_schema"})",
       "missing_field response_format.json_schema: response_format.json_schema is missing"},
      {R"("response_format": {"type": "json_schema", "json_schema": {"name": "n"}})",
       "missing_field response_format.json_schema.schema: response_format.json_schema.schema is missing"},
      {R"("response_format": {"type": "json_object", "schema": {}})",
       "unsupported_field response_format.schema: response_format.schema is not supported"},
      {R"("response_format": {"type": "xml"})",
       "invalid_value response_format.type: response_format.type must be text, json_object or json_schema; got \"xml\""},
      {R"("structured_outputs": {"regex": "a", "choice": ["a"]})",
       "invalid_value structured_outputs: structured_outputs must have exactly one of json, regex, choice, grammar and "
       "json_object"},
      {R"("structured_outputs": {"regex": "a", "whitespace_pattern": " "})",
       "unsupported_field structured_outputs.whitespace_pattern: structured_outputs.whitespace_pattern is not supported"},
      {R"("structured_outputs": {"structural_tag": "x"})",
       "unsupported_field structured_outputs.structural_tag: structured_outputs.structural_tag is not supported"},
      {R"("guided_regex": "a", "ignore_eos": true)",
       "invalid_value ignore_eos: ignore_eos cannot stand beside a form of the answer (guided_regex)"},
      {R"("guided_regex": "a", "use_beam_search": true, "n": 2)",
       "invalid_value use_beam_search: use_beam_search cannot stand beside a form of the answer (guided_regex)"},
  };
  for (const auto& [members, error] : kCases) CHECK(error_of(members) == error);
  for (const char* members : {R"("structured_outputs": {})", R"("structured_outputs": {"regex": "a", "json": {}})",
                              R"("structured_outputs": "a")", R"("response_format": "json")", R"("response_format": {})"})
    CHECK(error_of(members).starts_with("invalid_value"));
}

}  // namespace llmb
