// One request inside the scheduler: its tokens, how far the KV cache has caught up with them, and its blocks.
//
// A token is known when its value has been seen. What plans in flight sample for the sequence is unseen: each of their
// groups gives at least one token, if the sequence goes on at all, and at most as many as the group has rows.
//
// Not thread-safe. Invariants (checked by Scheduler::check_integrity):
//  1. waiting, or parked: no blocks, num_computed_tokens == 0, nothing in flight.
//  2. running: blocks hold at least num_computed_tokens, but for those that next_write() and what follows do not see,
//     and none more than known and unseen tokens can need.
//  3. num_computed_tokens < num_known_tokens() + num_in_flight, or == of a beam that runs and awaits its fork; a step
//     that computes the last known token samples.
//  4. 1 <= max_new_tokens; output_tokens.size() < max_new_tokens.
//  5. With groups in flight all known tokens are computed by the time that these plans have run.
//  6. The first num_blocks_in_cache blocks are full and their nodes stand behind each other in the prefix cache; waiting: 0.
//  7. running: no wanted node. A parked beam wants what it has computed, as others may go on behind it.
//  8. num_demotions, is_promoted and num_policy_preemptions as scheduler/rank.h bounds them.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "cache/block_table.h"
#include "core/request.h"
#include "core/step_plan.h"
#include "scheduler/penalty_counts.h"
#include "scheduler/rank.h"

namespace llmb {

// A group of a plan in flight that samples for a sequence.
// Guessed tokens of one drafter that were verified.
inline constexpr int32_t kMaxDrafters = 6;  // of a run
struct DraftCounts {
  int32_t num_steps = 0;  // that verified some
  int32_t num_drafted = 0, num_accepted = 0;
};
using CountsByDrafter = std::array<DraftCounts, kMaxDrafters>;

struct GroupInFlight {
  int32_t group = 0;       // in its plan
  int32_t max_tokens = 0;  // that it gives
  bool is_tree = false;
  int32_t num_forced = 0;  // its last drafts, which a constraint leaves no choice of
  int32_t drafter = 0;     // who guessed the others
};

struct Sequence {
  Sequence(SeqId id, int32_t choice, std::shared_ptr<const Request> request, BlockTable blocks, int32_t max_new_tokens,
           double arrival_ms);

  const SeqId id;
  const int32_t choice;  // of the request's answers; each is a sequence of its own
  const std::shared_ptr<const Request> request;
  const double arrival_ms;
  const int32_t max_new_tokens;                  // what max_tokens and the context's end allow
  const std::vector<TokenBias> min_tokens_bias;  // logit_bias with the ending tokens forbidden; empty: no min_tokens
  std::unique_ptr<ConstraintState> constraint;   // behind output_tokens; null: none

  std::vector<TokenId> output_tokens;  // seen
  int32_t num_computed_tokens = 0;     // whose keys and values are in the cache once the plans in flight have run
  int32_t num_in_flight = 0;
  std::array<GroupInFlight, kMaxPlansInFlight> in_flight;  // [num_in_flight]  oldest first, one a plan
  int32_t num_scored_tokens = 0;  // of the prompt: what is asked of those before it is known once the plans have run
  int32_t num_misplaced_tokens = 0;                        // that the newest group seen left to be computed again
  BlockTable blocks;
  int32_t state_slot = -1;  // with what its computed tokens left there; -1: none
  std::vector<int32_t> forks;  // positions to come in which others go on from its state, the next one last
  int32_t num_blocks_in_cache = 0;
  NodeId cache_node = kNoNode;   // of the last of these
  NodeId wanted_node = kNoNode;  // while it waits, preempted: that it wants to go on behind
  int32_t num_wanted_tokens = 0;  // up to there
  int32_t num_cached_tokens = 0;                // of the prompt, that it found when it first joined
  CountsByDrafter drafted = {};                 // until now
  std::optional<PenaltyCounts> penalty_counts;  // where the request has penalties; of the known tokens

  bool is_running = false;
  bool awaits_fork = false;  // of a beam: all its known tokens have given their best next ones
  bool is_member = false;    // of the running batch, in modes that have batches
  int32_t num_memory_preemptions = 0, num_policy_preemptions = 0;
  Rank rank;
  double rank_until_ms = 0;  // while it waits: when to ask for the next one
  int32_t num_demotions = 0;
  bool is_promoted = false;
  bool is_demotion_due = false;  // but a plan in flight holds it

  int32_t num_preemptions() const { return num_memory_preemptions + num_policy_preemptions; }
  bool may_be_demoted_to(Rank worse, int32_t num_levels) const {
    return worse > rank && !is_promoted && num_demotions < num_levels - 1;
  }
  void demote(Rank worse) { rank = worse, ++num_demotions; }
  void promote(Rank better) { rank = better, is_promoted = true; }

  bool is_beam() const { return request->params.sampling.beams.has_value(); }
  int32_t num_prompt_tokens() const { return static_cast<int32_t>(request->prompt_tokens.size()); }
  int32_t num_output_tokens() const { return static_cast<int32_t>(output_tokens.size()); }
  int32_t num_known_tokens() const { return num_prompt_tokens() + num_output_tokens(); }
  int32_t max_unseen_tokens() const;
  // To be computed before the next token can be sampled.
  int32_t num_pending_tokens() const { return num_in_flight > 0 ? 1 : num_known_tokens() - num_computed_tokens; }
  // A prompt, or what a preempted one had, is being computed in chunks.
  bool lags() const { return num_pending_tokens() > 1 + num_misplaced_tokens; }
  // The first prompt token whose log-probability is yet to be computed, by the row before it; none: INT32_MAX. One
  // choice does it for all.
  int32_t next_to_score() const {
    if (choice > 0 || !request->params.score.prompt_logprobs) return INT32_MAX;
    const int32_t next = std::max(1, num_scored_tokens);
    return next < num_prompt_tokens() ? next : INT32_MAX;
  }
  // Tokens from the first on that it need not compute where others have: the last known one it samples behind.
  int32_t max_shared_tokens() const { return std::min(num_known_tokens(), next_to_score()) - 1; }
  // The prompt tokens, from the first up to before the second, that rows of the next `num_tokens` tokens score.
  std::pair<int32_t, int32_t> scored_by(int32_t num_tokens) const {
    const int32_t begin = std::max(next_to_score(), next_base() + 1);
    return {begin, std::max(begin, std::min(next_base() + num_tokens + 1, num_prompt_tokens()))};
  }
  // Where the next entry begins, at least and at most.
  int32_t next_base() const { return num_in_flight > 0 ? num_known_tokens() - 1 : num_computed_tokens; }
  int32_t max_next_base() const { return next_base() + max_unseen_tokens(); }
  // The first position that it writes, at least.
  int32_t next_write() const { return next_base() + num_in_flight; }
  TokenId token(int32_t position) const {
    return position < num_prompt_tokens() ? request->prompt_tokens[position]
                                          : output_tokens[position - num_prompt_tokens()];
  }
  // From position `begin` on; `scratch` holds them where prompt and output meet.
  std::span<const TokenId> tokens(int32_t begin, int32_t count, std::vector<TokenId>* scratch) const;
  // Known tokens whose keys and values are in their places once the plans in flight have run.
  int32_t num_reusable_tokens() const { return std::min(num_computed_tokens, num_known_tokens()); }
  // Tokens in the cache when it ends, at most: the last sampled token is never computed.
  int32_t max_cached_tokens() const { return num_prompt_tokens() + max_new_tokens - 1; }

  // The plans in flight sample its last token, whatever that turns out to be.
  bool ends_in_flight() const { return !is_beam() && num_output_tokens() + num_in_flight == max_new_tokens; }
  // They may, or the next row depends on more than their last token. REQUIRES: a group in flight
  bool must_be_seen() const;

  // Whether output token `index` may end it: nothing that does so may be sampled before min_tokens are there.
  bool may_end_with(int32_t index) const { return index >= request->params.stop.min_tokens; }
  // Added to the logits that output token `index` is chosen by.
  void append_bias(int32_t index, std::vector<TokenBias>* bias) const;
  // Constraint and bias leave no token that could come next.
  bool has_no_choice() const;
  // End-of-sequence (unless ignored) or one of stop_token_ids.
  bool is_ending_token(TokenId token) const;

  // A plan computes all known tokens and samples behind them.
  void add_group_in_flight(GroupInFlight group);
  void append_token(TokenId token);
  // The oldest group in flight has given the tokens that were appended since. Of the rows that gave them, the last
  // `num_misplaced` did not write where the sequence needs them.
  void end_oldest_group(int32_t num_misplaced);
};

// The order of sequences that run, and of those that wait.
inline bool goes_before(const Sequence& a, const Sequence& b) {
  return a.rank != b.rank ? a.rank < b.rank : a.id < b.id;
}

// The number of best tokens that a request with beams looks at after each beam: enough that, whichever end an answer,
// as many others are left as there are beams.
int32_t num_best_tokens(const Request& request);

}  // namespace llmb
