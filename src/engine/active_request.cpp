#include "engine/active_request.h"

#include <algorithm>
#include <utility>

#include "engine/quantile_sketch.h"

namespace llmb {

Completion completion_for(const Request& request) {
  Completion c;
  c.line = request.line;
  c.form = request.form;
  c.id_json = request.id_json;
  c.input_json = request.input_json;
  c.model_name = request.model_name;
  c.is_chat = request.form == ApiForm::kOpenAiChat;
  c.return_token_ids = request.params.output.return_token_ids;
  c.num_prompt_tokens = static_cast<int32_t>(request.prompt_tokens.size());
  c.num_truncated_tokens = request.num_truncated_tokens;
  return c;
}

ActiveRequest::ActiveRequest(std::shared_ptr<const Request> request, int64_t ordinal, const Tokenizer* tokenizer,
                             double virtual_token_ms)
    : request_(std::move(request)),
      ordinal_(ordinal),
      virtual_token_ms_(virtual_token_ms),
      num_unfinished_(request_->params.sampling.num_choices),
      completion_(completion_for(*request_)) {
  choices_.reserve(num_unfinished_);
  for (int32_t i = 0; i < num_unfinished_; ++i) choices_.emplace_back(*request_, tokenizer, virtual_token_ms);
  completion_.choices.resize(num_unfinished_);
}

bool ActiveRequest::finish_choice(int32_t index, FinishReason reason, std::optional<TokenId> stop_token,
                                  int32_t num_preemptions) {
  completion_.choices[index] = choices_[index].finish(reason, stop_token);
  completion_.latency.num_preemptions += num_preemptions;
  return --num_unfinished_ == 0;
}

Completion ActiveRequest::take_completion() {
  double first_ms = choices_[0].first_token_ms(), last_ms = choices_[0].last_token_ms(), between_ms = 0;
  int64_t num_gaps = 0;
  for (size_t i = 0; i < choices_.size(); ++i) {
    const ActiveChoice& choice = choices_[i];
    first_ms = std::min(first_ms, choice.first_token_ms());
    last_ms = std::max(last_ms, choice.last_token_ms());
    between_ms += choice.last_token_ms() - choice.first_token_ms();
    num_gaps += completion_.choices[i].num_output_tokens - 1;
    itl_ms_.insert(itl_ms_.end(), choice.itl_ms().begin(), choice.itl_ms().end());
  }
  RequestLatency& l = completion_.latency;
  const double arrival = virtual_token_ms_ > 0 ? 0 : request_->arrival_ms;
  // Durations never go below zero, whatever clock is behind them.
  l.queue_ms = std::max(0.0, scheduled_ms_.value_or(last_ms) - arrival);
  l.ttft_ms = std::max(0.0, first_ms - arrival);
  l.e2e_ms = std::max(0.0, last_ms - arrival);
  if (num_gaps > 0) l.tpot_ms = between_ms / static_cast<double>(num_gaps);
  std::vector<float> sorted = itl_ms_;
  l.itl_p50_ms = exact_quantile(sorted, 0.50);
  l.itl_p90_ms = exact_quantile(sorted, 0.90);
  l.itl_p99_ms = exact_quantile(sorted, 0.99);
  return std::move(completion_);
}

}  // namespace llmb
