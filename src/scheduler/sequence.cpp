#include "scheduler/sequence.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"

namespace llmb {

namespace {

bool contains(const std::vector<TokenId>& tokens, TokenId token) {
  return std::find(tokens.begin(), tokens.end(), token) != tokens.end();
}

// logit_bias and the forbidden ending tokens, each token once, in order of the token.
std::vector<TokenBias> merge_min_tokens_bias(const Request& request) {
  const StopParams& stop = request.params.stop;
  std::vector<TokenBias> merged;
  if (stop.min_tokens == 0) return merged;
  const auto forbid = [&](const std::vector<TokenId>& tokens) {
    for (const TokenId token : tokens) merged.push_back({token, -std::numeric_limits<float>::infinity()});
  };
  if (!stop.ignore_eos) forbid(request.eos_token_ids);
  forbid(stop.stop_token_ids);
  for (const auto& [token, bias] : request.params.sampling.logit_bias) merged.push_back({token, bias});
  // Stable: of a token that is both forbidden and biased, the ban comes first and stays.
  std::stable_sort(merged.begin(), merged.end(), [](TokenBias a, TokenBias b) { return a.token < b.token; });
  const auto same = [](TokenBias a, TokenBias b) { return a.token == b.token; };
  merged.erase(std::unique(merged.begin(), merged.end(), same), merged.end());
  return merged;
}

}  // namespace

Sequence::Sequence(SeqId id_, int32_t choice_, std::shared_ptr<const Request> request_, BlockTable blocks_,
                   int32_t max_new_tokens_, double arrival_ms_)
    : id(id_),
      choice(choice_),
      request(std::move(request_)),
      arrival_ms(arrival_ms_),
      max_new_tokens(max_new_tokens_),
      min_tokens_bias(merge_min_tokens_bias(*request)),
      constraint(request->constraint_of(choice) == nullptr ? nullptr : request->constraint_of(choice)->start()),
      blocks(std::move(blocks_)) {
  const SamplingParams& sampling = request->params.sampling;
  if (!sampling.has_penalties()) return;
  penalty_counts.emplace();
  // Only the repetition penalty looks at the prompt.
  if (sampling.repetition_penalty != 1.0f)
    for (const TokenId token : request->prompt_tokens) penalty_counts->add_prompt_token(token);
}

bool Sequence::is_ending_token(TokenId token) const {
  const StopParams& stop = request->params.stop;
  return (!stop.ignore_eos && contains(request->eos_token_ids, token)) || contains(stop.stop_token_ids, token);
}

void Sequence::append_bias(int32_t index, std::vector<TokenBias>* bias) const {
  if (!may_end_with(index)) {
    bias->insert(bias->end(), min_tokens_bias.begin(), min_tokens_bias.end());
    return;
  }
  for (const auto& [token, value] : request->params.sampling.logit_bias) bias->push_back({token, value});
}

bool Sequence::has_no_choice() const {
  if (constraint == nullptr) return false;
  std::vector<TokenBias> bias;
  append_bias(num_output_tokens(), &bias);
  const std::span<const uint32_t> mask = constraint->allowed();
  std::vector<uint32_t> left(mask.begin(), mask.end());
  for (const auto& [token, value] : bias)
    if (value == -std::numeric_limits<float>::infinity()) left[token / 32] &= ~(1u << token % 32);
  return std::all_of(left.begin(), left.end(), [](uint32_t word) { return word == 0; });
}

std::span<const TokenId> Sequence::tokens(int32_t begin, int32_t count, std::vector<TokenId>* scratch) const {
  const int32_t end = begin + count, num_prompt = num_prompt_tokens();
  if (end <= num_prompt) return std::span(request->prompt_tokens).subspan(begin, count);
  if (begin >= num_prompt) return std::span(output_tokens).subspan(begin - num_prompt, count);
  scratch->assign(request->prompt_tokens.begin() + begin, request->prompt_tokens.end());
  scratch->insert(scratch->end(), output_tokens.begin(), output_tokens.begin() + (end - num_prompt));
  return *scratch;
}

int32_t Sequence::max_unseen_tokens() const {
  int32_t sum = 0;
  for (int32_t i = 0; i < num_in_flight; ++i) sum += in_flight[i].max_tokens;
  return sum;
}

bool Sequence::must_be_seen() const {
  if (is_beam() || constraint != nullptr) return true;
  const GroupInFlight& group = in_flight[0];
  if (group.is_tree || num_output_tokens() + group.max_tokens >= max_new_tokens) return true;
  // Penalties count all tokens, min_tokens their number.
  return group.max_tokens > 1 && (penalty_counts || !may_end_with(num_output_tokens() + 1));
}

void Sequence::add_group_in_flight(GroupInFlight group) {
  LLMB_CHECK(num_in_flight < kMaxPlansInFlight);
  num_misplaced_tokens = 0;
  in_flight[num_in_flight++] = group;
  num_computed_tokens = num_known_tokens() - 1 + num_in_flight;
}

void Sequence::append_token(TokenId token) {
  output_tokens.push_back(token);
  if (constraint != nullptr) constraint->advance(token);
  if (penalty_counts) penalty_counts->add_output_token(token);
}

void Sequence::end_oldest_group(int32_t num_misplaced) {
  LLMB_CHECK(num_in_flight > 0);
  std::move(in_flight.begin() + 1, in_flight.begin() + num_in_flight, in_flight.begin());
  --num_in_flight;
  num_misplaced_tokens = num_misplaced;
  num_computed_tokens = num_known_tokens() - 1 + num_in_flight - num_misplaced;
}

int32_t num_best_tokens(const Request& request) {
  const StopParams& stop = request.params.stop;
  const size_t num_ending = (stop.ignore_eos ? 0 : request.eos_token_ids.size()) + stop.stop_token_ids.size();
  return request.params.sampling.beams->width + static_cast<int32_t>(num_ending);
}

}  // namespace llmb
