#include "tests/support/mask_check.h"

#include <map>

#include "core/step_plan.h"
#include "engine/constraint_vocabulary.h"
#include "tests/support/source_dir.h"

namespace llmb::test {

MaskCheck check_masks(const TokenConstraint& constraint, const grammar::Vocabulary& vocabulary, NaiveLanguage& naive,
                      int num_answers, int max_steps, TestRng& rng) {
  MaskCheck result;
  for (int answer = 0; answer < num_answers; ++answer) {
    const auto state = constraint.start();
    std::string& text = result.text;
    text.clear();
    for (int step = 0; step < max_steps; ++step) {
      ++result.num_steps;
      const auto allowed = state->allowed();
      std::vector<TokenId> going_on;
      std::map<char, bool> may_begin;  // with a byte: where it may not, no token that begins with it may
      const auto is_viable = [&](const std::string& token) {
        const auto [at, is_new] = may_begin.emplace(token[0], false);
        if (is_new) at->second = naive.judge(text + token[0]).is_viable;
        return at->second && naive.judge(text + token).is_viable;
      };
      for (TokenId token = 0; token < vocabulary.size(); ++token) {
        const bool is_end = vocabulary.is_end_token(token), is_part = !vocabulary.text(token).empty();
        const bool expected = is_end ? naive.judge(text).is_complete : is_part && is_viable(vocabulary.text(token));
        const bool is_allowed = (allowed[token / 32] >> token % 32 & 1) != 0;
        ++result.num_tokens;
        if (is_allowed && !is_end) going_on.push_back(token);
        if (is_allowed == expected) continue;
        result.difference = "behind \"" + text + "\" token " + std::to_string(token) + " \"" + vocabulary.text(token) +
                            "\" is " + (is_allowed ? "allowed" : "not allowed");
        return result;
      }
      if (going_on.empty()) break;
      // Long tokens first: short ones would be drawn nearly always.
      TokenId chosen = going_on[rng.between(0, static_cast<int32_t>(going_on.size()) - 1)];
      for (int i = 0; i < 2; ++i) {
        const TokenId other = going_on[rng.between(0, static_cast<int32_t>(going_on.size()) - 1)];
        if (vocabulary.text(other).size() > vocabulary.text(chosen).size()) chosen = other;
      }
      state->advance(chosen);
      text += vocabulary.text(chosen);
    }
  }
  return result;
}

std::optional<TokenId> draw_allowed(const grammar::Vocabulary& vocabulary, std::span<const uint32_t> allowed,
                                    TestRng& rng) {
  std::vector<TokenId> tokens;
  for (TokenId token = 0; token < vocabulary.size(); ++token)
    if (is_allowed(allowed, token) && !vocabulary.is_end_token(token)) tokens.push_back(token);
  if (tokens.empty()) return std::nullopt;
  return tokens[rng.between(0, static_cast<int32_t>(tokens.size()) - 1)];
}

std::shared_ptr<const grammar::Vocabulary> bundled_vocabulary() {
  const auto tokenizer = Tokenizer::load(source_dir() + "/data/model");
  return constraint_vocabulary(**tokenizer, (*tokenizer)->vocab_size(), {(*tokenizer)->eos_token_id().value()});
}

}  // namespace llmb::test
