#include "scheduler/constrained_drafts.h"

#include <optional>
#include <utility>

#include "core/draft_counts.h"

namespace llmb {

namespace {

bool is_chain(const Drafts& drafts) {
  for (int32_t draft = 0; draft < drafts.size(); ++draft)
    if (drafts.parent(draft) != draft - 1) return false;
  return true;
}

}  // namespace

DraftStates constrain_drafts(const Sequence& sequence, ChainLimits limits, Drafts* drafts, int32_t* num_forced) {
  Drafts allowed;
  DraftStates states;
  const bool is_tree = !is_chain(*drafts);
  const auto state_at = [&](int32_t draft) { return draft < 0 ? sequence.constraint.get() : states[draft].get(); };
  const auto add = [&](int32_t parent, TokenId token) {
    auto state = state_at(parent)->clone();
    state->advance(token);
    states.push_back(std::move(state));
    allowed.tokens.push_back(token);
    if (is_tree) allowed.parents.push_back(parent);
  };
  std::vector<int32_t> place(drafts->tokens.size(), -2);  // among those that are allowed; -2: it is not
  for (int32_t draft = 0; draft < drafts->size(); ++draft) {
    const int32_t parent = drafts->parent(draft) < 0 ? -1 : place[drafts->parent(draft)];
    const TokenId token = drafts->tokens[draft];
    if (parent == -2 || sequence.is_ending_token(token) || !is_allowed(state_at(parent)->allowed(), token)) continue;
    place[draft] = allowed.size();
    add(parent, token);
  }
  *num_forced = 0;
  const int32_t max_drafts = allowed.size() > 0 ? limits.guesses : limits.rows;
  while (!is_tree && allowed.size() < max_drafts) {
    const std::optional<TokenId> token = only_token(state_at(allowed.size() - 1)->allowed());
    if (!token || sequence.is_ending_token(*token)) break;
    add(allowed.size() - 1, *token);
    ++*num_forced;
  }
  allowed.drafter = drafts->drafter;
  *drafts = std::move(allowed);
  return states;
}

}  // namespace llmb
