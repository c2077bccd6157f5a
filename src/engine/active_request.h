// A request between its admission and its completion: its choices and times as they grow.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "core/completion.h"
#include "core/prompt_blocks.h"
#include "core/request.h"
#include "core/step_plan.h"
#include "engine/active_beams.h"
#include "engine/active_choice.h"
#include "tokenizer/tokenizer.h"

namespace llmb {

// A Completion that repeats the request's identity and holds no answer yet.
Completion completion_for(const Request& request);

// Not thread-safe. tokenizer may be null (a model without one): the text stays empty.
//
// virtual_token_ms > 0: each choice has a clock of its own that moves by so much with each of its tokens, prompt first,
// and by nothing else; tokens found in the prefix cache and drafts do not count. So its latencies depend on the request alone,
// whatever the schedule, and a resumed run has those of an uninterrupted one. 0: the times are those of the caller's
// clock.
class ActiveRequest {
 public:
  ActiveRequest(std::shared_ptr<const Request> request, int64_t ordinal, const Tokenizer* tokenizer,
                double virtual_token_ms = 0);

  const Request& request() const { return *request_; }
  int64_t ordinal() const { return ordinal_; }  // place in the input, counted from 0 without gaps
  double scheduled_ms() const { return scheduled_ms_.value_or(0); }
  bool was_scheduled() const { return scheduled_ms_.has_value(); }

  void mark_scheduled(double now_ms) {
    if (!scheduled_ms_) scheduled_ms_ = virtual_token_ms_ > 0 ? 0 : now_ms;
  }

  // The first step that held it was elsewhere, and so was who had computed tokens of its prompt.
  void take_over(const PromptBlocks& blocks) {
    mark_scheduled(blocks.scheduled_ms);
    num_received_tokens_ = blocks.num_tokens;
    num_cached_elsewhere_ = blocks.num_cached_tokens;
  }

  ActiveChoice& choice(int32_t index) { return choices_[index]; }

  // Null where the request has no beams. With them the choices get their tokens by finish_beams(), when the search is
  // over.
  ActiveBeams* beams() { return beams_ ? &*beams_ : nullptr; }
  void finish_beams(int32_t num_preemptions);

  // Prompt tokens that the cache held when a choice began; of choices that share a prompt, the first.
  void set_cached_tokens(int32_t count) {
    count += num_cached_elsewhere_ - std::min(count, num_received_tokens_);
    completion_.latency.num_cached_tokens = virtual_token_ms_ > 0 ? 0 : count;
  }
  void add_cached_tokens(int32_t count) { set_cached_tokens(completion_.latency.num_cached_tokens + count); }

  // The next prompt token's.
  void add_prompt_logprobs(const StepOutput& output, int32_t given);

  // When a choice ends: tokens that a drafter guessed for it.
  void add_drafted(const DraftedTokens& tokens);

  // True when it was the last one that was not finished.
  bool finish_choice(int32_t index, FinishReason reason, std::optional<TokenId> stop_token, int32_t num_preemptions);

  // Once all choices are finished.
  Completion take_completion();
  std::vector<float> take_itl_ms() { return std::move(itl_ms_); }  // of all choices; after take_completion()

 private:
  void choose_answers();
  void echo_logprobs();

  const std::shared_ptr<const Request> request_;
  const int64_t ordinal_;
  const double virtual_token_ms_;
  const Tokenizer* const tokenizer_;
  std::vector<ActiveChoice> choices_;
  std::optional<ActiveBeams> beams_;
  std::vector<double> mean_logprobs_;  // [num_choices]  where the request is ranked
  int32_t num_unfinished_;
  Completion completion_;
  std::optional<double> scheduled_ms_;
  int32_t num_received_tokens_ = 0, num_cached_elsewhere_ = 0;
  std::vector<float> itl_ms_;
};

}  // namespace llmb
