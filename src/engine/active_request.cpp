#include "engine/active_request.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "base/quantile_sketch.h"
#include "base/utf8.h"

namespace llmb {

Completion completion_for(const Request& request) {
  Completion c;
  c.line = request.line;
  c.form = request.form;
  c.id_json = request.id_json;
  c.input_json = request.input_json;
  c.model_name = request.model_name;
  c.settings_json = request.settings_json;
  c.adapter = request.adapter;
  c.is_chat = request.form == ApiForm::kOpenAiChat || request.form == ApiForm::kOpenAiResponses;
  c.return_token_ids = request.params.output.return_token_ids;
  c.num_prompt_tokens = static_cast<int32_t>(request.num_prompt_tokens());
  c.num_truncated_tokens = request.num_truncated_tokens;
  c.has_prompt_logprobs = request.params.score.prompt_logprobs && !request.params.score.hides_details;
  c.task = request.params.task;
  c.embed = request.params.embed;
  c.classify = request.params.classify;
  return c;
}

ActiveRequest::ActiveRequest(std::shared_ptr<const Request> request, int64_t ordinal, const Tokenizer* tokenizer,
                             double virtual_token_ms)
    : request_(std::move(request)),
      ordinal_(ordinal),
      virtual_token_ms_(virtual_token_ms),
      tokenizer_(tokenizer),
      num_unfinished_(request_->params.sampling.num_choices),
      completion_(completion_for(*request_)) {
  if (request_->params.sampling.beams) {
    beams_.emplace(*request_);
    return;
  }
  choices_.reserve(num_unfinished_);
  for (int32_t i = 0; i < num_unfinished_; ++i) choices_.emplace_back(request_->part(i), i, tokenizer, virtual_token_ms);
  completion_.choices.resize(num_unfinished_);
  mean_logprobs_.resize(num_unfinished_);
}

void ActiveRequest::add_prompt_logprobs(const StepOutput& output, int32_t given) {
  std::vector<std::string>& texts = completion_.prompt_texts;
  const auto add_text = [&](TokenId token, bool is_first) {
    texts.push_back(tokenizer_ == nullptr ? std::string() : tokenizer_->token_bytes(token, is_first));
  };
  if (texts.empty()) add_text(request_->prompt_tokens[0], true);
  TokenDetail& detail = completion_.prompt_logprobs.emplace_back();
  detail.chosen = {output.tokens[given], output.logprobs[given]};
  add_text(detail.chosen.token, false);
  for (int32_t i = output.top_start[given]; i < output.top_start[given + 1]; ++i) {
    detail.top.push_back({output.top_tokens[i], output.top_logprobs[i]});
    add_text(detail.top.back().token, false);
  }
}

bool ActiveRequest::finish_choice(int32_t index, FinishReason reason, std::optional<TokenId> stop_token,
                                  int32_t num_preemptions) {
  if (request_->params.sampling.is_ranked()) mean_logprobs_[index] = choices_[index].mean_logprob();
  completion_.choices[index] = choices_[index].finish(reason, stop_token);
  completion_.latency.num_preemptions += num_preemptions;
  return --num_unfinished_ == 0;
}

void ActiveRequest::add_drafted(const DraftedTokens& tokens) {
  if (virtual_token_ms_ > 0) return;
  std::vector<DraftedTokens>& all = completion_.latency.drafted;
  auto at = std::ranges::find(all, tokens.drafter, &DraftedTokens::drafter);
  if (at == all.end()) at = all.insert(at, {.drafter = tokens.drafter});
  at->num_steps += tokens.num_steps;
  at->num_drafted += tokens.num_drafted;
  at->num_accepted += tokens.num_accepted;
}

void ActiveRequest::finish_beams(int32_t num_preemptions) {
  const std::vector<BeamAnswer>& answers = beams_->answers();
  for (size_t i = 0; i < std::min(answers.size(), static_cast<size_t>(request_->params.sampling.n)); ++i) {
    const BeamAnswer& answer = answers[i];
    ActiveChoice& choice = choices_.emplace_back(*request_, static_cast<int32_t>(i), tokenizer_, virtual_token_ms_);
    StepOutput output;
    output.tokens = answer.tokens;
    const auto last = static_cast<int32_t>(answer.tokens.size()) - 1;
    for (int32_t at = 0; at <= last; ++at)
      choice.add_token(output, at, answer.is_ended && at == last, beams_->step_ms(at));
    const auto stop_token = answer.is_ended ? std::optional(answer.tokens.back()) : std::nullopt;
    completion_.choices.push_back(
        choice.finish(answer.is_ended ? FinishReason::kStop : FinishReason::kLength, stop_token));
  }
  completion_.latency.num_preemptions = num_preemptions;
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
  choose_answers();
  return std::move(completion_);
}

// The choices become the answers that the request asks for.
void ActiveRequest::choose_answers() {
  const SamplingParams& sampling = request_->params.sampling;
  std::vector<Choice>& choices = completion_.choices;
  const auto num_answers = static_cast<size_t>(sampling.n);
  if (sampling.is_ranked()) {
    std::vector<size_t> order(choices.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [this](size_t a, size_t b) { return mean_logprobs_[a] > mean_logprobs_[b]; });
    std::vector<Choice> answers;
    for (size_t place = 0; place < order.size(); ++place) {
      Choice& choice = choices[order[place]];
      if (place < num_answers) answers.push_back(std::move(choice));
      else completion_.num_unreturned_tokens += choice.num_output_tokens;
    }
    choices = std::move(answers);
  }
  // Greedy answers are all equal, and one was computed.
  while (!sampling.beams && choices.size() < num_answers) choices.push_back(choices[0]);
  if (request_->params.output.echo && sampling.num_logprobs) echo_logprobs();
}

// Those of the prompt's tokens stand in front of each answer's.
void ActiveRequest::echo_logprobs() {
  constexpr float kNone = std::numeric_limits<float>::quiet_NaN();
  std::vector<TokenDetail>& prompt = completion_.prompt_logprobs;
  std::vector<std::string>& texts = completion_.prompt_texts;
  const TokenId first = request_->prompt_tokens[0];
  if (texts.empty()) texts.push_back(tokenizer_ == nullptr ? std::string() : tokenizer_->token_bytes(first, true));
  std::vector<TokenDetail> details = {{{first, kNone}, {}}};
  details.insert(details.end(), prompt.begin(), prompt.end());
  int64_t num_chars = -num_characters(request_->echo_text);
  size_t text = 0;
  for (const TokenDetail& detail : details) num_chars += num_characters(texts[text]), text += 1 + detail.top.size();
  for (Choice& choice : completion_.choices) {
    choice.logprobs.insert(choice.logprobs.begin(), details.begin(), details.end());
    choice.logprob_texts.insert(choice.logprob_texts.begin(), texts.begin(), texts.end());
    choice.num_echoed_tokens = static_cast<int32_t>(details.size());
    choice.num_unshown_chars = static_cast<int32_t>(num_chars);
  }
  if (completion_.has_prompt_logprobs) return;
  prompt.clear();
  texts.clear();
}

}  // namespace llmb
