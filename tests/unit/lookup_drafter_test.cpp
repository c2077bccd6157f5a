// Where a drafter by lookup finds how a text went on, and how many answers it keeps.
#include <doctest/doctest.h>

#include <vector>

#include "base/clock.h"
#include "speculation/lookup_drafter.h"
#include "tests/support/workload.h"

namespace llmb::test {

namespace {

std::vector<TokenId> draft(LookupDrafter& lookup, const Sequence& sequence, int32_t max_tokens = 4) {
  std::vector<Guess> guesses(1);
  const Sequence* sequences[] = {&sequence};
  lookup.draft(sequences, {max_tokens, 0}, guesses);
  return guesses[0].tokens;
}

// Drafts behind an answer that is a prompt of two tokens and these, which appear one by one.
std::vector<TokenId> draft_behind(const std::vector<TokenId>& answer, int32_t max_tokens) {
  auto request = make_request(2, 100);
  request->prompt_tokens = {1000, 1001};
  Sequence sequence(0, 0, request, BlockTable(16), 100, 0);
  const VirtualClock clock;
  LookupDrafter lookup(clock);
  for (const TokenId token : answer) {
    draft(lookup, sequence);
    sequence.append_token(token);
  }
  return draft(lookup, sequence, max_tokens);
}

// Four tokens of a text that counts up are drafted behind one of them.
bool goes_on(LookupDrafter& lookup, TokenId token) {
  Sequence sequence(1'000'000 + token, 0, make_request(1, 100), BlockTable(16), 100, 0);
  sequence.append_token(token);
  return draft(lookup, sequence) == std::vector<TokenId>{token + 1, token + 2, token + 3, token + 4};
}

}  // namespace

TEST_CASE("lookup drafts from the own text, from the corpus and from ended answers, whichever matches") {
  auto request = make_request(1, 100);
  request->prompt_tokens = {1, 2, 3, 4, 9, 1, 2};
  Sequence own(0, 0, request, BlockTable(16), 100, 0);
  const VirtualClock clock;
  LookupDrafter lookup(clock);
  CHECK(draft(lookup, own) == std::vector<TokenId>{3, 4, 9, 1});
  own.append_token(50);  // new: by a rule
  CHECK(draft(lookup, own) == std::vector<TokenId>{4, 9, 1, 2});
  lookup.add_to_corpus(std::vector<TokenId>{60, 61, 62, 63});
  own.append_token(61);
  CHECK(draft(lookup, own) == std::vector<TokenId>{62, 63});
  own.append_token(70);
  own.append_token(71);
  lookup.forget(own);  // it is an answer now
  Sequence other(1, 0, make_request(1, 100), BlockTable(16), 100, 0);
  other.append_token(61);
  other.append_token(70);
  CHECK(draft(lookup, other) == std::vector<TokenId>{71});
}

TEST_CASE("behind a token that is new lookup goes on as if it stood for the one behind the last match") {
  CHECK(draft_behind({1, 2, 3, 4, 5, 6, 1, 2, 9}, 4) == std::vector<TokenId>{4, 5, 6, 1});
  CHECK(draft_behind({1, 2, 3, 4, 5, 6, 1, 2, 9, 10}, 4) == std::vector<TokenId>{5, 6, 1, 2});  // for two
}

TEST_CASE("behind a token that is new lookup takes the rule that was right most often, whether it was drafted by or not") {
  // Behind new ones there is a 7. The last match goes on with an 8, and then with what was new before.
  CHECK(draft_behind({20, 7, 8, 8, 8, 8, 21, 7, 8, 8, 8, 22, 7, 8, 8, 23}, 3) == std::vector<TokenId>{7, 8, 8});
  // New ones stand twice.
  CHECK(draft_behind({5, 5, 1, 6, 6, 1, 7, 7, 1, 8}, 3) == std::vector<TokenId>{8, 8, 8});
}

TEST_CASE("answers are kept up to a bound, the newest") {
  const VirtualClock clock;
  LookupDrafter lookup(clock, 1000);
  const auto request = make_request(1, 100);
  const auto end_one = [&](SeqId id, TokenId first) {
    Sequence sequence(id, 0, request, BlockTable(16), 100, 0);
    for (TokenId i = 0; i < 50; ++i) sequence.append_token(first + i);
    draft(lookup, sequence);
    lookup.forget(sequence);
  };
  for (SeqId id = 0; id < 100; ++id) end_one(id, static_cast<TokenId>(1000 * (id + 1)));
  CHECK(goes_on(lookup, 100'005));
  CHECK_FALSE(goes_on(lookup, 1005));
}

TEST_CASE("of answers that end while nobody asks for guesses the newest 2048 tokens are kept") {
  const VirtualClock clock;
  LookupDrafter lookup(clock);
  const auto request = make_request(1, 100);
  for (SeqId id = 0; id < 200; ++id) {  // 201 tokens each, the prompt's included
    Sequence sequence(id, 0, request, BlockTable(16), 200, 0);
    for (TokenId i = 0; i < 200; ++i) sequence.append_token(static_cast<TokenId>(1000 * (id + 1)) + i);
    lookup.forget(sequence);
  }
  CHECK(goes_on(lookup, 200'005));
  CHECK(goes_on(lookup, 191'005));  // the tenth from the end
  CHECK_FALSE(goes_on(lookup, 190'005));
}

}  // namespace llmb::test
