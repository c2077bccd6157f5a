// The checks that fuzz targets of forms share.
#pragma once

#include <memory>
#include <string>

#include "base/check.h"
#include "grammar/grammar_constraint.h"

namespace llmb::test {

// Every byte, some pairs and the beginnings of characters; token 256 ends an answer.
inline std::shared_ptr<const grammar::Vocabulary> fuzz_vocabulary() {
  static const auto vocabulary = std::make_shared<const grammar::Vocabulary>(
      300,
      [](TokenId token) -> std::string {
        if (token < 256) return std::string(1, static_cast<char>(token));
        static const std::string kLonger[] = {"aa", "ab", "\": ",     "\",",      "{\"",
                                              "}]", "1.", "\xC3\xA9", "\xE2\x82", "00"};
        return kLonger[static_cast<size_t>(token) % std::size(kLonger)];
      },
      std::vector<TokenId>{256});
  return vocabulary;
}

// Follows some answers: while there is no end, some token goes on, and what was allowed can be followed.
inline void check_form(Result<grammar::Rules> rules) {
  if (!rules.ok()) return LLMB_CHECK(!rules.status().message().empty());
  const auto vocabulary = fuzz_vocabulary();
  const auto constraint = grammar::make_constraint(std::move(*rules), vocabulary);
  if (!constraint.ok()) return LLMB_CHECK(!constraint.status().message().empty());
  for (uint32_t seed : {1u, 77u}) {
    const auto state = (*constraint)->start();
    for (int step = 0; step < 12; ++step) {
      const auto allowed = state->allowed();
      std::vector<TokenId> tokens;
      bool may_end = false;
      for (TokenId token = 0; token < vocabulary->size(); ++token) {
        if ((allowed[token / 32] >> token % 32 & 1u) == 0) continue;
        if (vocabulary->is_end_token(token)) may_end = true;
        else tokens.push_back(token);
      }
      LLMB_CHECK(may_end || !tokens.empty());
      if (tokens.empty()) break;
      seed = seed * 1664525u + 1013904223u;
      state->advance(tokens[(seed >> 8) % tokens.size()]);
    }
  }
}

}  // namespace llmb::test
