// Where a drafter by lookup finds how a text went on, and how many answers it keeps.
#include <doctest/doctest.h>

#include <vector>

#include "base/clock.h"
#include "speculation/lookup_drafter.h"
#include "tests/support/workload.h"

namespace llmb::test {

TEST_CASE("lookup drafts from the own text, from the corpus and from ended answers, whichever matches") {
  const auto draft = [](LookupDrafter& lookup, const Sequence& sequence) {
    std::vector<Guess> guesses(1);
    const Sequence* sequences[] = {&sequence};
    lookup.draft(sequences, {4, 0}, guesses);
    return guesses[0].tokens;
  };
  auto request = make_request(1, 100);
  request->prompt_tokens = {1, 2, 3, 4, 9, 1, 2};
  Sequence own(0, 0, request, BlockTable(16), 100, 0);
  const VirtualClock clock;
  LookupDrafter lookup(clock);
  CHECK(draft(lookup, own) == std::vector<TokenId>{3, 4, 9, 1});
  own.append_token(50);
  CHECK(draft(lookup, own).empty());
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

TEST_CASE("answers are kept up to a bound, the newest") {
  const VirtualClock clock;
  LookupDrafter lookup(clock, 1000);
  const auto request = make_request(1, 100);
  const auto end_one = [&](SeqId id, TokenId first) {
    Sequence sequence(id, 0, request, BlockTable(16), 100, 0);
    for (TokenId i = 0; i < 50; ++i) sequence.append_token(first + i);
    std::vector<Guess> guesses(1);
    const Sequence* sequences[] = {&sequence};
    lookup.draft(sequences, {4, 0}, guesses);
    lookup.forget(sequence);
  };
  for (SeqId id = 0; id < 100; ++id) end_one(id, static_cast<TokenId>(1000 * (id + 1)));
  const auto drafts_after = [&](TokenId token) {
    Sequence sequence(1000 + token, 0, request, BlockTable(16), 100, 0);
    sequence.append_token(token);
    std::vector<Guess> guesses(1);
    const Sequence* sequences[] = {&sequence};
    lookup.draft(sequences, {4, 0}, guesses);
    return guesses[0].tokens.size();
  };
  CHECK(drafts_after(100'005) == 4);
  CHECK(drafts_after(1005) == 0);
}

TEST_CASE("of answers that end while nobody asks for guesses the newest 2048 tokens are kept") {
  const VirtualClock clock;
  LookupDrafter lookup(clock);
  const auto draft = [&](const Sequence& sequence) {
    std::vector<Guess> guesses(1);
    const Sequence* sequences[] = {&sequence};
    lookup.draft(sequences, {4, 0}, guesses);
    return guesses[0].tokens.size();
  };
  const auto request = make_request(1, 100);
  for (SeqId id = 0; id < 200; ++id) {  // 201 tokens each, the prompt's included
    Sequence sequence(id, 0, request, BlockTable(16), 200, 0);
    for (TokenId i = 0; i < 200; ++i) sequence.append_token(static_cast<TokenId>(1000 * (id + 1)) + i);
    lookup.forget(sequence);
  }
  const auto drafts_after = [&](TokenId token) {
    Sequence sequence(1000 + token, 0, request, BlockTable(16), 100, 0);
    sequence.append_token(token);
    return draft(sequence);
  };
  CHECK(drafts_after(200'005) == 4);
  CHECK(drafts_after(191'005) == 4);  // the tenth from the end
  CHECK(drafts_after(190'005) == 0);
}

}  // namespace llmb::test
