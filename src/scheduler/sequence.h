// One request inside the scheduler: its tokens, how far the KV cache has caught up with them, and its blocks.
//
// Not thread-safe. Invariants (checked by Scheduler::check_integrity):
//  1. waiting: no blocks and num_computed_tokens == 0.
//  2. running: blocks hold at least num_computed_tokens, and none more than the known tokens need.
//  3. num_computed_tokens <= num_known_tokens(); the sequence samples when a step computes its last known token.
//  4. 1 <= max_new_tokens; output_tokens.size() <= max_new_tokens, and less where no token is unseen.
//  5. The last num_unseen_tokens output tokens were sampled by plans in flight, one each; the last of them is the
//     unseen_token() of its row in the newest plan. They count as known: a position, not yet a value.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "cache/block_table.h"
#include "core/request.h"
#include "core/step_plan.h"
#include "scheduler/penalty_counts.h"

namespace llmb {

struct Sequence {
  Sequence(SeqId id, std::shared_ptr<const Request> request, int32_t block_size, int32_t max_new_tokens,
           double arrival_ms);

  const SeqId id;
  const std::shared_ptr<const Request> request;
  const double arrival_ms;
  const int32_t max_new_tokens;                  // what max_tokens and the context's end allow
  const std::vector<TokenBias> min_tokens_bias;  // logit_bias with the ending tokens forbidden; empty: no min_tokens

  std::vector<TokenId> output_tokens;
  int32_t num_unseen_tokens = 0;
  int32_t num_computed_tokens = 0;  // whose keys and values are in the cache once the plans in flight have run
  BlockTable blocks;
  int32_t num_preemptions = 0;
  std::optional<PenaltyCounts> penalty_counts;  // where the request has penalties; of the seen tokens

  int32_t num_prompt_tokens() const { return static_cast<int32_t>(request->prompt_tokens.size()); }
  int32_t num_output_tokens() const { return static_cast<int32_t>(output_tokens.size()); }
  int32_t num_known_tokens() const { return num_prompt_tokens() + num_output_tokens(); }
  int32_t num_pending_tokens() const { return num_known_tokens() - num_computed_tokens; }
  TokenId token(int32_t position) const {
    return position < num_prompt_tokens() ? request->prompt_tokens[position]
                                          : output_tokens[position - num_prompt_tokens()];
  }
  // Tokens in the cache when it ends, at most: the last sampled token is never computed.
  int32_t max_cached_tokens() const { return num_prompt_tokens() + max_new_tokens - 1; }

  // What is unseen is its last token, whatever that turns out to be.
  bool ends_in_flight() const { return num_output_tokens() == max_new_tokens; }

  // Whether output token `index` may end it: nothing that does so may be sampled before min_tokens are there.
  bool may_end_with(int32_t index) const { return index >= request->params.stop.min_tokens; }
  // End-of-sequence (unless ignored) or one of stop_token_ids.
  bool is_ending_token(TokenId token) const;

  void append_unseen_token(int32_t sample);
  void see_token(TokenId token);  // the oldest unseen one
};

}  // namespace llmb
