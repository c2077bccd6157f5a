#include "engine/active_beams.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace llmb {

namespace {

constexpr int32_t kNobody = -1;

bool contains(const std::vector<TokenId>& tokens, TokenId token) {
  return std::find(tokens.begin(), tokens.end(), token) != tokens.end();
}

}  // namespace

ActiveBeams::ActiveBeams(const Request& request)
    : request_(request),
      search_(*request.params.sampling.beams, *request.params.stop.max_tokens),
      choices_(1, 0),
      candidates_(1) {}

bool ActiveBeams::add(int32_t choice, const StepOutput& output, int32_t begin, int32_t end) {
  const auto at = std::find(choices_.begin(), choices_.end(), choice);
  LLMB_CHECK(at != choices_.end());
  std::vector<BeamCandidate>& candidates = candidates_[at - choices_.begin()];
  LLMB_CHECK(candidates.empty() && num_missing_ > 0);
  const StopParams& stop = request_.params.stop;
  for (int32_t i = begin; i < end; ++i) {
    const TokenId token = output.tokens[i];
    const bool is_ending =
        (!stop.ignore_eos && contains(request_.eos_token_ids, token)) || contains(stop.stop_token_ids, token);
    if (is_ending && search_.num_steps() < stop.min_tokens) continue;
    if (!std::isinf(output.logprobs[i])) candidates.push_back({token, output.logprobs[i], is_ending});
  }
  return --num_missing_ == 0;
}

bool ActiveBeams::advance(double now_ms) {
  LLMB_CHECK(num_missing_ == 0);
  step_ms_.push_back(now_ms);
  if (!search_.advance(candidates_)) return false;
  assign_choices();
  num_missing_ = static_cast<int32_t>(choices_.size());
  candidates_.assign(choices_.size(), {});
  return true;
}

void ActiveBeams::assign_choices() {
  const std::vector<Beam>& beams = search_.beams();
  std::vector<int32_t> choices(beams.size(), kNobody);
  std::vector<bool> is_taken(request_.params.sampling.num_choices);
  for (size_t i = 0; i < beams.size(); ++i) {
    const int32_t parent = choices_[beams[i].parent];
    if (is_taken[parent]) continue;
    choices[i] = parent;
    is_taken[parent] = true;
  }
  forks_.clear();
  auto free = is_taken.begin();
  for (size_t i = 0; i < beams.size(); ++i) {
    if (choices[i] == kNobody) {
      free = std::find(free, is_taken.end(), false);
      choices[i] = static_cast<int32_t>(free++ - is_taken.begin());
    }
    forks_.push_back({choices[i], choices_[beams[i].parent], beams[i].tokens.back()});
  }
  choices_ = std::move(choices);
}

}  // namespace llmb
