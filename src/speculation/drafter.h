// Something that guesses how sequences go on. A guess changes no byte of an answer (scheduler/proposer.h).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/types.h"
#include "scheduler/sequence.h"

namespace llmb {

// A guess: tokens behind a sequence's last one.
struct DraftChain {
  std::vector<TokenId> tokens;
  std::vector<double> acceptance;  // [tokens]  probability that it is right where those before it are

  void clear() { tokens.clear(), acceptance.clear(); }
  double expected() const;  // tokens that are accepted, on average
};

// Driven by the scheduler's thread.
class Drafter {
 public:
  virtual ~Drafter() = default;
  virtual std::string name() const = 0;

  // Adds a guess of at most max_tokens to each of `chains`, which are empty. All known tokens of the sequences are
  // seen.
  virtual void draft(std::span<const Sequence* const> sequences, int32_t max_tokens,
                     std::span<DraftChain> chains) = 0;  // [sequences]

  // Before it is asked: the probability that a token of the sequence's is right where those before it are; and the time
  // that one token for each of so many sequences takes. A drafter that costs nothing tells by its chains.
  virtual double acceptance(const Sequence& /*sequence*/) const { return 1; }
  virtual double ms_per_token(int32_t /*num_sequences*/) const { return 0; }

  // Time spent in draft() since the last call on reading prompts, on which later guesses build, too.
  virtual double take_invested_ms() { return 0; }

  // `num_drafts` tokens of its newest guess for the sequence were verified; the first `num_accepted` were right.
  virtual void learn(const Sequence& sequence, int32_t num_drafts, int32_t num_accepted) = 0;
  // The sequence has ended.
  virtual void forget(const Sequence& sequence) = 0;
};

}  // namespace llmb
