// How often the tokens of a model that drafts are right, by how sure it was of them: its own probabilities, corrected
// by experience (as EAGLE-2 draws its trees by confidence, Li et al. 2024).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/step_plan.h"
#include "speculation/acceptance.h"
#include "speculation/guess.h"

namespace llmb {

class DraftConfidence {
 public:
  // The best tokens at a position: the drawn one, of rank 0, and up to three others.
  static constexpr int32_t kMaxRank = 3;

  DraftConfidence();

  // Adds to `guess`, behind `parent`, the outcome of a group of a draft model's step: the token that was drawn, and as
  // many of the best others as its sample row asked for. Returns the place of the drawn one. REQUIRES: the group gave
  // one, with log-probabilities
  int32_t add(const StepOutput& output, int32_t group, bool is_sampled, int32_t parent, Guess* guess) const;
  void learn(const Guess& guess, std::span<const Verdict> verdicts);

  // The same token by token: how likely a token of a kind is right.
  static int32_t kind_of(double probability, int32_t rank, bool is_sampled);
  double share(int32_t kind) const { return by_kind_[kind].share(); }
  void learn(int32_t kind, bool is_right) { by_kind_[kind].add(is_right); }
  // 0: drawn. `kind` is of a guess.
  static int32_t rank(int32_t kind) { return kind / kNumBins % (kMaxRank + 1); }

 private:
  static constexpr int32_t kNumBins = 12;  // of probabilities
  static int32_t bin_of(double probability);

  std::vector<Acceptance> by_kind_;
};

}  // namespace llmb
