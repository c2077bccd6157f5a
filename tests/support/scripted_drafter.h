// Knows what the ledger will answer, and is as often right as it is told.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "backend/ledger/ledger_model.h"
#include "speculation/drafter.h"
#include "tests/support/test_rng.h"

namespace llmb::test {

struct DrafterScript {
  double right_rate = 0.5;   // of tokens behind right ones
  double branch_rate = 0;    // of tokens that stand beside the one before, not behind it
  double claimed = -1;       // acceptance that it claims, whatever it sees; < 0: any
  bool drafts_most = false;  // else any number of tokens
  int32_t one_in = 1;        // sequence of so many it has guesses for
  bool while_steps_run = true;
  double ms_per_token = 0;   // that it says it takes
  uint64_t seed = 0;
};

class ScriptedDrafter final : public Drafter {
 public:
  ScriptedDrafter(LedgerModel model, int32_t max_model_len, const DrafterScript& script);

  std::string name() const override { return "scripted"; }
  void draft(std::span<const Sequence* const> sequences, const DraftLimits& limits, std::span<Guess> guesses) override;
  double ms_per_token(int32_t) const override { return script_.ms_per_token; }
  bool guesses_while_steps_run() const override { return script_.while_steps_run; }
  void learn(const Sequence& sequence, const Guess& guess, std::span<const Verdict> verdicts) override;
  void forget(const Sequence& sequence) override { answers_.erase(sequence.id); }

 private:
  const std::vector<TokenId>& answer_to(const Sequence& sequence);

  const LedgerModel model_;
  const int32_t max_model_len_;
  const DrafterScript script_;
  TestRng rng_;
  std::unordered_map<SeqId, std::vector<TokenId>> answers_;
};

}  // namespace llmb::test
