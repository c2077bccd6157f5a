#include "engine/active_request.h"

#include <algorithm>
#include <utility>

#include "engine/quantile_sketch.h"
#include "engine/stop_matcher.h"

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
      tokenizer_(tokenizer),
      virtual_token_ms_(virtual_token_ms),
      completion_(completion_for(*request_)) {
  if (tokenizer_ == nullptr) return;
  detokenizer_.emplace(*tokenizer_, request_->params.output.skip_special_tokens, request_->prompt_tokens);
}

// Virtual time begins when the request arrives; all prompt tokens and those before the next one have passed.
double ActiveRequest::time_of(double now_ms) const {
  if (virtual_token_ms_ <= 0) return now_ms;
  const int64_t num_output = choice_.num_output_tokens;
  return num_output == 0 ? 0 : virtual_token_ms_ * static_cast<double>(completion_.num_prompt_tokens + num_output - 1);
}

bool ActiveRequest::add_token(const StepOutput& output, int32_t given, bool is_stop_token, double clock_ms) {
  const TokenId token = output.tokens[given];
  choice_.num_output_tokens++;
  const double now_ms = time_of(clock_ms);
  if (choice_.num_output_tokens == 1) first_token_ms_ = now_ms;
  else itl_ms_.push_back(static_cast<float>(now_ms - last_token_ms_));
  last_token_ms_ = now_ms;
  choice_.token_ids.push_back(token);
  if (request_->params.sampling.num_logprobs) add_logprobs(output, given);
  const bool hidden = is_stop_token && !request_->params.stop.include_stop_str_in_output;
  if (!detokenizer_ || hidden) return false;
  return append_text(detokenizer_->push(token));
}

// Appends, cuts at a stop string that is now complete, and says whether there was one.
bool ActiveRequest::append_text(std::string piece) {
  const size_t old_size = choice_.text.size();
  choice_.text += piece;
  const StopParams& stop = request_->params.stop;
  if (stop.stop.empty() || choice_.num_output_tokens <= stop.min_tokens) return false;
  const auto match = find_stop(choice_.text, old_size, stop.stop);
  if (!match) return false;
  choice_.text.resize(stop.include_stop_str_in_output ? match->end : match->begin);
  choice_.stop_string = stop.stop[match->which];
  return true;
}

void ActiveRequest::add_logprobs(const StepOutput& output, int32_t given) {
  TokenDetail detail;
  detail.chosen = {output.tokens[given], output.logprobs[given]};
  for (int32_t i = output.top_start[given]; i < output.top_start[given + 1]; ++i)
    detail.top.push_back({output.top_tokens[i], output.top_logprobs[i]});
  if (tokenizer_ != nullptr) {
    const auto add_text = [this, is_first = detokenizer_->at_start()](const TokenLogprob& entry) {
      choice_.logprob_texts.push_back(tokenizer_->token_bytes(entry.token, is_first));
    };
    add_text(detail.chosen);
    for (const TokenLogprob& top : detail.top) add_text(top);
  } else {
    choice_.logprob_texts.resize(choice_.logprob_texts.size() + 1 + detail.top.size());
  }
  choice_.logprobs.push_back(std::move(detail));
}

Completion ActiveRequest::finish(FinishReason reason, std::optional<TokenId> stop_token, int32_t num_preemptions) {
  // What the detokenizer still holds is the start of a character that was never completed.
  if (detokenizer_ && !choice_.stop_string && append_text(detokenizer_->finish())) reason = FinishReason::kStop;
  Choice& c = choice_;
  c.finish_reason = reason;
  c.continues_character = detokenizer_ && detokenizer_->continues_character();
  // As in vLLM: the model's own end of sequence is the plain case and has no stop reason.
  const auto& eos = request_->eos_token_ids;
  const bool is_eos = stop_token && std::find(eos.begin(), eos.end(), *stop_token) != eos.end();
  c.stop_token = is_eos ? std::nullopt : stop_token;
  RequestLatency& l = completion_.latency;
  const double arrival = virtual_token_ms_ > 0 ? 0 : request_->arrival_ms;
  // Durations never go below zero, whatever clock is behind them.
  l.queue_ms = std::max(0.0, scheduled_ms_.value_or(last_token_ms_) - arrival);
  l.ttft_ms = std::max(0.0, first_token_ms_ - arrival);
  l.e2e_ms = std::max(0.0, last_token_ms_ - arrival);
  if (c.num_output_tokens > 1) l.tpot_ms = (last_token_ms_ - first_token_ms_) / (c.num_output_tokens - 1);
  std::vector<float> sorted = itl_ms_;
  l.itl_p50_ms = exact_quantile(sorted, 0.50);
  l.itl_p90_ms = exact_quantile(sorted, 0.90);
  l.itl_p99_ms = exact_quantile(sorted, 0.99);
  l.num_preemptions = num_preemptions;
  completion_.choices.push_back(std::move(choice_));
  return std::move(completion_);
}

}  // namespace llmb
