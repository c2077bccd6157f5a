// The suffix automaton against a search through the whole text.
#include <doctest/doctest.h>

#include <algorithm>
#include <span>
#include <vector>

#include "speculation/suffix_automaton.h"
#include "tests/support/test_rng.h"

namespace llmb::test {

namespace {

using Text = std::vector<TokenId>;

// Whether the last `length` tokens of `of` stand in `text` and end at `end`.
bool ends_alike(const Text& text, int32_t end, const Text& of, int32_t length) {
  return length <= end && length <= static_cast<int32_t>(of.size()) &&
         std::equal(of.end() - length, of.end(), text.begin() + (end - length)) &&
         std::count(of.end() - length, of.end(), SuffixAutomaton::kTextEnd) == 0;
}

// The longest end of `of` that stands in text[0, limit).
int32_t longest_end(const Text& text, int32_t limit, const Text& of) {
  int32_t best = 0;
  for (int32_t end = 1; end <= limit; ++end)
    while (ends_alike(text, end, of, best + 1)) ++best;
  return best;
}

Text random_text(TestRng* rng, int32_t size, int32_t num_tokens, double end_rate) {
  Text text;
  while (static_cast<int32_t>(text.size()) < size) {
    if (!text.empty() && rng->chance(0.1)) {  // repeats a part
      const int32_t begin = rng->between(0, static_cast<int32_t>(text.size()) - 1);
      const int32_t count = rng->between(1, 20);
      for (int32_t i = begin; i < begin + count; ++i) text.push_back(text[i]);
    } else {
      text.push_back(rng->chance(end_rate) ? SuffixAutomaton::kTextEnd : rng->between(0, num_tokens - 1));
    }
  }
  return text;
}

}  // namespace

TEST_CASE("the longest end that occurs before, at a place where it does, after every token of random texts") {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    TestRng rng(seed);
    const Text text = random_text(&rng, rng.between(1, 90), rng.between(1, 5), seed % 2 ? 0.05 : 0);
    SuffixAutomaton automaton;
    CHECK(automaton.repeated_end().length == 0);
    Text so_far;
    for (const TokenId token : text) {
      automaton.append(token);
      so_far.push_back(token);
      const SuffixAutomaton::Match match = automaton.repeated_end();
      REQUIRE(match.length == longest_end(so_far, automaton.size() - 1, so_far));
      if (match.length == 0) continue;
      REQUIRE(match.end < automaton.size());
      REQUIRE(ends_alike(so_far, match.end, so_far, match.length));
    }
  }
}

TEST_CASE("a cursor finds the longest end of another text, also where the automaton's text grows meanwhile") {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    TestRng rng(seed);
    const int32_t num_tokens = rng.between(1, 5);
    const Text text = random_text(&rng, rng.between(1, 90), num_tokens, 0.03),
               other = random_text(&rng, 90, num_tokens, 0);
    SuffixAutomaton automaton;
    SuffixAutomaton::Cursor cursor;
    const bool grows = seed % 2 == 1;
    Text so_far;
    size_t at = 0;
    for (const TokenId token : other) {
      for (size_t end = grows ? std::min(text.size(), at + rng.between(0, 2)) : text.size(); at < end; ++at)
        automaton.append(text[at]);
      so_far.push_back(token);
      cursor.advance(automaton, token);
      const SuffixAutomaton::Match match = cursor.match(automaton);
      REQUIRE((match.length == 0 || ends_alike(text, match.end, so_far, match.length)));
      const int32_t longest = longest_end(text, automaton.size(), so_far);
      // Text appended behind the cursor's back is found from the next mismatch on.
      if (grows) REQUIRE(match.length <= longest);
      else REQUIRE(match.length == longest);
    }
  }
}

TEST_CASE("a match goes on as its text does: around where that ends, and not into another text") {
  SuffixAutomaton automaton;
  for (const TokenId token : {5, 6, 7, SuffixAutomaton::kTextEnd, 1, 2, 1, 2}) automaton.append(token);
  std::vector<TokenId> out;
  REQUIRE(automaton.repeated_end().length == 2);
  REQUIRE(automaton.repeated_end().end == 6);
  automaton.continue_match(automaton.repeated_end(), 5, &out);
  CHECK(out == std::vector<TokenId>{1, 2, 1, 2, 1});
  out.clear();
  automaton.continue_match({1, 1}, 5, &out);
  CHECK(out == std::vector<TokenId>{6, 7});
  out.clear();
  automaton.continue_match({2, 8}, 5, &out);  // the end of the text
  automaton.continue_match({0, 3}, 5, &out);
  CHECK(out.empty());
}

TEST_CASE("memory: at most 80 bytes a token, of texts that are as hard as can be") {
  TestRng rng(1);
  std::vector<Text> texts = {random_text(&rng, 100'000, 2, 0), random_text(&rng, 100'000, 50, 0),
                             random_text(&rng, 100'000, 100'000, 0), Text(100'000, 1)};
  texts.emplace_back();  // abbb…bc, abcabc…
  for (int32_t i = 0; i < 100'000; ++i) texts.back().push_back(i < 50'000 ? 2 + (i > 0) : i % 3 + 1);
  for (const Text& text : texts) {
    SuffixAutomaton automaton;
    for (const TokenId token : text) automaton.append(token);
    MESSAGE((static_cast<double>(automaton.num_bytes()) / automaton.size()) << " bytes a token");
    CHECK(automaton.num_bytes() <= int64_t{80} * automaton.size());
  }
}

}  // namespace llmb::test
