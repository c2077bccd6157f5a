// Lookahead decoding (Fu et al. 2024), one model alone: a window of guessed tokens behind the last one is computed with
// each step, and what the model draws for them becomes the next step's window (Jacobi iteration). The n-grams that come
// up this way go into a pool, and those that begin with the sequence's last token are guesses. Window and n-grams are
// the branches of one tree, so a step verifies the old ones while it makes new ones.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "speculation/acceptance.h"
#include "speculation/drafter.h"

namespace llmb {

struct LookaheadOptions {
  int32_t window = 4;      // columns: positions that are looked ahead
  int32_t num_levels = 2;  // rows of the window: an n-gram has two tokens more
  int32_t num_ngrams = 3;  // of the pool, in a guess
  int32_t pool_size = 8;   // n-grams that begin with one token, the newest
};

class LookaheadDrafter final : public Drafter {
 public:
  explicit LookaheadDrafter(const LookaheadOptions& options = {}) : options_(options) {}

  std::string name() const override { return "lookahead"; }
  void draft(std::span<const Sequence* const> sequences, const DraftLimits& limits, std::span<Guess> guesses) override;
  void learn(const Sequence& sequence, const Guess& guess, std::span<const Verdict> verdicts) override;
  void see(const StepPlan& plan, const StepOutput& output) override;
  void forget(const Sequence& sequence) override { rows_.erase(sequence.id); }

 private:
  using Tokens = std::vector<TokenId>;
  struct Row {
    // [num_levels, window]  Column i of level l is guessed for the place i + l behind the sequence's last token; before
    // it stand the columns up to i of level 0, then column i of the levels between.
    std::vector<Tokens> window;
    std::unordered_map<TokenId, std::vector<Tokens>> pool;  // by the first token what follows it, the newest last
    TokenId last_token = 0;                                 // the sequence's, when it was asked last
  };

  void begin(const Sequence& sequence, Row* row) const;
  void add_ngrams(const Row& row, int32_t max_tokens, Guess* guess) const;
  void add_window(const Row& row, int32_t max_tokens, Guess* guess) const;
  void advance(const StepPlan& plan, const StepOutput& output, const SampleGroup& group, Row* row) const;
  void keep(TokenId first, Tokens rest, Row* row) const;

  const LookaheadOptions options_;
  std::unordered_map<SeqId, Row> rows_;
  Acceptance ngrams_{0.3}, window_{0.1};
};

}  // namespace llmb
