// Masks of random regular expressions and grammars, brute force: every token of the bundled vocabulary at every step.
// LLMB_NUM_GRAMMARS raises the count of each (1000 before a change of grammar/ is done).
#include <doctest/doctest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "grammar/answer_forms.h"
#include "grammar/gbnf.h"
#include "grammar/json_schema.h"
#include "tests/support/mask_check.h"
#include "tests/support/random_schema.h"

namespace llmb::test {

namespace {

int64_t num_grammars(int64_t otherwise) {
  const char* text = std::getenv("LLMB_NUM_GRAMMARS");
  return text ? std::strtoll(text, nullptr, 10) : otherwise;
}

// The same language as the tests' judge sees it and as it is written.
struct Written {
  Naive naive;
  std::string text;
};

const std::vector<std::string> kChars = {"a", "b", "e", "1", "2", " ", "t", "h", "é", "è", "€", "😀", "\n", ","};

std::string random_char(TestRng& rng) { return kChars[rng.between(0, static_cast<int32_t>(kChars.size()) - 1)]; }

std::string escaped(const std::string& c) { return c == "\n" ? "\\n" : c; }

Written random_leaf(TestRng& rng, bool is_gbnf) {
  if (rng.chance(0.5)) {
    std::vector<std::string> members;
    std::string text = "[";
    for (int i = rng.between(1, 4); i > 0; --i) members.push_back(random_char(rng)), text += escaped(members.back());
    return {Naive::one_of(members), text + "]"};
  }
  std::string plain, text;
  for (int i = rng.between(1, 4); i > 0; --i) {
    const std::string c = random_char(rng);
    plain += c, text += escaped(c);
  }
  return {Naive::text(plain), is_gbnf ? "\"" + text + "\"" : text};
}

Written random_expression(TestRng& rng, int depth, bool is_gbnf, int num_rules) {
  const std::string open = is_gbnf ? "(" : "(?:", space = is_gbnf ? " " : "";
  if (num_rules > 0 && rng.chance(0.35)) {
    const std::string name = "r" + std::to_string(rng.between(0, num_rules - 1));
    return {Naive::call(name), name};
  }
  if (depth == 0 || rng.chance(0.2)) return random_leaf(rng, is_gbnf);
  const int kind = rng.between(0, 2);
  Written out;
  if (kind == 2) {
    const Written inner = random_expression(rng, depth - 1, is_gbnf, num_rules);
    const int min = rng.between(0, 2), max = min + rng.between(min == 0 ? 1 : 0, 2);
    const std::vector<std::pair<std::string, std::pair<int, int>>> forms = {
        {"*", {0, -1}},
        {"+", {1, -1}},
        {"?", {0, 1}},
        {"{" + std::to_string(min) + "," + std::to_string(max) + "}", {min, max}},
        {"{" + std::to_string(min) + ",}", {min, -1}}};
    const auto& [mark, counts] = forms[rng.between(0, 4)];
    return {Naive::repeat(inner.naive, counts.first, counts.second), open + inner.text + ")" + mark};
  }
  std::vector<Naive> parts;
  for (int i = rng.between(2, 3); i > 0; --i) {
    const Written part = random_expression(rng, depth - 1, is_gbnf, num_rules);
    out.text += (parts.empty() ? "" : kind == 0 ? space : "|") + part.text;
    parts.push_back(part.naive);
  }
  out.naive = kind == 0 ? Naive::sequence(parts) : Naive::either(parts);
  out.text = open + out.text + ")";
  return out;
}

}  // namespace

TEST_CASE("masks of random regular expressions are those of a naive search, token by token") {
  const auto vocabulary = bundled_vocabulary();
  int64_t num_steps = 0, num_tokens = 0;
  for (int64_t seed = 0; seed < num_grammars(20); ++seed) {
    TestRng rng(static_cast<uint64_t>(seed) + 1);
    const Written written = random_expression(rng, 4, false, 0);
    auto rules = grammar::regex_rules(written.text);
    REQUIRE_MESSAGE(rules.ok(), rules.status().message());
    const auto constraint = grammar::make_constraint(std::move(*rules), vocabulary);
    REQUIRE_MESSAGE(constraint.ok(), constraint.status().message());
    NaiveLanguage naive(written.naive, {});
    const MaskCheck check = check_masks(**constraint, *vocabulary, naive, 2, 6, rng);
    REQUIRE_MESSAGE(check.difference.empty(), "seed " << seed << ", " << written.text << ": " << check.difference);
    num_steps += check.num_steps, num_tokens += check.num_tokens;
  }
  MESSAGE(num_steps << " steps, " << num_tokens << " tokens");
}

TEST_CASE("masks of what is repeated with a limit are those of a naive search, up to the limit and at it") {
  const auto vocabulary = bundled_vocabulary();
  for (int64_t seed = 0; seed < num_grammars(15); ++seed) {
    TestRng rng(static_cast<uint64_t>(seed) + 3'000'000);
    Written all = random_leaf(rng, false);
    std::vector<Naive> parts = {all.naive};
    for (int i = rng.between(1, 2); i > 0; --i) {
      const Written inner = random_expression(rng, rng.between(0, 1), false, 0), end = random_leaf(rng, false);
      const int min = rng.between(0, 3), max = rng.between(4, 12);
      all.text += "(?:" + inner.text + "){" + std::to_string(min) + "," + std::to_string(max) + "}" + end.text;
      parts.push_back(Naive::repeat(inner.naive, min, max));
      parts.push_back(end.naive);
    }
    auto rules = grammar::regex_rules(all.text);
    REQUIRE_MESSAGE(rules.ok(), rules.status().message());
    const auto constraint = grammar::make_constraint(std::move(*rules), vocabulary);
    REQUIRE_MESSAGE(constraint.ok(), constraint.status().message());
    NaiveLanguage naive(Naive::sequence(parts), {});
    const MaskCheck check = check_masks(**constraint, *vocabulary, naive, 2, 12, rng);
    REQUIRE_MESSAGE(check.difference.empty(), "seed " << seed << ", " << all.text << ": " << check.difference);
  }
}

TEST_CASE("masks of what must be repeated many times are those of a naive search, to the last time and behind it") {
  const auto vocabulary = bundled_vocabulary();
  for (int64_t seed = 0; seed < num_grammars(6); ++seed) {
    TestRng rng(static_cast<uint64_t>(seed) + 4'000'000);
    const Written begin = random_leaf(rng, false), inner = random_leaf(rng, false), end = random_leaf(rng, false);
    const int min = rng.between(30, 45), max = rng.between(0, 1) == 0 ? -1 : min + rng.between(0, 20);
    const std::string most = max < 0 ? "" : std::to_string(max);
    const std::string text = begin.text + "(?:" + inner.text + "){" + std::to_string(min) + "," + most + "}" + end.text;
    auto rules = grammar::regex_rules(text);
    REQUIRE_MESSAGE(rules.ok(), rules.status().message());
    const auto constraint = grammar::make_constraint(std::move(*rules), vocabulary);
    REQUIRE_MESSAGE(constraint.ok(), constraint.status().message());
    NaiveLanguage naive(Naive::sequence({begin.naive, Naive::repeat(inner.naive, min, max), end.naive}), {});
    const MaskCheck check = check_masks(**constraint, *vocabulary, naive, 2, 80, rng);
    REQUIRE_MESSAGE(check.difference.empty(), "seed " << seed << ", " << text << ": " << check.difference);
  }
}

TEST_CASE("masks of random grammars, recursive in every way, are those of a naive search") {
  const auto vocabulary = bundled_vocabulary();
  int64_t num_steps = 0, num_tokens = 0;
  for (int64_t seed = 0; seed < num_grammars(20); ++seed) {
    TestRng rng(static_cast<uint64_t>(seed) + 1'000'000);
    const int num_rules = rng.between(1, 4);
    std::map<std::string, Naive> naive_rules;
    const Written root = random_expression(rng, 2, true, num_rules);
    std::string text = "root ::= " + root.text + "\n";
    for (int rule = 0; rule < num_rules; ++rule) {
      const std::string name = "r" + std::to_string(rule);
      const Written leaf = random_leaf(rng, true), body = random_expression(rng, 3, true, num_rules);  // all end
      naive_rules[name] = Naive::either({leaf.naive, body.naive});
      text += name + " ::= " + leaf.text + " | " + body.text + "  # rule\n";
    }
    auto rules = grammar::read_gbnf(text);
    REQUIRE_MESSAGE(rules.ok(), text << rules.status().message());
    const auto constraint = grammar::make_constraint(std::move(*rules), vocabulary);
    REQUIRE_MESSAGE(constraint.ok(), constraint.status().message());
    NaiveLanguage naive(root.naive, naive_rules);
    const MaskCheck check = check_masks(**constraint, *vocabulary, naive, 2, 5, rng);
    REQUIRE_MESSAGE(check.difference.empty(), "seed " << seed << "\n" << text << check.difference);
    num_steps += check.num_steps, num_tokens += check.num_tokens;
  }
  MESSAGE(num_steps << " steps, " << num_tokens << " tokens");
}

TEST_CASE("masks of random JSON Schemas are those of a naive search") {
  const auto vocabulary = bundled_vocabulary();
  int64_t num_steps = 0, num_tokens = 0;
  for (int64_t seed = 0; seed < num_grammars(10); ++seed) {
    TestRng rng(static_cast<uint64_t>(seed) + 2'000'000);
    const RandomSchema random = random_schema(rng);
    auto rules = grammar::json_schema_rules(random.schema);
    REQUIRE_MESSAGE(rules.ok(), random.schema << rules.status().message());
    const auto constraint = grammar::make_constraint(std::move(*rules), vocabulary);
    REQUIRE_MESSAGE(constraint.ok(), constraint.status().message());
    NaiveLanguage naive(random.naive, random.rules);
    const MaskCheck check = check_masks(**constraint, *vocabulary, naive, 2, 8, rng);
    REQUIRE_MESSAGE(check.difference.empty(), "seed " << seed << "\n" << random.schema << "\n" << check.difference);
    num_steps += check.num_steps, num_tokens += check.num_tokens;
  }
  MESSAGE(num_steps << " steps, " << num_tokens << " tokens");
}

}  // namespace llmb::test
