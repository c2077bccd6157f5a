// Masks of a constraint against a naive judge of strings: every token of a vocabulary at every step of random answers.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "core/token_constraint.h"
#include "grammar/vocabulary.h"
#include "tests/support/naive_language.h"
#include "tests/support/test_rng.h"

namespace llmb::test {

struct MaskCheck {
  std::string difference;  // "": none
  std::string text;        // of the last answer
  int64_t num_steps = 0, num_tokens = 0;
};

// Follows `num_answers` random answers for at most `max_steps` tokens each.
MaskCheck check_masks(const TokenConstraint& constraint, const grammar::Vocabulary& vocabulary, NaiveLanguage& naive,
                      int num_answers, int max_steps, TestRng& rng);

// A token that the mask allows and that goes on with the answer; none: there is no such.
std::optional<TokenId> draw_allowed(const grammar::Vocabulary& vocabulary, std::span<const uint32_t> allowed,
                                    TestRng& rng);

// The vocabulary of the bundled model.
std::shared_ptr<const grammar::Vocabulary> bundled_vocabulary();

}  // namespace llmb::test
