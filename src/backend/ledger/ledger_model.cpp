#include "backend/ledger/ledger_model.h"

#include <algorithm>
#include <limits>
#include <map>

#include "base/rng.h"

namespace llmb {

namespace {

bool contains(const std::vector<TokenId>& tokens, TokenId token) {
  return std::find(tokens.begin(), tokens.end(), token) != tokens.end();
}

bool is_forbidden(std::span<const TokenBias> bias, TokenId token) {
  return std::any_of(bias.begin(), bias.end(), [token](const TokenBias& b) {
    return b.token == token && b.bias == -std::numeric_limits<float>::infinity();
  });
}

}  // namespace

uint64_t LedgerModel::empty_prefix(int32_t adapter) const {
  return mix(seed + static_cast<uint64_t>(adapter - kNoAdapter));
}

bool LedgerModel::is_eos(TokenId token) const { return contains(eos_token_ids, token); }

std::optional<TokenId> LedgerModel::next_token(uint64_t prefix_hash, const SampleRow& row,
                                               std::span<const TokenBias> bias,
                                               std::span<const TokenPenalty> penalty,
                                               std::span<const uint32_t> mask) const {
  const auto may_be = [&](TokenId token) { return is_allowed(mask, token) && !is_forbidden(bias, token); };
  uint64_t bits = prefix_hash;
  for (const TokenPenalty& p : penalty)
    bits += mix(uint64_t{static_cast<uint32_t>(p.token)} << 32 | static_cast<uint32_t>(p.output_count));
  if (row.temperature > 0) bits ^= static_cast<uint64_t>(sampling_uniform(row.rng, row.choice, row.position) * 0x1.0p24f);
  bits = mix(bits);
  if (eos_rate && !eos_token_ids.empty()) {
    const TokenId eos = eos_token_ids[bits % eos_token_ids.size()];
    if (static_cast<double>(mix(bits) >> 11) * 0x1.0p-53 < *eos_rate && may_be(eos)) return eos;
  }
  constexpr int kNumTries = 16;
  for (int i = 0; i < kNumTries; ++i, bits = mix(bits)) {
    const auto token = static_cast<TokenId>(bits % static_cast<uint64_t>(vocab_size));
    if (may_be(token) && !(eos_rate && is_eos(token))) return token;
  }
  for (int64_t i = 0; i < vocab_size; ++i) {  // almost everything is forbidden: the next one that is not
    const auto token = static_cast<TokenId>((bits % static_cast<uint64_t>(vocab_size) + i) % vocab_size);
    if (may_be(token)) return token;
  }
  return std::nullopt;
}

float LedgerModel::logprob(uint64_t prefix_hash) {
  return -0.5f - 1.5f * uniform_from_bits(static_cast<uint32_t>(mix(prefix_hash + 1)));
}

namespace {

// Counts tokens for the penalties of a request after the output so far.
std::vector<TokenPenalty> count_tokens(const Request& request, const std::vector<TokenId>& output) {
  std::map<TokenId, int32_t> counts;
  const SamplingParams& sampling = request.params.sampling;
  if (sampling.repetition_penalty != 1.0f)
    for (const TokenId token : request.prompt_tokens) counts[token] = 0;
  if (sampling.has_penalties())
    for (const TokenId token : output) ++counts[token];
  std::vector<TokenPenalty> penalty;
  for (const auto& [token, count] : counts) penalty.push_back({token, count});
  return penalty;
}

}  // namespace

LedgerCompletion ledger_reference(const LedgerModel& model, const Request& request, int32_t max_model_len,
                                  int32_t choice) {
  const StopParams& stop = request.params.stop;
  const auto num_prompt = static_cast<int64_t>(request.prompt_tokens.size());
  const int64_t num_new = std::min<int64_t>(stop.max_tokens.value_or(max_model_len), max_model_len - num_prompt);
  std::vector<TokenId> ending = stop.stop_token_ids;
  if (!stop.ignore_eos) ending.insert(ending.end(), request.eos_token_ids.begin(), request.eos_token_ids.end());
  std::vector<TokenBias> forbid_ending;
  for (const TokenId token : ending) forbid_ending.push_back({token, -std::numeric_limits<float>::infinity()});

  LedgerCompletion completion;
  const auto constraint = request.constraint == nullptr ? nullptr : request.constraint->start();
  uint64_t prefix = model.empty_prefix(request.adapter);
  for (const TokenId token : request.prompt_tokens) prefix = LedgerModel::extend(prefix, token);
  while (static_cast<int64_t>(completion.tokens.size()) < num_new) {
    const bool may_end = static_cast<int64_t>(completion.tokens.size()) >= stop.min_tokens;
    SampleRow row;
    row.rng = request.rng;
    row.choice = static_cast<uint32_t>(choice);
    row.temperature = request.params.sampling.temperature;
    row.position = static_cast<uint32_t>(request.prompt_tokens.size() + completion.tokens.size());
    const auto token = model.next_token(
        prefix, row, may_end ? std::span<const TokenBias>() : std::span<const TokenBias>(forbid_ending),
        count_tokens(request, completion.tokens),
        constraint == nullptr ? std::span<const uint32_t>() : constraint->allowed());
    if (!token) {
      completion.finish = FinishReason::kError;
      return completion;
    }
    completion.tokens.push_back(*token);
    if (constraint != nullptr) constraint->advance(*token);
    prefix = LedgerModel::extend(prefix, *token);
    if (may_end && contains(ending, *token)) {
      completion.finish = FinishReason::kStop;
      completion.stop_token = *token;
      return completion;
    }
  }
  return completion;
}

}  // namespace llmb
