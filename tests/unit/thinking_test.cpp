// Random answers under a budget, compared with a look at their whole text.
#include "engine/thinking.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "core/request.h"
#include "tests/support/test_rng.h"
#include "tests/support/toy_constraint.h"

namespace llmb {
namespace {

// Tags of one token, tags that many tokens spell, and tokens that hold more than a tag.
const std::vector<std::string> kTokens = {"a",  "b",   " ",   "<",  "t>",  "/",  "</",   "<t", ">",
                                          "t>b", "x</t>", "</t>", "</t>a", "<t>", "a<t>b", "\n", "\xff<e>"};
constexpr TokenId kEnd = 16;

std::shared_ptr<const grammar::Vocabulary> vocabulary() {
  return std::make_shared<const grammar::Vocabulary>(
      static_cast<int32_t>(kTokens.size()), [](TokenId token) { return kTokens[token]; }, std::vector<TokenId>{kEnd});
}

ThinkingRules rules(std::optional<int32_t> budget) {
  ThinkingRules r;
  r.begin = "<t>";
  r.end = "</t>";
  r.opening = {13};
  r.closing = {6, 4};  // "</" "t>"
  r.heading = {15};
  r.budget = budget;
  return r;
}

bool may_be(ConstraintState& state, TokenId token) { return (state.allowed()[token / 32] >> token % 32 & 1u) != 0; }

std::vector<TokenId> allowed(ConstraintState& state) {
  std::vector<TokenId> tokens;
  for (TokenId token = 0; token < static_cast<TokenId>(kTokens.size()); ++token)
    if (may_be(state, token)) tokens.push_back(token);
  return tokens;
}

}  // namespace

TEST_CASE("no answer thinks longer than its budget, and the end tag follows at once") {
  int num_forced = 0, num_natural = 0;
  for (uint64_t seed = 1; seed <= 3000; ++seed) {
    test::TestRng rng(seed);
    const int32_t budget = rng.between(0, 6);
    ThinkingRules r = rules(budget);
    r.starts_inside = rng.chance(0.5);
    const auto constraint = with_thinking(nullptr, r, vocabulary());
    const auto state = constraint->start();
    std::string text;
    size_t begin = r.starts_inside ? 0 : std::string::npos;  // of the reasoning
    int32_t num_inside = 0;
    bool is_over = false;
    for (int step = 0; step < 30; ++step) {
      const std::vector<TokenId> choices = allowed(*state);
      REQUIRE(!choices.empty());
      const bool is_inside = begin != std::string::npos && !is_over;
      if (is_inside && num_inside >= budget) {
        REQUIRE(choices == std::vector<TokenId>{6});
        state->advance(6);
        REQUIRE(allowed(*state) == std::vector<TokenId>{4});
        state->advance(4);
        is_over = true;
        ++num_forced;
        continue;
      }
      REQUIRE(choices.size() == kTokens.size());
      const bool opens = begin == std::string::npos && step == 0 && rng.chance(0.7);
      const TokenId token = opens ? 13 : rng.between(0, kEnd - 1);
      state->advance(token);
      if (is_over) continue;
      text += kTokens[token];
      if (is_inside) {
        ++num_inside;
        if (text.find("</t>", begin) != std::string::npos) is_over = true, ++num_natural;
      } else if (const size_t first = text.find_first_not_of(" \n"); first != std::string::npos) {
        const std::string rest = text.substr(first);
        if (rest.starts_with("<t>")) begin = text.size();
        else if (!std::string("<t>").starts_with(rest)) is_over = true;
      }
    }
  }
  CHECK(num_forced > 300);
  CHECK(num_natural > 300);
}

TEST_CASE("a form begins behind the reasoning, and sees none of it") {
  int num_with = 0, num_without = 0;
  for (uint64_t seed = 1; seed <= 2000; ++seed) {
    test::TestRng rng(seed);
    ThinkingRules r = rules(rng.chance(0.5) ? std::optional<int32_t>(rng.between(0, 5)) : std::nullopt);
    r.starts_inside = rng.chance(0.4);
    const auto form = std::make_shared<test::ToyConstraint>(seed, static_cast<int32_t>(kTokens.size()), 3,
                                                            std::vector<TokenId>{kEnd});
    const auto expected = form->start();
    const auto constraint = with_thinking(form, r, vocabulary());
    const auto state = constraint->start();
    bool is_inside = r.starts_inside, is_behind = false;
    std::string text;
    for (int step = 0; step < 40; ++step) {
      const std::vector<TokenId> choices = allowed(*state);
      if (is_inside) {
        REQUIRE(!choices.empty());
        const TokenId token = choices[static_cast<size_t>(rng.between(0, static_cast<int32_t>(choices.size()) - 1))];
        REQUIRE(token != kEnd);
        text += kTokens[token];
        state->advance(token);
        const size_t end = text.find("</t>");
        if (end == std::string::npos) continue;
        REQUIRE(end + 4 == text.size());  // nothing behind it in the same token
        REQUIRE(allowed(*state) == std::vector<TokenId>{15});
        state->advance(15);
        is_inside = false, is_behind = true;
        ++num_with;
        continue;
      }
      std::vector<TokenId> wanted = allowed(*expected);
      const bool form_has_opening = std::count(wanted.begin(), wanted.end(), 13) > 0;
      if (step == 0 && !is_behind && !form_has_opening) wanted.push_back(13), std::sort(wanted.begin(), wanted.end());
      REQUIRE(choices == wanted);
      if (wanted.empty()) break;
      const TokenId token = wanted[static_cast<size_t>(rng.between(0, static_cast<int32_t>(wanted.size()) - 1))];
      if (token == kEnd) break;
      state->advance(token);
      if (step == 0 && !is_behind && token == 13 && !form_has_opening) is_inside = true;
      else expected->advance(token), ++num_without;
    }
  }
  CHECK(num_with > 200);
  CHECK(num_without > 200);
}

TEST_CASE("reasoning that may begin again has one budget in all") {
  ThinkingRules r = rules(3);
  r.may_return = true;
  const auto constraint = with_thinking(nullptr, r, vocabulary());
  const auto state = constraint->start();
  for (const TokenId token : {13, 0, 11, 0, 13, 0, 1}) {  // <t> a </t> a <t> a b: three tokens of reasoning
    REQUIRE(may_be(*state, token));
    state->advance(token);
  }
  CHECK(allowed(*state) == std::vector<TokenId>{6});
}

}  // namespace llmb
