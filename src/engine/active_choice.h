// One of the answers to a request as it grows: text, token details and times.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/completion.h"
#include "core/request.h"
#include "core/step_plan.h"
#include "engine/repetition.h"
#include "tokenizer/detokenizer.h"
#include "tokenizer/tokenizer.h"

namespace llmb {

// Not thread-safe. Request and tokenizer outlive it. tokenizer may be null (a model without one): the text stays empty.
class ActiveChoice {
 public:
  // index: of the request's choices. virtual_token_ms: as in engine/active_request.h.
  ActiveChoice(const Request& request, int32_t index, const Tokenizer* tokenizer, double virtual_token_ms);

  // Takes the token `given` of the output. `is_stop_token`: it ended the sequence and its text is left out (unless
  // asked for). Set: the sequence must end now, as a stop string is complete (kStop), or its tokens loop (kRepetition).
  std::optional<FinishReason> add_token(const StepOutput& output, int32_t given, bool is_stop_token, double now_ms);

  // Takes a vector, or what scores are made of, in place of a token. False: it is not finite.
  bool take_vector(const StepOutput& output, int32_t given, double now_ms);

  // The answer. Call once, at the end.
  Choice finish(FinishReason reason, std::optional<TokenId> stop_token);

  // The mean over its tokens. REQUIRES: the request is ranked, and the choice not finished
  double mean_logprob() const { return sum_logprobs_ / choice_.num_output_tokens; }

  // Valid once there are tokens, and after finish().
  double first_token_ms() const { return first_token_ms_; }
  double last_token_ms() const { return last_token_ms_; }
  const std::vector<float>& itl_ms() const { return itl_ms_; }  // between one token and the next

 private:
  bool is_option() const { return !request_->options.empty(); }
  bool append_text(std::string piece);
  void add_score(const StepOutput& output, int32_t given);
  void add_logprobs(const StepOutput& output, int32_t given);
  double time_of(double now_ms) const;

  const Request* request_;
  int32_t index_;
  const Tokenizer* tokenizer_;
  double virtual_token_ms_;
  std::optional<Detokenizer> detokenizer_;
  std::optional<RepetitionWatch> repetition_;
  Choice choice_;
  double sum_logprobs_ = 0;
  double first_token_ms_ = 0, last_token_ms_ = 0;
  std::vector<float> itl_ms_;
};

}  // namespace llmb
