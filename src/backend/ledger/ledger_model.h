// The "model" of the ledger backend: the next token is a hash of the whole prefix. Pure functions, no state.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/completion.h"
#include "core/request.h"
#include "core/step_plan.h"
#include "core/types.h"

namespace llmb {

// Thread-safe while constant. Every value of prefix_hash is as good as random in all its bits.
struct LedgerModel {
  int32_t vocab_size = 0;  // >= 1
  std::vector<TokenId> eos_token_ids;
  uint64_t seed = 0;
  // Probability that a step ends with one of eos_token_ids; nullopt: they are as frequent as any other token.
  std::optional<double> eos_rate;

  uint64_t empty_prefix(int32_t adapter = kNoAdapter) const;  // each adapter is another model
  static uint64_t extend(uint64_t prefix_hash, TokenId token) {
    return mix(prefix_hash ^ mix(static_cast<uint32_t>(token)));
  }

  // The token after a prefix; mask and bias of -infinity forbid tokens, other bias means nothing. With temperature > 0 the
  // row's random numbers (rng, position) decide too, and so does every entry of penalty, in any order. nullopt: every
  // token is forbidden.
  std::optional<TokenId> next_token(uint64_t prefix_hash, const SampleRow& row, std::span<const TokenBias> bias,
                                    std::span<const TokenPenalty> penalty,
                                    std::span<const uint32_t> mask = {}) const;
  static float logprob(uint64_t prefix_hash);  // of the chosen token, in [-2, -0.5]

 private:
  // The finalizer of splitmix64 (Steele, Lea, Flood, "Fast Splittable Pseudorandom Number Generators", 2014).
  static uint64_t mix(uint64_t x) {
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
  }
  bool is_eos(TokenId token) const;
};

struct LedgerCompletion {
  std::vector<TokenId> tokens;
  FinishReason finish = FinishReason::kLength;
  std::optional<TokenId> stop_token;
};

// The answer that the request must get, whatever the schedule: one sequence alone, without batches, blocks or chunks.
// REQUIRES: the prompt is shorter than max_model_len.
LedgerCompletion ledger_reference(const LedgerModel& model, const Request& request, int32_t max_model_len,
                                  int32_t choice = 0);

}  // namespace llmb
