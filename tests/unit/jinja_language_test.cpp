// The template language against jinja2: data/fixtures/chat_templates/language.jsonl, and budgets.
#include <doctest/doctest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "chat/chat_template.h"
#include "tests/support/source_dir.h"

namespace llmb {

namespace {

const std::string kDir = test::source_dir() + "/data/fixtures/chat_templates/";

Result<std::string> render(const std::string& source, const std::string& context = "") {
  const auto tmpl = ChatTemplate::parse(source, {});
  if (!tmpl.ok()) return tmpl.status();
  return (*tmpl)->render({.messages_json = R"([{"role": "user", "content": "hi"}])",
                          .template_kwargs_json = context,
                          .add_generation_prompt = false});
}

std::string times(const std::string& text, int count) {
  std::string out;
  for (int i = 0; i < count; ++i) out += text;
  return out;
}

}  // namespace

TEST_CASE("every golden template gives jinja2's text, or an error where jinja2 raises one") {
  std::ifstream context_file(kDir + "context.json");
  std::stringstream context;
  context << context_file.rdbuf();
  std::ifstream in(kDir + "language.jsonl");
  int num_texts = 0, num_errors = 0;
  for (std::string line; std::getline(in, line);) {
    const auto golden = nlohmann::json::parse(line);
    const auto source = golden["template"].get<std::string>();
    CAPTURE(source);
    const auto text = render(source, context.str());
    if (golden.contains("text")) {
      ++num_texts;
      REQUIRE_MESSAGE(text.ok(), text.status().message());
      CHECK(*text == golden["text"].get<std::string>());
    } else {
      ++num_errors;
      CHECK_MESSAGE(!text.ok(), (text.ok() ? *text : ""));
      CHECK(text.status().code() == StatusCode::kInvalidArgument);
    }
  }
  CHECK(num_texts >= 250);
  CHECK(num_errors >= 140);
}

TEST_CASE("syntax errors name the line") {
  CHECK(render("a\nb\n{{ x").status().message().find("line 3") != std::string::npos);
  CHECK(render("a\n{% endif %}").status().message() == "Encountered unknown tag 'endif'. (line 2)");
  CHECK(render("{%- for x in y %}\n\n{% include 'f' %}").status().message().find("{% include %} is not available") ==
        0);
  CHECK(render("\n{{ a|nope }}").status().message() == "No filter named 'nope'. (line 2)");
  CHECK(render("{{ 99999999999999999999 }}").status().message().find("64 bits") != std::string::npos);
}

TEST_CASE("an unknown filter or test in a branch is an error only where it is reached") {
  CHECK(*render("{% if false %}{{ 1|nope }}{% endif %}{{ (1|nope) if false else 'x' }}") == "x");
  CHECK(render("{% if true %}{{ 1|nope }}{% endif %}").status().message() == "No filter named 'nope' found.");
  CHECK(render("{{ 1 if 1 is nope else 2 }}").status().message() == "No test named 'nope' found.");
}

TEST_CASE("integers past 64 bits are errors") {
  CHECK(*render("{{ 9223372036854775807 }} {{ -9223372036854775807 - 1 }}") ==
        "9223372036854775807 -9223372036854775808");
  for (const char* e : {"9223372036854775807 + 1", "-9223372036854775807 - 2", "9223372036854775807 * 2", "2 ** 63",
                        "-(-9223372036854775807 - 1)", "(-9223372036854775807 - 1) // -1",
                        "(-9223372036854775807 - 1)|abs", "1e19|int"}) {
    CAPTURE(e);
    CHECK(render("{{ " + std::string(e) + " }}").status().code() == StatusCode::kInvalidArgument);
  }
  CHECK(*render("{{ (-9223372036854775807 - 1) % -1 }} {{ 'abc'[::-9223372036854775807] }} {{ "
                "'abc'[9223372036854775807:] }}") == "0 c ");
}

TEST_CASE("strftime_now prints the local date, and knows no width") {
  const std::string date = *render("{{ strftime_now('%Y-%m-%d') }}");
  CHECK(date.size() == 10);
  CHECK(date.substr(0, 2) == "20");
  CHECK(*render("{{ strftime_now('%999999d %z|%Z|%') }}") == "%999999d ||%");
  CHECK(render("{{ strftime_now('%-d %f')|length }}")->size() == 1);
}

// ---- budgets ------------------------------------------------------------------------------------

TEST_CASE("templates without end, or without measure, meet a budget") {
  const char* kHostile[] = {
      "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
      "{% macro m(x) %}{% for i in [1] %}{% if true %}{{ m(x + 1) }}{% endif %}{% endfor %}{% endmacro %}{{ m(0) }}",
      "{% macro m(a=m()) %}{% endmacro %}{{ m() }}",
      "{% macro a() %}{% call b() %}{{ a() }}{% endcall %}{% endmacro %}{% macro b() %}{{ caller() }}{% endmacro %}{{ "
      "a() }}",
      "{% for i in [1] recursive %}{{ loop([1]) }}{% endfor %}",
      "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
      "{% for a in range(100000) %}{% for b in range(100000) %}x{% endfor %}{% endfor %}",
      "{% set ns = namespace(x='a') %}{% for a in range(100) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
      "{% set ns = namespace(x=[1]) %}{% for a in range(100) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
      "{% set ns = namespace(x=[1]) %}{% for a in range(100) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
      "{% set ns = namespace(x=[1]) %}{% for a in range(100) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x|tojson "
      "}}",
      "{% set ns = namespace(x=[1], y=[1]) %}{% for a in range(100) %}{% set ns.x = [ns.x, ns.x] %}{% set ns.y = "
      "[ns.y, ns.y] %}{% endfor %}{{ ns.x == ns.y }}",
      "{% set ns = namespace(x=[]) %}{% for a in range(50000) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x }}",
      "{% set ns = namespace() %}{% set ns.me = ns %}{{ ns }}",
      "{% set ns = namespace(x=[1]) %}{% for a in range(50000) %}{% set ns.x = ns.x|map('string') %}{% endfor %}{{ "
      "ns.x|list }}",
      "{{ 'a' * 1000000000 }}",
      "{{ [0] * 1000000000 }}",
      "{{ ('a' * 100000).replace('a', 'b' * 100000) }}",
      "{{ 'a'|center(1000000000) }}",
      "{{ 'a'|center(9223372036854775807) }}",
      "{{ '%1000000000d' % 5 }}",
      "{{ '{:1000000000}'.format(5) }}",
      "{{ '%.1000000000f' % 5.0 }}",
      "{{ ('a\\n' * 1000000)|indent(1000) }}",
      "{{ [1]|batch(10000000000, 1)|list }}",
      "{{ [1]|slice(10000000000)|list }}",
      "{% for i in range(100000) %}{{ 'a' * 1000 }}{% endfor %}",
      "{% set a = 'a' * 1000000 %}{% for i in range(100000) %}{{ 'b' in a }}{% endfor %}",
      "{% macro m() %}{{ varargs|length }}{% endmacro %}{% for i in range(100000) %}{{ m(*range(10000)) }}{% endfor %}",
      "{{ dict(*range(20000)) }}",
  };
  for (const char* source : kHostile) {
    CAPTURE(source);
    const auto text = render(source);
    REQUIRE_FALSE(text.ok());
    CHECK_MESSAGE(text.status().code() == StatusCode::kResourceExhausted, text.status().message());
  }
}

TEST_CASE("values nested deep and values in a circle are freed without deep recursion") {
  CHECK(*render("{% set ns = namespace(x=[]) %}{% for a in range(100000) %}{% set ns.x = [ns.x] %}{% endfor %}done") ==
        "done");
  CHECK(*render("{% set ns = namespace(x=[1]) %}{% for a in range(100000) %}{% set ns.x = ns.x|map('string') %}{% "
                "endfor %}done") == "done");
  CHECK(
      *render("{% set ns = namespace() %}{% set ns.me = [ns, {'k': ns}] %}{% macro m() %}{{ m }}{% endmacro %}done") ==
      "done");
}

TEST_CASE("templates nested too deeply, too long or of too many tags are refused when they are read") {
  const int kMany = 3000;
  CHECK_FALSE(render("{{ " + times("(", kMany) + "1" + times(")", kMany) + " }}").ok());
  CHECK_FALSE(render("{{ " + times("[", kMany) + times("]", kMany) + " }}").ok());
  CHECK_FALSE(render("{{ " + times("not ", kMany) + "1 }}").ok());
  CHECK_FALSE(render("{{ " + times("-", kMany) + "1 }}").ok());
  CHECK_FALSE(render("{{ 1" + times(" + 1", kMany) + " }}").ok());
  CHECK_FALSE(render("{{ a" + times(".a", kMany) + " }}").ok());
  CHECK_FALSE(render("{{ a" + times("|e", kMany) + " }}").ok());
  CHECK_FALSE(render("{{ " + times("1 if 1 else ", kMany) + "1 }}").ok());
  CHECK_FALSE(render(times("{% if 1 %}", kMany) + times("{% endif %}", kMany)).ok());
  CHECK_FALSE(render(times("{% for a in b %}", kMany) + times("{% endfor %}", kMany)).ok());
  CHECK_FALSE(render("{% for " + times("(", kMany) + "a" + times(")", kMany) + " in b %}{% endfor %}").ok());
  CHECK_FALSE(render(times("{{ 1 }}", 30'000)).ok());
  CHECK_FALSE(render(std::string(300'000, 'x')).ok());
  CHECK(render(times("{% if 1 %}", 90) + "x" + times("{% endif %}", 90)).ok());
  CHECK(*render("{{ " + times("(", 40) + "1" + times(")", 40) + " }}") == "1");
  CHECK(render("{% if 0 %}" + times("{% elif 0 %}", kMany) + "{% endif %}").ok());
  CHECK(render("{{ 'a'" + times(" ~ 'a'", kMany) + " }}")->size() == kMany + 1);
}

TEST_CASE("joining two strings takes memory for them and the result, no more") {
  const std::string part = R"({"s": ")" + std::string(11 << 20, 'a') + R"("})";
  CHECK(*render("{{ (s + s)|length }}", part) == std::to_string(22 << 20));
  CHECK(render("{{ (s + s + s)|length }}", part).status().code() == StatusCode::kResourceExhausted);
}

TEST_CASE("output of exactly the allowed size is given, one byte more is refused") {
  const std::string half = R"({"s": ")" + std::string((8 << 20), 'a') + R"("})";
  CHECK(render("{{ s }}{{ s }}", half)->size() == 16u << 20);
  CHECK(render("{{ s }}{{ s }}b", half).status().code() == StatusCode::kResourceExhausted);
}

TEST_CASE("hostile JSON input meets a budget too") {
  CHECK(render("x", "{\"a\": [" + times("1,", 3'000'000) + "1]}").status().code() == StatusCode::kResourceExhausted);
  CHECK(render("x", R"({"a": ")" + std::string(60 << 20, 'a') + "\"}").status().code() ==
        StatusCode::kResourceExhausted);
}

}  // namespace llmb
