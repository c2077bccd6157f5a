// Guesses as trees: what is kept, in which order, and what is expected of it.
#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "speculation/draft_confidence.h"
#include "speculation/guess.h"
#include "tests/support/test_rng.h"

namespace llmb::test {

namespace {

// 10 11 and beside it 20 21; 12 behind 11.
Guess small_tree() {
  Guess guess;
  guess.add(10, -1, 0.5, 0);
  guess.add(20, -1, 0.3, 1);
  guess.add(11, 0, 0.5, 2);
  guess.add(21, 1, 0.9, 3);
  guess.add(12, 2, 1.0, 4);
  return guess;
}

Guess random_tree(TestRng* rng) {
  Guess guess;
  for (int32_t i = 0, count = rng->between(0, 20); i < count; ++i)
    guess.add(i, rng->chance(0.6) ? i - 1 : rng->between(-1, i - 1), 0.1 * rng->between(0, 10), i);
  return guess;
}

bool has_valid_parents(const Guess& guess) {
  for (int32_t i = 0; i < guess.size(); ++i)
    if (guess.parent(i) < -1 || guess.parent(i) >= i) return false;
  return guess.parents.empty() || guess.parents.size() == guess.tokens.size();
}

}  // namespace

TEST_CASE("a chain has no parents until a token stands beside another") {
  Guess guess;
  CHECK(guess.add(5, -1, 0.5, 0) == 0);
  CHECK(guess.add(6, 0, 0.5, 0) == 1);
  CHECK(guess.parents.empty());
  CHECK(guess.add(7, 0, 0.25, 0) == 2);
  CHECK(guess.parents == std::vector<int32_t>{-1, 0, 0});
  CHECK(guess.find(0, 7) == 2);
  CHECK(guess.find(0, 5) == -1);
  CHECK(guess.find(-1, 5) == 0);
  CHECK(guess.expected() == doctest::Approx(0.5 + 0.25 + 0.125));
}

TEST_CASE("the likeliest tokens are kept, with all that stands before them, and whole paths come first") {
  Guess guess = small_tree();  // 0.5, 0.3, 0.25, 0.27, 0.25
  guess.put_likeliest_first();
  CHECK(guess.tokens == std::vector<TokenId>{10, 11, 12, 20, 21});
  CHECK(guess.parents == std::vector<int32_t>{-1, 0, 1, -1, 3});
  CHECK(guess.kinds == std::vector<int32_t>{0, 2, 4, 1, 3});
  guess.keep_likeliest(3);
  CHECK(guess.tokens == std::vector<TokenId>{10, 20, 21});
  CHECK(guess.parents == std::vector<int32_t>{-1, -1, 1});
  guess = small_tree();
  guess.keep({true, false, true, false, true});
  CHECK(guess.tokens == std::vector<TokenId>{10, 11, 12});
  CHECK(guess.parents.empty());  // a chain again
  guess.keep_first(1);
  CHECK(guess.tokens == std::vector<TokenId>{10});
}

TEST_CASE("whatever is kept is a tree, and no other choice of as many tokens expects more") {
  TestRng rng(1);
  for (int32_t trial = 0; trial < 2000; ++trial) {
    const Guess whole = random_tree(&rng);
    std::vector<double> probabilities = whole.probabilities();
    std::sort(probabilities.rbegin(), probabilities.rend());
    Guess kept = whole;
    const int32_t count = rng.between(0, 20);
    kept.keep_likeliest(count);
    double most = 0;
    for (int32_t i = 0; i < std::min(count, whole.size()); ++i) most += probabilities[i];
    REQUIRE(kept.size() == std::min(count, whole.size()));
    REQUIRE(has_valid_parents(kept));
    REQUIRE(kept.expected() == doctest::Approx(most));
    kept.put_likeliest_first();
    REQUIRE(has_valid_parents(kept));
    REQUIRE(kept.expected() == doctest::Approx(most));
    for (int32_t i = 0; i < kept.size(); ++i) {  // tokens are places in the whole tree
      const int32_t parent = kept.parent(i) < 0 ? -1 : kept.tokens[kept.parent(i)];
      REQUIRE(whole.parent(kept.tokens[i]) == parent);
    }
  }
}

TEST_CASE("a model that is surer than it is right is corrected, each of its best tokens by itself") {
  DraftConfidence confidence;
  StepOutput output;
  output.clear();
  output.tokens = {7};
  output.logprobs = {-0.05f};
  output.token_start.push_back(1);
  output.top_tokens = {7, 8, 9};
  output.top_logprobs = {-0.05f, -3.5f, -4.0f};
  output.top_start.push_back(3);
  const auto guess = [&](bool is_sampled) {
    Guess made;
    CHECK(confidence.add(output, 0, is_sampled, -1, &made) == 0);
    return made;
  };
  const Guess before = guess(false);
  CHECK(before.tokens == std::vector<TokenId>{7, 8, 9});
  CHECK(before.parents == std::vector<int32_t>{-1, -1, -1});
  CHECK(before.acceptance[0] > 0.9);
  CHECK(before.acceptance[1] < 0.1);
  const std::vector<Verdict> verdicts = {Verdict::kWrong, Verdict::kRight, Verdict::kUnknown};
  for (int i = 0; i < 100; ++i) confidence.learn(before, verdicts);
  const Guess after = guess(false);
  CHECK(after.acceptance[0] < 0.1);
  CHECK(after.acceptance[1] > 0.9);
  CHECK(after.acceptance[2] == before.acceptance[2]);
  CHECK(guess(true).acceptance[0] > 0.9);  // sampled answers are others
  CHECK(DraftConfidence::rank(after.kinds[0]) == 0);
  CHECK(DraftConfidence::rank(after.kinds[2]) == 2);
}

}  // namespace llmb::test
