#include "grammar/shared_tokens.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "core/step_plan.h"
#include "grammar/expr.h"
#include "grammar/grammar_constraint.h"
#include "grammar/json_schema.h"
#include "grammar/vocabulary.h"

namespace llmb::grammar {
namespace {

// Every byte, and every pair of small letters; token 256 + 26 * 26 ends an answer.
std::shared_ptr<const Vocabulary> pairs_vocabulary() {
  const auto bytes_of = [](TokenId token) {
    if (token < 256) return std::string(1, static_cast<char>(token));
    return std::string{static_cast<char>('a' + (token - 256) / 26), static_cast<char>('a' + (token - 256) % 26)};
  };
  return std::make_shared<const Vocabulary>(256 + 26 * 26 + 1, bytes_of, std::vector<TokenId>{256 + 26 * 26});
}

std::string written_of(ExprArena* arena, bool is_reversed) {
  const ExprId a = is_reversed ? arena->literal("second") : arena->literal("first");
  const ExprId b = is_reversed ? arena->literal("first") : arena->literal("second");
  return arena->written(arena->concat(arena->repeat(arena->either(a, b), 1, 5), arena->byte('"')));
}

}  // namespace

TEST_CASE("an expression is written the same in every arena, another one otherwise") {
  ExprArena one, other;
  other.literal("something that was there before");
  CHECK(written_of(&one, false) == written_of(&other, true));
  CHECK(!written_of(&one, false).empty());
  CHECK(one.written(one.repeat(one.byte('a'), 1, 5)) != one.written(one.repeat(one.byte('a'), 1, 6)));
  CHECK(one.written(one.repeat(one.byte('a'), 1, 5)) != one.written(one.repeat(one.byte('b'), 1, 5)));
  CHECK(one.written(one.literal("ab")) != one.written(one.literal("ba")));
  CHECK(one.written(one.complement(one.literal("ab"))) != one.written(one.literal("ab")));
  CHECK(one.written(one.call(0)).empty());
  CHECK(one.written(one.literal(std::string(2000, 'x'))).empty());
}

TEST_CASE("schemas over one vocabulary share what they allow in strings, and get what one alone gets") {
  const std::string schemas[] = {R"({"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]})",
                                 R"({"type": "array", "items": {"type": "string", "maxLength": 7}})"};
  const std::string texts[] = {R"({"a": "some text here)", R"(["some te)"};
  const auto together = pairs_vocabulary();
  for (int turn = 0; turn < 2; ++turn) {
    for (int i = 0; i < 2; ++i) {
      const auto alone = pairs_vocabulary();
      const auto shared = *make_constraint(*json_schema_rules(schemas[i]), together);
      const auto own = *make_constraint(*json_schema_rules(schemas[i]), alone);
      const auto a = shared->start(), b = own->start();
      for (const char c : texts[i]) {
        const auto left = a->allowed(), right = b->allowed();
        REQUIRE(std::equal(left.begin(), left.end(), right.begin(), right.end()));
        a->advance(static_cast<TokenId>(c));
        b->advance(static_cast<TokenId>(c));
      }
    }
  }
}

TEST_CASE("strings of schemas with other names are looked up once, whatever is missing of a limit that no token reaches") {
  const auto vocabulary = pairs_vocabulary();
  const auto follow = [&](const std::string& name, const std::string& limits, const std::string& text) {
    const std::string schema = R"({"type": "object", "properties": {")" + name + R"(": {"type": "string")" + limits +
                               R"(}}, "required": [")" + name + R"("]})";
    const auto constraint = *make_constraint(*json_schema_rules(schema), vocabulary);
    const auto state = constraint->start();
    for (const char c : R"({")" + name + R"(": ")" + text) {
      REQUIRE(is_allowed(state->allowed(), static_cast<TokenId>(c)));
      state->advance(static_cast<TokenId>(c));
    }
    CHECK(is_allowed(state->allowed(), static_cast<TokenId>('"')) == limits.empty());
    return vocabulary->shared_tokens().size();
  };
  const size_t num_plain = follow("first", "", "text");
  CHECK(num_plain > 0);
  CHECK(follow("second", "", "another text") == num_plain);
  const size_t num_limited = follow("third", R"(, "minLength": 480)", "t");
  CHECK(num_limited > num_plain);
  CHECK(follow("fourth", R"(, "minLength": 480)", "some text") == num_limited);
  CHECK(follow("fifth", R"(, "minLength": 200, "maxLength": 900)", "longer") == num_limited);
}

TEST_CASE("what is added is found; the first stays") {
  SharedTokens shared;
  CHECK(shared.find("x") == nullptr);
  const auto first = std::make_shared<const ExprTokens>(ExprTokens{{1, 2}, {}, {3}});
  shared.add("x", first);
  shared.add("x", std::make_shared<const ExprTokens>());
  CHECK(shared.find("x") == first);
  const auto huge = std::make_shared<const ExprTokens>(ExprTokens{Mask(size_t{20} << 20), {}, {}});
  shared.add("y", huge);
  CHECK(shared.find("y") == nullptr);
}

}  // namespace llmb::grammar
