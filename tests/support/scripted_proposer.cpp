#include "tests/support/scripted_proposer.h"

#include "base/check.h"

namespace llmb::test {

const std::vector<TokenId>& ScriptedProposer::answer(const Sequence& sequence) {
  const auto [at, is_new] = answers_.try_emplace({sequence.request.get(), sequence.choice});
  if (is_new) at->second = answer_(*sequence.request, sequence.choice);
  return at->second;
}

// It may change its mind while a plan is made, which is made as it was begun.
void ScriptedProposer::begin_plan(const PlanOutlook& outlook) {
  LLMB_CHECK(!needs_idle_ || (outlook.num_in_flight == 0 && !outlook.alternates));
  needs_idle_ = idle_rng_.chance(script_.idle_rate);
}

void ScriptedProposer::propose(const Sequence& sequence, int32_t max_drafts, Drafts* drafts) {
  if (!rng_.chance(script_.propose_rate)) return;
  const std::vector<TokenId>& right = answer(sequence);
  // Nobody knows how many tokens the group in flight will give: a guess.
  const int32_t first =
      sequence.num_output_tokens() + rng_.between(sequence.num_in_flight, sequence.max_unseen_tokens());
  const bool is_tree = rng_.chance(script_.tree_rate);
  const int32_t num_drafts = rng_.between(1, max_drafts);
  std::vector<int32_t> depths;
  for (int32_t i = 0; i < num_drafts; ++i) {
    const int32_t parent = is_tree && rng_.chance(0.5) ? rng_.between(-1, i - 1) : i - 1;
    depths.push_back(parent < 0 ? 0 : depths[parent] + 1);
    const size_t index = static_cast<size_t>(first + depths.back());
    const bool is_right = index < right.size() && rng_.chance(script_.right_rate);
    drafts->tokens.push_back(is_right ? right[index] : rng_.between(0, vocab_size_ - 1));
    if (is_tree) drafts->parents.push_back(parent);
  }
}

bool ScriptedProposer::must_see(const Sequence& sequence) const {
  return TestRng(seed_ + static_cast<uint64_t>(sequence.id)).chance(script_.must_see_rate);
}

}  // namespace llmb::test
