// Forms that are made to take much are refused, by a count of work that is the same everywhere, or are cheap to follow.
#include "tests/support/hostile_forms.h"

#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <vector>

#include "engine/constraint_compiler.h"
#include "grammar/answer_forms.h"
#include "tests/support/mask_check.h"

namespace llmb::test {

namespace {

// Some token of the mask, or -1: none goes on.
TokenId pick(std::span<const uint32_t> mask, const grammar::Vocabulary& vocabulary, TestRng& rng) {
  std::vector<TokenId> tokens;
  for (TokenId token = 0; token < vocabulary.size(); ++token)
    if ((mask[token / 32] >> token % 32 & 1u) != 0 && !vocabulary.is_end_token(token)) tokens.push_back(token);
  return tokens.empty() ? -1 : tokens[rng.between(0, static_cast<int32_t>(tokens.size()) - 1)];
}

}  // namespace

TEST_CASE("hostile forms are refused the same way each time, or followed") {
  const auto vocabulary = bundled_vocabulary();
  int num_refused = 0, num_followed = 0;
  for (const HostileForm& hostile : hostile_forms()) {
    CAPTURE(hostile.name);
    ConstraintCompiler compiler([&] { return vocabulary; }), again([&] { return vocabulary; });
    const auto compiled = compiler.compile(hostile.form);
    const Status status = again.compile(hostile.form).status();
    CHECK(status.code() == compiled.status().code());
    CHECK(status.message() == compiled.status().message());
    if (!compiled.ok()) {
      CHECK(!status.message().empty());
      ++num_refused;
      continue;
    }
    ++num_followed;
    CHECK(compiled->constraint->num_bytes() <= grammar::kMaxArenaBytes);
    const auto state = compiled->constraint->start();
    TestRng rng(1);
    for (int step = 0; step < 20; ++step) {
      const TokenId token = pick(state->allowed(), *vocabulary, rng);
      if (token < 0) break;
      state->advance(token);
    }
  }
  MESSAGE(num_refused << " refused, " << num_followed << " followed");
  CHECK((num_refused >= 20 && num_followed >= 10));
}

TEST_CASE("work is counted: what is just within the limit compiles, a little more does not") {
  const auto status_of = [](int count) {
    std::vector<std::string> choices;
    for (int i = 0; i < count; ++i) choices.push_back(std::to_string(i * 7919 % 1'000'003));
    auto rules = grammar::choice_rules(choices);
    return rules.ok() ? grammar::make_constraint(std::move(*rules), bundled_vocabulary()).status() : rules.status();
  };
  CHECK(status_of(20'000).ok());
  const Status refused = status_of(400'000);
  CHECK(refused.code() == StatusCode::kResourceExhausted);
  CHECK(refused.message().find("100 ms and 64 MiB") != std::string::npos);
}

TEST_CASE("with little memory, grammars forget what walking added, and masks stay what they are") {
  const auto full = bundled_vocabulary();
  const auto bytes_of = [&](TokenId token) { return full->text(token); };
  // Every growth that is noted makes somebody forget.
  const auto small = std::make_shared<const grammar::Vocabulary>(full->size(), bytes_of, full->end_tokens(), size_t{1});
  const char* const kPatterns[] = {"([a-z]{2,40} ){1,30}end", "(\\d{1,30}|[a-f ]{1,60})*;x", ".{0,200}stop"};
  std::vector<std::unique_ptr<ConstraintState>> states, small_states;
  for (const char* pattern : kPatterns) {
    states.push_back((*grammar::make_constraint(*grammar::regex_rules(pattern), full))->start());
    small_states.push_back((*grammar::make_constraint(*grammar::regex_rules(pattern), small))->start());
  }
  TestRng rng(7);
  for (int step = 0; step < 150; ++step) {
    for (size_t i = 0; i < states.size(); ++i) {
      const auto mask = states[i]->allowed(), other = small_states[i]->allowed();
      REQUIRE(std::equal(mask.begin(), mask.end(), other.begin(), other.end()));
      const TokenId token = pick(mask, *full, rng);
      if (token < 0) continue;
      states[i]->advance(token);
      small_states[i]->advance(token);
    }
  }
  CHECK(small->walk_memory().num_bytes() <= 1);
}

}  // namespace llmb::test
