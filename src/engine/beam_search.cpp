#include "engine/beam_search.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"

namespace llmb {

BeamSearch::BeamSearch(const BeamParams& params, int32_t max_tokens)
    : params_(params), max_tokens_(max_tokens), beams_(1) {}

float BeamSearch::length_divisor(int32_t num_tokens) const {
  return static_cast<float>(std::pow(static_cast<double>(num_tokens), static_cast<double>(params_.length_penalty)));
}

std::vector<TokenId> BeamSearch::tokens_of(const Continuation& continuation) const {
  std::vector<TokenId> tokens;
  const std::vector<TokenId>& before = beams_[continuation.beam].tokens;
  tokens.reserve(before.size() + 1);
  tokens = before;
  tokens.push_back(continuation.candidate->token);
  return tokens;
}

bool BeamSearch::advance(const std::vector<std::vector<BeamCandidate>>& candidates) {
  LLMB_CHECK(candidates.size() == beams_.size() && num_steps_ < max_tokens_);
  ++num_steps_;
  const bool is_last = num_steps_ == max_tokens_;
  std::vector<Continuation> best;
  for (int32_t beam = 0; beam < static_cast<int32_t>(beams_.size()); ++beam)
    for (const BeamCandidate& candidate : candidates[beam])
      best.push_back({beam, &candidate, candidate.logprob + beams_[beam].logprob});
  std::stable_sort(best.begin(), best.end(),
                   [](const Continuation& a, const Continuation& b) { return a.logprob > b.logprob; });
  std::vector<Beam> next;
  for (const Continuation& continuation : best) {
    if (is_last || next.size() == static_cast<size_t>(params_.width)) break;
    if (continuation.candidate->is_ending) continue;
    next.push_back({tokens_of(continuation), continuation.logprob, continuation.beam});
  }
  add_answers(best, is_last);
  beams_ = std::move(next);
  return !beams_.empty() && may_improve();
}

void BeamSearch::add_answers(const std::vector<Continuation>& best, bool is_last) {
  const auto width = static_cast<size_t>(params_.width);
  const float divisor = length_divisor(num_steps_);
  for (size_t i = 0; i < std::min(best.size(), width); ++i) {
    if (!is_last && !best[i].candidate->is_ending) continue;
    BeamAnswer answer = {tokens_of(best[i]), best[i].logprob / divisor, best[i].candidate->is_ending};
    const auto worse = [&](const BeamAnswer& other) { return other.score < answer.score; };
    answers_.insert(std::find_if(answers_.begin(), answers_.end(), worse), std::move(answer));
  }
  if (answers_.size() > width) answers_.resize(width);
}

bool BeamSearch::may_improve() const {
  if (answers_.size() < static_cast<size_t>(params_.width)) return true;
  if (params_.early_stopping == EarlyStopping::kTrue) return false;
  const bool may_grow = params_.early_stopping == EarlyStopping::kNever && params_.length_penalty > 0;
  return beams_[0].logprob / length_divisor(may_grow ? max_tokens_ : num_steps_) > answers_.back().score;
}

}  // namespace llmb
