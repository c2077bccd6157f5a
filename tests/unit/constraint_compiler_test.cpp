#include "engine/constraint_compiler.h"

#include <doctest/doctest.h>

#include <string>
#include <thread>
#include <vector>

namespace llmb {
namespace {

using Kind = AnswerForm::Kind;

// Token t < 256 is the byte t, 256 ends an answer.
std::shared_ptr<const grammar::Vocabulary> bytes_vocabulary() {
  const auto bytes_of = [](TokenId token) { return std::string(1, static_cast<char>(token)); };
  return std::make_shared<const grammar::Vocabulary>(257, bytes_of, std::vector<TokenId>{256});
}

AnswerForm schema(const std::string& text, bool is_strict = false) {
  return {Kind::kJsonSchema, text, {}, is_strict, "guided_json"};
}

std::string refusal(const AnswerForm& form) {
  ConstraintCompiler compiler(bytes_vocabulary);
  const auto compiled = compiler.compile(form);
  return compiled.ok() ? "" : compiled.status().message();
}

// The text is a whole answer.
bool accepts(const TokenConstraint& constraint, const std::string& text) {
  const auto state = constraint.start();
  const auto may_be = [&](TokenId token) { return (state->allowed()[token / 32] >> token % 32 & 1u) != 0; };
  for (const char c : text) {
    const auto token = static_cast<TokenId>(static_cast<uint8_t>(c));
    if (!may_be(token)) return false;
    state->advance(token);
  }
  return may_be(256);
}

}  // namespace

TEST_CASE("each kind of form accepts its texts and no others") {
  const struct {
    AnswerForm form;
    std::vector<std::string> good, bad;
  } kCases[] = {
      {{Kind::kJsonObject, "", {}, false, ""}, {"{}", R"({"a": [1, null]})"}, {"", "[]", "{", R"({"a"})"}},
      {schema(R"({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})"),
       {R"({"a": 1})", R"({"a": -20, "b": "x"})"},
       {"{}", R"({"a": "1"})"}},
      {{Kind::kRegex, "[ab]{2,3}", {}, false, ""}, {"ab", "bbb"}, {"a", "abab", ""}},
      {{Kind::kChoice, "", {"yes", "yes, please", "no"}, false, ""}, {"yes", "yes, please", "no"}, {"ye", "yes,", ""}},
      {{Kind::kGrammar, "root ::= \"(\" root \")\" | \"x\"", {}, false, ""}, {"x", "((x))"}, {"", "((x)", "(x))"}},
  };
  ConstraintCompiler compiler(bytes_vocabulary);
  for (const auto& [form, good, bad] : kCases) {
    const auto compiled = compiler.compile(form);
    REQUIRE(compiled.ok());
    for (const std::string& text : good) CHECK_MESSAGE(accepts(*compiled->constraint, text), text);
    for (const std::string& text : bad) CHECK_MESSAGE(!accepts(*compiled->constraint, text), text);
  }
}

TEST_CASE("Lark's EBNF: terminals, what is ignored between them, counts, ranges, imports") {
  const std::string list = R"(
// a comment
?start: "[" [item ("," item)*] "]"
item: NUMBER -> number
    | pair.2  # no priority of a name in a rule
)";
  CHECK(!refusal({Kind::kGrammar, list, {}, false, ""}).empty());
  const struct {
    std::string text;
    std::vector<std::string> good, bad;
  } kCases[] = {
      {"start: \"[\" [item (\",\" item)*] \"]\"\nitem: NUMBER -> number\n    | pair\npair: \"(\" start \")\"\n"
       "%import common.NUMBER\n%import common (WS_INLINE, INT)\n%import common.INT -> WHOLE\n%ignore WS_INLINE\n",
       {"[]", "[1]", " [ 1 , 2.5e3,([ ]) ] "},
       {"[1,]", "[1 2]", "", "[1\n]", "[1"}},
      {"// begins with a comment\nstart: A~2..3 /b+c?/ | \"x\"i \"\\u00e9\" B\nA: \"0\"..\"7\" | \"_\"\nB.1: (\"!\" | "
       "\"?\")+\n",
       {"01b", "_7_bbc", "xé!", "Xé?!"},
       {"8b", "0b", "0123b", "xé", "x!"}},
      {"!start: \"a\" start \"b\" |", {"", "ab", "aabb"}, {"a", "abab"}},
  };
  ConstraintCompiler compiler(bytes_vocabulary);
  for (const auto& [text, good, bad] : kCases) {
    const auto compiled = compiler.compile({Kind::kGrammar, text, {}, false, ""});
    REQUIRE_MESSAGE(compiled.ok(), compiled.status().message());
    for (const std::string& answer : good) CHECK_MESSAGE(accepts(*compiled->constraint, answer), answer);
    for (const std::string& answer : bad) CHECK_MESSAGE(!accepts(*compiled->constraint, answer), answer);
  }
  const std::pair<const char*, const char*> kRefused[] = {{"start: _sep{\"a\", \",\"}", "a template"},
                                                          {"start: A\n%declare A", "%declare"},
                                                          {"start: /a/i", "flag"},
                                                          {"start: a", "no rule \"a\""},
                                                          {"start: \"a", "closing quote"},
                                                          {"start: /a(?=b)/", "look-ahead"},
                                                          {"%import python.NAME\nstart: NAME", "import"},
                                                          {"start: \"a\"\nstart: \"b\"", "twice"},
                                                          {"start: (\"a\"", "without its )"},
                                                          {"?start: \"a\" )", "no part of a rule"}};
  for (const auto& [text, reason] : kRefused) {
    const std::string message = refusal({Kind::kGrammar, text, {}, false, ""});
    CHECK_MESSAGE(message.find(reason) != std::string::npos, text << ": " << message);
  }
}

TEST_CASE("equal forms share a constraint, whichever field asks; others do not") {
  ConstraintCompiler compiler(bytes_vocabulary);
  AnswerForm form = schema("{}");
  const auto first = compiler.compile(form);
  form.field = "response_format";
  const auto again = compiler.compile(form);
  CHECK(first->constraint == again->constraint);
  CHECK((first->is_new && !again->is_new));
  CHECK(compiler.compile(schema("{ }"))->is_new);
  CHECK(compiler.compile(schema("{}", true))->is_new);
  CHECK(compiler.compile({Kind::kRegex, "{}", {}, false, ""})->is_new);
  CHECK(compiler.compile({Kind::kChoice, "", {"ab", "c"}, false, ""})->constraint !=
        compiler.compile({Kind::kChoice, "", {"a", "bc"}, false, ""})->constraint);
}

TEST_CASE("more forms than are kept: the last ones asked for stay") {
  ConstraintCompiler compiler(bytes_vocabulary);
  const AnswerForm first = schema("{\"const\": 0}");
  const auto kept = compiler.compile(first)->constraint;
  for (int i = 1; i <= 3000; ++i) {
    CHECK(compiler.compile(schema("{\"const\": " + std::to_string(i) + "}"))->is_new);
    if (i % 500 == 0) CHECK(compiler.compile(first)->constraint == kept);
  }
  CHECK(compiler.compile(schema("{\"const\": 1}"))->is_new);
  CHECK(!compiler.compile(schema("{\"const\": 2999}"))->is_new);
}

TEST_CASE("threads that ask for the same forms get the same constraints") {
  ConstraintCompiler compiler(bytes_vocabulary);
  std::vector<std::vector<std::shared_ptr<const TokenConstraint>>> found(4);
  std::vector<std::thread> threads;
  for (auto& constraints : found)
    threads.emplace_back([&] {
      for (int i = 0; i < 100; ++i)
        constraints.push_back(compiler.compile(schema("{\"const\": " + std::to_string(i) + "}"))->constraint);
    });
  for (std::thread& thread : threads) thread.join();
  for (const auto& constraints : found) CHECK(constraints == found[0]);
}

TEST_CASE("what is refused says where and why") {
  CHECK(refusal(schema("{")).starts_with("schema: it is not JSON"));
  CHECK(refusal(schema(R"({"properties": {"a b": {"unevaluatedItems": false}}})"))
            .find("\"unevaluatedItems\" at #/properties/a b/unevaluatedItems") != std::string::npos);
  CHECK(refusal(schema("false")) == "no answer can satisfy it");
  CHECK(!refusal({Kind::kRegex, "(", {}, false, ""}).empty());
  CHECK(!refusal({Kind::kGrammar, "root ::= other", {}, false, ""}).empty());
  CHECK(!refusal({Kind::kRegex, "(?=a)b", {}, false, ""}).empty());
}

TEST_CASE("strict schemas are closed and require their properties, at every level") {
  const std::string closed = R"("additionalProperties": false, "required": ["a"])";
  CHECK(refusal(schema(R"({"type": "object", "properties": {"a": {"type": "null"}}, )" + closed + "}", true)).empty());
  CHECK(refusal(schema(R"({"type": "object", "properties": {"a": {}}, "required": ["a"]})", true)) ==
        "schema: \"additionalProperties\" at #: with strict it must be false");
  CHECK(refusal(schema(R"({"type": "object", "properties": {"a": {}}, "required": ["a"]})", false)).empty());
  const std::string inner = R"({"properties": {"b": {}}, "additionalProperties": false})";
  CHECK(refusal(schema(R"({"properties": {"a": {"items": )" + inner + "}}, " + closed + "}", true)) ==
        "schema: \"required\" at #/properties/a/items: with strict it must name all properties; \"b\" is missing");
  CHECK(refusal(schema(R"({"$defs": {"x/y": )" + inner + "}}", true)).find("#/$defs/x~1y") != std::string::npos);
  std::string deep = "{}";
  for (int i = 0; i < 500; ++i) deep = R"({"items": )" + deep + "}";
  CHECK(refusal(schema(deep, true)) == "schema: it is deeper than 256 levels");
}

}  // namespace llmb
