#include "tests/support/hostile_forms.h"

#include <functional>

namespace llmb::test {

namespace {

std::string repeated(int count, const std::string& text) {
  std::string out;
  for (int i = 0; i < count; ++i) out += text;
  return out;
}

std::string joined(int count, const std::function<std::string(int)>& part, const char* between = ",") {
  std::string out;
  for (int i = 0; i < count; ++i) out += (i > 0 ? between : "") + part(i);
  return out;
}

std::string num(int i) { return std::to_string(i); }
std::string quoted(const std::string& text) { return "\"" + text + "\""; }

// Each property's value has properties of its own, `depth` deep.
std::string tree(int depth) {
  if (depth == 0) return "{}";
  const std::string inner = tree(depth - 1);
  return R"({"type":"object","properties":{"a":)" + inner + R"(,"b":)" + inner + "}}";
}

void add_schemas(std::vector<HostileForm>* forms) {
  const auto add = [&](const std::string& name, std::string text) {
    forms->push_back({name, {AnswerForm::Kind::kJsonSchema, std::move(text), {}, false, "json_schema"}});
  };
  const auto is_string = [](const std::string& bounds) { return R"({"type":"string",)" + bounds + "}"; };
  add("items 10,000 deep", repeated(10'000, "{\"items\":") + "{}" + std::string(10'000, '}'));
  add("[ a million deep", std::string(1'000'000, '['));
  add("not 500 deep", repeated(500, "{\"not\":") + "{}" + std::string(500, '}'));
  add("100,000 constants", "{\"enum\":[" + joined(100'000, [](int i) { return quoted(num(i * 7919)); }) + "]}");
  add("a million constants", "{\"enum\":[" + joined(1'000'000, [](int i) { return num(i); }) + "]}");
  add("100,000 constant objects",
      "{\"enum\":[" + joined(100'000, [](int i) { return "{\"a\":" + num(i) + "}"; }) + "]}");
  add("100,000 properties",
      "{\"properties\":{" + joined(100'000, [](int i) { return quoted("p" + num(i)) + ":{}"; }) + "}}");
  add("2,000 properties", "{\"properties\":{" + joined(2000, [](int i) { return quoted("p" + num(i)) + ":{}"; }) +
                              "},\"required\":[" + joined(2000, [](int i) { return quoted("p" + num(i)); }) + "]}");
  add("100,000 required", "{\"required\":[" + joined(100'000, [](int i) { return quoted("p" + num(i)); }) + "]}");
  add("properties in a tree 16 deep", tree(16));
  add("references along a chain of 5,000", "{\"$ref\":\"#/$defs/d0\",\"$defs\":{" + joined(5000, [](int i) {
                                             return quoted("d" + num(i)) + ":{\"$ref\":\"#/$defs/d" + num(i + 1) +
                                                    "\"}";
                                           }) + ",\"d5000\":{}}}");
  add("2,000 recursive references", "{\"$ref\":\"#/$defs/d0\",\"$defs\":{" + joined(2000, [](int i) {
                                      return quoted("d" + num(i)) + ":{\"items\":{\"$ref\":\"#/$defs/d" +
                                             num((i + 1) % 2000) + "\"}}";
                                    }) + "}}");
  add("references to 1,000 anchors",
      "{\"allOf\":[" + joined(1000, [](int i) { return "{\"$ref\":\"#a" + num(i) + "\"}"; }) + "],\"$defs\":{" +
          joined(1000, [](int i) { return quoted("d" + num(i)) + ":{\"$anchor\":\"a" + num(i) + "\"}"; }) + "}}");
  add("subsets of 20 recursive schemas",
      "{\"$ref\":\"#/$defs/d0\",\"$defs\":{" + joined(20, [](int i) {
        return quoted("d" + num(i)) + ":{\"items\":{\"$ref\":\"#/$defs/d" + num((i + 1) % 20) +
               "\"},\"properties\":{\"a\":{\"allOf\":[{\"$ref\":\"#/$defs/d" + num((i + 1) % 20) +
               "\"},{\"$ref\":\"#/$defs/d" + num((i * 3 + 2) % 20) + "\"}]}}}";
      }) + "}}");
  add("anyOf multiplied 30 times", "{\"allOf\":[" + joined(30, [](int i) {
                                     return "{\"anyOf\":[{\"required\":[\"a" + num(i) + "\"]},{\"required\":[\"b" +
                                            num(i) + "\"]}]}";
                                   }) + "]}");
  add("oneOf of 200", "{\"oneOf\":[" + joined(200, [](int i) {
                        return "{\"type\":\"object\",\"properties\":{\"a\":{\"pattern\":\"^" + num(i) + "\"}}}";
                      }) + "]}");
  add("maxLength of a million, with a pattern", is_string(R"("maxLength":1000000,"pattern":"^a*$")"));
  add("maxLength of a million", is_string(R"("maxLength":1000000)"));
  add("minLength of a million", is_string(R"("minLength":1000000)"));
  add("minItems of a million", R"({"type":"array","minItems":1000000})");
  add("minProperties of a million", R"({"type":"object","minProperties":1000000})");
  add("maxProperties of 900 among 900", R"({"type":"object","maxProperties":900,"properties":{)" +
                                            joined(900, [](int i) { return quoted("p" + num(i)) + ":{}"; }) + "}}");
  add("contains 1,000 times", R"({"type":"array","contains":{"const":1},"minContains":1000})");
  add("2,000 items one by one",
      "{\"prefixItems\":[" + joined(2000, [](int i) { return "{\"const\":" + num(i) + "}"; }) + "]}");
  add("patterns that blow up", is_string(R"("pattern":"^(a|b)*a(a|b){20}$","minLength":30)"));
  add("12 patterns at once", "{\"type\":\"string\",\"allOf\":[" + joined(12, [](int i) {
                               return "{\"pattern\":\"^(.{" + num(i + 2) + "})*$\"}";
                             }) + "]}");
  add("patternProperties that overlap",
      "{\"patternProperties\":{" + joined(6, [](int i) {
        return quoted("(a|b)*" + std::string(1, static_cast<char>('a' + i)) + "(a|b){4}") + ":{}";
      }) + "}}");
  add("multipleOf 99991", R"({"type":"integer","multipleOf":99991})");
  add("a divisor and bounds", R"({"type":"number","multipleOf":0.99991,"minimum":12345.678,"maximum":98765.4321})");
  add("a bound of 1e308", R"({"type":"number","minimum":-1e308,"exclusiveMaximum":1e308})");
}

void add_patterns(std::vector<HostileForm>* forms) {
  const auto add = [&](const std::string& name, std::string text) {
    forms->push_back({name, {AnswerForm::Kind::kRegex, std::move(text), {}, false, "regex"}});
  };
  add("regex (a|b)*a(a|b){30}", "(a|b)*a(a|b){30}");
  add("regex (a|b)*a(a|b){3000}", "(a|b)*a(a|b){3000}");
  add("regex (a?){1000}a{1000}", "(a?){1000}a{1000}");
  add("regex .? 20,000 times", repeated(20'000, ".?"));
  add("regex a?b? 5,000 times", repeated(5'000, "a?b?"));
  add("regex ((a*)*)*", "((((a*)*)*)*)*b");
  add("regex counts of counts", "((((x{1000}){1000}){1000}){1000}){1000}");
  add("regex counts that may be empty", "((((x{0,99}y?){0,99}){0,99}){0,99}){0,99}");
  add("regex of 30,000 alternatives", joined(
                                          15'000, [](int i) { return num(i % 977) + "x"; }, "|")
                                          .substr(0, 60'000));
  add("regex of 500 overlapping alternatives", joined(
                                                   500, [](int i) { return ".*" + num(i) + ".*"; }, "|"));
  add("regex class of 60,000", "[" +
                                   joined(
                                       10'000, [](int i) { return "\\u" + num(10'000 - i / 2).substr(0, 4); }, "") +
                                   "]*");
  add("regex of open braces", repeated(60'000, "{"));
  add("regex of open classes", repeated(30'000, "[:"));
  add("regex nested 199 deep", repeated(199, "(a|") + "b" + std::string(199, ')'));
  add("regex of anchors", repeated(20'000, "(^|a)"));
}

void add_grammars(std::vector<HostileForm>* forms) {
  const auto add = [&](const std::string& name, std::string text) {
    forms->push_back({name, {AnswerForm::Kind::kGrammar, std::move(text), {}, false, "grammar"}});
  };
  const auto rule = [](int i) { return "r" + num(i); };
  add("rules that double 60 times",
      "root ::= r60\nr0 ::= \"ab\"\n" +
          joined(
              60, [&](int i) { return rule(i + 1) + " ::= " + rule(i) + " " + rule(i); }, "\n"));
  add("20,000 rules in a chain", "root ::= r0\n" +
                                     joined(
                                         20'000, [&](int i) { return rule(i) + " ::= " + rule(i + 1); }, "\n") +
                                     "\nr20000 ::= \"x\"");
  add("2,000 rules in a ring", "root ::= r0 | \"y\"\n" + joined(
                                                             2000,
                                                             [&](int i) {
                                                               return rule(i) + " ::= \"a\" " + rule((i + 1) % 2000) +
                                                                      " | " + rule((i * 7) % 2000) + " \"b\" | \"x\"";
                                                             },
                                                             "\n"));
  add("20,000 optional rules",
      "root ::= " +
          joined(
              20'000, [&](int i) { return rule(i % 50) + "?"; }, " ") +
          "\n" +
          joined(
              50, [&](int i) { return rule(i) + " ::= \"" + num(i) + "\" " + rule(i) + "?"; }, "\n"));
  add("ambiguous in every way", "root ::= root root | root root root | \"a\" | \"\"");
  add("left and right recursion", "root ::= root \"+\" root | \"-\" root | root \"!\" | \"(\" root \")\" | [0-9]+");
  add("rules without an end",
      joined(
          3000, [&](int i) { return (i == 0 ? "root" : rule(i)) + " ::= \"a\" " + rule(i + 1); }, "\n") +
          "\nr3000 ::= r1 \"x\"");
  add("a literal of 250,000 bytes", "root ::= \"" + std::string(250'000, 'x') + "\"");
  add("nested 100,000 deep", "root ::= " + std::string(100'000, '(') + "\"x\"" + std::string(100'000, ')'));
}

}  // namespace

std::vector<HostileForm> hostile_forms() {
  std::vector<HostileForm> forms;
  add_schemas(&forms);
  add_patterns(&forms);
  add_grammars(&forms);
  AnswerForm choices{AnswerForm::Kind::kChoice, "", {}, false, "choice"};
  for (int i = 0; i < 500'000; ++i) choices.choices.push_back(num(i));
  forms.push_back({"500,000 choices", choices});
  choices.choices.clear();
  for (int i = 1; i <= 2'500; ++i) choices.choices.push_back(std::string(static_cast<size_t>(i), 'a'));
  forms.push_back({"choices, each the beginning of the next", choices});
  return forms;
}

}  // namespace llmb::test
