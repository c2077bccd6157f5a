#include "engine/token_rules.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "tests/support/source_dir.h"
#include "tests/support/test_rng.h"
#include "tests/support/toy_constraint.h"

namespace llmb {
namespace {

bool may_be(ConstraintState& state, TokenId token) { return (state.allowed()[token / 32] >> token % 32 & 1u) != 0; }

}  // namespace

TEST_CASE("random rules allow at each step what a look at the whole answer allows") {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    test::TestRng rng(seed);
    const int32_t vocab = rng.between(1, 70);
    std::vector<TokenId> allowed;
    std::vector<std::vector<TokenId>> bad(static_cast<size_t>(rng.between(0, 4)));
    if (rng.chance(0.5))
      for (int i = rng.between(1, 8); i > 0; --i) allowed.push_back(rng.between(0, vocab - 1));
    for (auto& sequence : bad)
      for (int i = rng.between(1, 3); i > 0; --i) sequence.push_back(rng.between(0, std::min(vocab - 1, 3)));
    const auto form = rng.chance(0.5) ? std::make_shared<test::ToyConstraint>(seed, vocab, 2, std::vector<TokenId>()) : nullptr;
    const auto constraint = with_token_rules(form, allowed, bad, vocab);
    const auto state = constraint->start();
    const auto form_state = form == nullptr ? nullptr : form->start();
    std::vector<TokenId> answer;
    for (int step = 0; step < 12; ++step) {
      std::vector<TokenId> left;
      for (TokenId token = 0; token < vocab; ++token) {
        bool expected = allowed.empty() || std::count(allowed.begin(), allowed.end(), token) > 0;
        expected = expected && (form_state == nullptr || may_be(*form_state, token));
        std::vector<TokenId> next = answer;
        next.push_back(token);
        for (const auto& sequence : bad)
          expected = expected && !(next.size() >= sequence.size() &&
                                   std::equal(sequence.rbegin(), sequence.rend(), next.rbegin()));
        REQUIRE(may_be(*state, token) == expected);
        if (expected) left.push_back(token);
      }
      if (vocab % 32 != 0) REQUIRE((state->allowed().back() >> vocab % 32) == 0u);
      if (left.empty()) break;
      const TokenId token = left[static_cast<size_t>(rng.between(0, static_cast<int32_t>(left.size()) - 1))];
      answer.push_back(token);
      state->advance(token);
      if (form_state != nullptr) form_state->advance(token);
    }
  }
}

TEST_CASE("a bad word is its own tokens, and those behind a space where these are as many") {
  const auto tokenizer = Tokenizer::load(test::source_dir() + "/data/model");
  REQUIRE(tokenizer.ok());
  const auto plain = (*tokenizer)->encode("girl", false), spaced = (*tokenizer)->encode(" girl", false);
  REQUIRE(plain[0] != spaced[0]);
  auto found = bad_sequences({"girl"}, **tokenizer);
  CHECK(std::count(found.begin(), found.end(), plain) == 1);
  CHECK(std::count(found.begin(), found.end(), spaced) == (plain.size() == spaced.size()));
  CHECK(bad_sequences({" girl"}, **tokenizer) == found);
  CHECK(bad_sequences({}, **tokenizer).empty());
  found = bad_sequences({"\n"}, **tokenizer);
  CHECK(std::count(found.begin(), found.end(), (*tokenizer)->encode("\n", false)) == 1);
}

}  // namespace llmb
