#include "engine/active_choice.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "engine/split_choice.h"
#include "engine/stop_matcher.h"

namespace llmb {

namespace {

// Turns the vector that stands for the labels into their scores.
void score_labels(Scores scores, std::vector<float>* values) {
  if (scores == Scores::kDifference || scores == Scores::kLogisticDifference) {
    LLMB_CHECK(values->size() == 2);
    *values = {values->front() - values->back()};
    scores = scores == Scores::kDifference ? Scores::kAsIs : Scores::kLogistic;
  }
  if (scores == Scores::kAsIs || values->empty()) return;
  const double most = *std::max_element(values->begin(), values->end());
  double sum = 0;
  for (const float x : *values) sum += std::exp(x - most);
  for (float& x : *values)
    x = static_cast<float>(scores == Scores::kSoftmax ? std::exp(x - most) / sum : 1 / (1 + std::exp(-double{x})));
}

}  // namespace

ActiveChoice::ActiveChoice(const Request& request, int32_t index, const Tokenizer* tokenizer, double virtual_token_ms)
    : request_(&request), index_(index), tokenizer_(tokenizer), virtual_token_ms_(virtual_token_ms) {
  const int32_t repetition = request.params.stop.repetition_tokens;
  if (repetition > 0 && !request.params.sampling.beams) repetition_.emplace(repetition);
  if (tokenizer == nullptr) return;
  detokenizer_.emplace(*tokenizer, request.params.output.skip_special_tokens, request.prompt_tokens);
}

// Virtual time begins when the request arrives; all prompt tokens and those before the next one have passed.
double ActiveChoice::time_of(double now_ms) const {
  if (virtual_token_ms_ <= 0) return now_ms;
  const auto num_prompt = static_cast<int64_t>(request_->prompt_tokens.size());
  return virtual_token_ms_ * static_cast<double>(num_prompt + choice_.num_output_tokens - 1);
}

std::optional<FinishReason> ActiveChoice::add_token(const StepOutput& output, int32_t given, bool is_stop_token,
                                                    double clock_ms) {
  const TokenId token = output.tokens[given];
  choice_.num_output_tokens++;
  const double now_ms = time_of(clock_ms);
  if (choice_.num_output_tokens == 1) first_token_ms_ = now_ms;
  else itl_ms_.push_back(static_cast<float>(now_ms - last_token_ms_));
  last_token_ms_ = now_ms;
  choice_.token_ids.push_back(token);
  if (request_->params.sampling.is_ranked()) sum_logprobs_ += output.logprobs[given];
  if (is_option()) add_score(output, given);
  if (is_option() ? request_->params.score.num_logprobs : request_->params.sampling.num_logprobs)
    add_logprobs(output, given);
  const bool hidden = is_stop_token && !request_->params.stop.include_stop_str_in_output;
  const bool loops = repetition_ && repetition_->add(token) && !is_stop_token;
  if (detokenizer_ && !hidden && append_text(detokenizer_->push(token))) return FinishReason::kStop;
  return loops ? std::optional(FinishReason::kRepetition) : std::nullopt;
}

bool ActiveChoice::take_vector(const StepOutput& output, int32_t given, double clock_ms) {
  choice_.num_output_tokens = 1;  // for the times
  first_token_ms_ = last_token_ms_ = time_of(clock_ms);
  const EmbedParams& embed = request_->params.embed;
  const size_t width = output.hidden.size() / output.tokens.size();
  const float* const row = output.hidden.data() + static_cast<size_t>(given) * width;
  choice_.embedding.assign(row, row + std::min<size_t>(width, embed.dimensions.value_or(INT32_MAX)));
  double sum = 0;
  for (const float x : choice_.embedding) sum += double{x} * x;
  if (request_->params.task == Task::kClassify) score_labels(request_->params.classify.scores, &choice_.embedding);
  else if (embed.normalizes)
    for (float& x : choice_.embedding) x = static_cast<float>(x / std::max(std::sqrt(sum), 1e-12));
  return std::isfinite(sum);
}

// Appends, cuts at a stop string that is now complete, and says whether there was one.
bool ActiveChoice::append_text(std::string piece) {
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

void ActiveChoice::add_score(const StepOutput& output, int32_t given) {
  OptionScore& score = choice_.score ? *choice_.score : choice_.score.emplace();
  score.logprob += output.logprobs[given];
  score.is_greedy &= output.top_tokens[output.top_start[given]] == output.tokens[given];
}

void ActiveChoice::add_logprobs(const StepOutput& output, int32_t given) {
  TokenDetail detail;
  detail.chosen = {output.tokens[given], output.logprobs[given]};
  int32_t end = output.top_start[given + 1];
  if (is_option()) end = std::min(end, output.top_start[given] + *request_->params.score.num_logprobs);
  for (int32_t i = output.top_start[given]; i < end; ++i)
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

Choice ActiveChoice::finish(FinishReason reason, std::optional<TokenId> stop_token) {
  if (request_->params.task != Task::kGenerate && !is_option()) {  // the token behind the prompt is no answer
    Choice choice;
    choice.embedding = std::move(choice_.embedding);
    if (request_->params.output.echo) choice.text = request_->echo_text;
    choice.finish_reason = FinishReason::kLength;
    return choice;
  }
  // The detokenizer still holds the start of a character that was never completed.
  if (detokenizer_ && !choice_.stop_string && append_text(detokenizer_->finish())) reason = FinishReason::kStop;
  choice_.finish_reason = reason;
  choice_.continues_character = detokenizer_ && detokenizer_->continues_character();
  // As in vLLM: the model's own end of sequence is the plain case and has no stop reason.
  const auto& eos = request_->eos_token_ids;
  const bool is_eos = stop_token && std::find(eos.begin(), eos.end(), *stop_token) != eos.end();
  choice_.stop_token = is_eos ? std::nullopt : stop_token;
  if (is_option()) choice_.text = request_->params.score.options[index_];
  if (request_->params.output.echo) choice_.text = request_->echo_text + choice_.text;
  if (request_->params.output.hides_answer) {
    Choice prompt;
    prompt.text = request_->echo_text;
    prompt.finish_reason = FinishReason::kLength;
    return prompt;
  }
  const bool hides_last = stop_token.has_value() && !request_->params.stop.include_stop_str_in_output;
  if (tokenizer_ != nullptr) split_choice(*request_, *tokenizer_, hides_last, &choice_);
  return std::move(choice_);
}

}  // namespace llmb
