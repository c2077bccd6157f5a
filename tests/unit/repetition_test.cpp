#include "engine/repetition.h"

#include <doctest/doctest.h>

#include "tests/support/test_rng.h"

namespace llmb {
namespace {

// By a look at all tokens.
bool loops(const std::vector<TokenId>& answer, int32_t tokens) {
  const auto size = static_cast<int32_t>(answer.size());
  if (size < tokens) return false;
  for (int32_t period = 1; period <= tokens / 4; ++period) {
    bool repeats = true;
    for (int32_t at = size - tokens + period; at < size; ++at) repeats = repeats && answer[at] == answer[at - period];
    if (repeats) return true;
  }
  return false;
}

}  // namespace

TEST_CASE("a loop is found at the very token that completes it, as by a look at all tokens") {
  int num_loops = 0;
  for (uint64_t seed = 1; seed <= 400; ++seed) {
    test::TestRng rng(seed);
    const int32_t tokens = rng.between(kMinRepetitionTokens, 40), vocab = rng.between(1, 3);
    RepetitionWatch watch(tokens);
    std::vector<TokenId> answer;
    const int32_t period = rng.between(1, 14);
    for (int i = 0; i < 150; ++i) {
      const bool copies = static_cast<int32_t>(answer.size()) >= period && !rng.chance(0.02);
      answer.push_back(copies ? answer[answer.size() - period] : rng.between(0, vocab));
      const bool expected = loops(answer, tokens);
      REQUIRE(watch.add(answer.back()) == expected);
      num_loops += expected;
    }
  }
  CHECK(num_loops > 1000);
}

TEST_CASE("edges of a loop's length") {
  for (const int32_t tokens : {kMinRepetitionTokens, 9, 64, kMaxRepetitionTokens}) {
    RepetitionWatch watch(tokens);
    for (int32_t i = 1; i < tokens; ++i) CHECK(!watch.add(7));
    CHECK(watch.add(7));
    CHECK(!watch.add(8));
  }
}

}  // namespace llmb
