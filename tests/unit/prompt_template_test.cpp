// Prompts made of a line's fields by a template of the user's.
#include "chat/prompt_template.h"

#include <doctest/doctest.h>

namespace llmb {

namespace {

std::string rendered(const std::string& source, const std::string& fields) {
  const auto parsed = PromptTemplate::parse(source);
  REQUIRE(parsed.ok());
  const Result<std::string> text = (*parsed)->render(fields);
  return text.ok() ? *text : "error: " + text.status().message();
}

}  // namespace

TEST_CASE("a template sees the line's fields by name, and all of them as fields") {
  CHECK(rendered("Q: {{question}}\nA:", R"({"question":"What is 2 + 2?","answer":"4"})") == "Q: What is 2 + 2?\nA:");
  CHECK(rendered("{{ n + 1 }} {{ flags[1].x }}", R"({"n":41,"flags":[0,{"x":true}]})") == "42 True");
  CHECK(rendered("{% for k, v in fields.items() %}{{k}}={{v}};{% endfor %}", R"({"b":1,"a":"é"})") == "b=1;a=é;");
  CHECK(rendered("{{ fields['two words'] }}", R"({"two words":"x"})") == "x");
  CHECK(rendered("plain", "{}") == "plain");
  CHECK(rendered("{{ text | upper }}", R"({"text":"<b>"})") == "<B>");
}

TEST_CASE("a field that the line does not have is an error where it is printed, not where it is asked for") {
  CHECK(rendered("{{question}}", R"({"Question":"x"})") == "error: 'question' is undefined");
  CHECK(rendered("{{a.b}}", R"({"a":{}})").starts_with("error: "));
  CHECK(rendered("{{hint | default('none')}}", "{}") == "none");
  CHECK(rendered("{% if hint is defined %}{{hint}}{% else %}-{% endif %}", "{}") == "-");
  CHECK(rendered("{% if hint %}{{hint}}{% endif %}.", "{}") == ".");
}

TEST_CASE("a template that is none is refused with the place, one that runs wild costs its line") {
  const auto parsed = PromptTemplate::parse("line 1\n{{ question ");
  REQUIRE(!parsed.ok());
  CHECK(parsed.status().code() == StatusCode::kInvalidArgument);
  CHECK(rendered("{% for i in range(99999999) %}x{% endfor %}", "{}").starts_with("error: "));
  CHECK(rendered("{{ raise_exception('no') }}", "{}") == "error: no");
  CHECK(rendered("x", "[1]") == "error: the line is not a JSON object");
}

TEST_CASE("nothing of a line is a template") {
  CHECK(rendered("{{a}}", R"({"a":"{{b}}{% raw %}","b":"no"})") == "{{b}}{% raw %}");
}

TEST_CASE("the names that a template reads are known before any line is") {
  const auto parsed = PromptTemplate::parse("{% set x = a %}{{x}}{{b.c}}{% for i in d %}{{i}}{% endfor %}{{fields}}");
  REQUIRE(parsed.ok());
  CHECK((*parsed)->variables() == std::vector<std::string>{"a", "b", "d", "fields"});
}

}  // namespace llmb
