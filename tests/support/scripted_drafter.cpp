#include "tests/support/scripted_drafter.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace llmb::test {

ScriptedDrafter::ScriptedDrafter(LedgerModel model, int32_t max_model_len, const DrafterScript& script)
    : model_(std::move(model)), max_model_len_(max_model_len), script_(script), rng_(script.seed) {}

const std::vector<TokenId>& ScriptedDrafter::answer_to(const Sequence& sequence) {
  const auto [at, is_new] = answers_.try_emplace(sequence.id);
  if (is_new) at->second = ledger_reference(model_, *sequence.request, max_model_len_, sequence.choice).tokens;
  return at->second;
}

void ScriptedDrafter::draft(std::span<const Sequence* const> sequences, const DraftLimits& limits,
                            std::span<Guess> guesses) {
  for (size_t i = 0; i < sequences.size(); ++i) {
    if (sequences[i]->id % script_.one_in != 0) continue;
    const std::vector<TokenId>& answer = answer_to(*sequences[i]);
    Guess& guess = guesses[i];
    std::vector<size_t> depths;
    const int32_t count = script_.drafts_most ? limits.max_tokens : rng_.between(0, limits.max_tokens);
    for (int32_t k = 0; k < count; ++k) {
      const int32_t parent = k > 0 && rng_.chance(script_.branch_rate) ? guess.parent(k - 1) : k - 1;
      depths.push_back(parent < 0 ? 0 : depths[parent] + 1);
      const size_t at = sequences[i]->output_tokens.size() + depths.back();
      const bool is_right = at < answer.size() && rng_.chance(script_.right_rate);
      TokenId token = is_right ? answer[at] : rng_.between(0, model_.vocab_size - 1);
      if (script_.right_rate == 0 && at < answer.size() && token == answer[at]) token = (token + 1) % model_.vocab_size;
      guess.add(token, parent, script_.claimed < 0 ? 0.01 * rng_.between(1, 100) : script_.claimed, 0);
    }
  }
}

void ScriptedDrafter::learn(const Sequence& /*sequence*/, const Guess& guess, std::span<const Verdict> verdicts) {
  LLMB_CHECK(verdicts.size() == guess.tokens.size());
  for (int32_t i = 0; i < guess.size(); ++i) {
    const bool may_be_known = guess.parent(i) < 0 || verdicts[guess.parent(i)] == Verdict::kRight;
    LLMB_CHECK(may_be_known || verdicts[i] == Verdict::kUnknown);
  }
}

}  // namespace llmb::test
