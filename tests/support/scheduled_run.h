// Requests through a scheduler on any backend, without an engine around them: tokens and log-probabilities as values.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "backend/backend.h"
#include "core/completion.h"
#include "core/request.h"
#include "scheduler/scheduler.h"
#include "tests/support/plan_builder.h"

namespace llmb::test {

struct ScheduledAnswer {
  Generated out;
  std::optional<FinishReason> finish;
  std::optional<TokenId> stop_token;
  bool operator==(const ScheduledAnswer&) const = default;
};

using ScheduledAnswers = std::vector<std::vector<ScheduledAnswer>>;  // [requests][choices]

struct ScheduledRun {
  ScheduledAnswers answers;
  int64_t num_steps = 0, num_drafts = 0, num_given = 0, num_groups = 0;  // drafts accepted: num_given - num_groups
  int64_t num_trees = 0, num_copies = 0, num_preemptions = 0;
  int64_t num_swaps_out = 0, num_swaps_in = 0;
  int64_t num_rows = 0;  // of all steps
  int64_t peak_kv_slots = 0;    // of allocated blocks
  int64_t num_shared_rows = 0;  // groups that sample another sequence's row
};

// To the end. All requests arrive at once; each must fit. Where the backend holds two plans, steps are planned ahead.
// With a proposer each plan's drafts are within what the backend verifies. A failed check where anything fails.
ScheduledRun run_scheduled(Backend& backend, SchedulerConfig config, Proposer* proposer,
                           const std::vector<std::shared_ptr<const Request>>& requests);

// A sampled request with log-probabilities. Its prompt and its random numbers follow from the prompt's length.
std::shared_ptr<const Request> request_with_choices(int32_t num_prompt_tokens, int32_t num_choices, int32_t max_tokens);

// The answers without a scheduler: each choice alone, in steps of at most max_num_batched_tokens.
ScheduledAnswers choices_alone(Backend& backend, const std::vector<std::shared_ptr<const Request>>& requests,
                               int32_t max_num_batched_tokens);

// For a ScriptedProposer that knows the answers of a run: the tokens of the answer to one of `requests`, which outlive it
// as `answers` do.
inline auto tokens_of(const std::vector<std::shared_ptr<const Request>>& requests, const ScheduledAnswers& answers) {
  return [&](const Request& request, int32_t choice) {
    for (size_t i = 0; i < requests.size(); ++i)
      if (requests[i].get() == &request) return answers[i][choice].out.tokens;
    return std::vector<TokenId>();
  };
}

}  // namespace llmb::test
