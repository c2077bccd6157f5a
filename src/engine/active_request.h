// A request between its admission and its completion: text, token details and times as they grow.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/completion.h"
#include "core/request.h"
#include "core/step_plan.h"
#include "tokenizer/detokenizer.h"
#include "tokenizer/tokenizer.h"

namespace llmb {

// A Completion that repeats the request's identity and holds no answer yet.
Completion completion_for(const Request& request);

// Not thread-safe. tokenizer may be null (a model without one): the text stays empty.
//
// virtual_token_ms > 0: the request has a clock of its own that moves by so much with each of its tokens, prompt first,
// and by nothing else. So its latencies depend on the request alone, whatever the schedule, and a resumed run has those
// of an uninterrupted one. 0: the times are those of the caller's clock.
class ActiveRequest {
 public:
  ActiveRequest(std::shared_ptr<const Request> request, int64_t ordinal, const Tokenizer* tokenizer,
                double virtual_token_ms = 0);

  const Request& request() const { return *request_; }
  int64_t ordinal() const { return ordinal_; }  // place in the input, counted from 0 without gaps
  bool was_scheduled() const { return scheduled_ms_.has_value(); }

  void mark_scheduled(double now_ms) {
    if (!scheduled_ms_) scheduled_ms_ = time_of(now_ms);
  }

  // Takes the token `given` of the output. `is_stop_token`: it ended the sequence and its text is left out (unless
  // asked for). True when a stop string is complete: the sequence must end now.
  bool add_token(const StepOutput& output, int32_t given, bool is_stop_token, double now_ms);

  // The answer. Call once, at the end.
  Completion finish(FinishReason reason, std::optional<TokenId> stop_token, int32_t num_preemptions);
  std::vector<float> take_itl_ms() { return std::move(itl_ms_); }  // after finish()

 private:
  bool append_text(std::string piece);
  void add_logprobs(const StepOutput& output, int32_t given);
  double time_of(double now_ms) const;

  const std::shared_ptr<const Request> request_;
  const int64_t ordinal_;
  const Tokenizer* const tokenizer_;
  const double virtual_token_ms_;
  std::optional<Detokenizer> detokenizer_;
  Completion completion_;
  Choice choice_;  // the only one
  std::optional<double> scheduled_ms_;
  double first_token_ms_ = 0, last_token_ms_ = 0;
  std::vector<float> itl_ms_;
};

}  // namespace llmb
