// Drafts by layers that share the model's KV blocks, so that only drafts are computed twice: its own first layers and its
// head (self-speculation: Zhang et al. 2024, Elhoushi et al. 2024), for which no weight is loaded; or the layer behind
// its last one, which was trained for that, with the model (multi-token prediction: DeepSeek-AI 2024) or behind it (EAGLE:
// Li et al. 2024), and takes for the second token and further ones what it gave itself.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "backend/backend.h"
#include "base/clock.h"
#include "core/step_cost.h"
#include "core/step_plan.h"
#include "speculation/acceptance.h"
#include "speculation/draft_confidence.h"
#include "speculation/drafter.h"

namespace llmb {

struct LayersDrafterOptions {
  int32_t num_layers = 0;         // of the model's, the first ones; 0: the one behind the last
  int32_t max_model_len = 0;      // what lies behind it is not drafted
  BlockId first_scratch = 0;      // blocks of the pool that nobody else has
  int32_t num_scratch = 0;
  bool guesses_trees = false;     // beside each drawn token the next best ones
  std::string name = "layers";
};

// Drafts stand in blocks of its own, behind those of the sequence, which are only read; where its last block has room
// left, in a copy of it. Where blocks lack, later sequences are not drafted for. A step that fails ends all drafting:
// the target's next step will tell.
class LayersDrafter final : public Drafter {
 public:
  // Blocks that drafts of `max_tokens` take of a sequence, at most.
  static int32_t blocks_per_sequence(int32_t max_tokens, int32_t block_size);

  // The target's backend, which has nothing in flight when it is asked to draft, and the clock outlive it.
  // REQUIRES: info().runs_first_layers, or info().has_mtp; one layer group that sees everything
  LayersDrafter(Backend& target, const LayersDrafterOptions& options, const Clock& clock);

  std::string name() const override { return options_.name; }
  void draft(std::span<const Sequence* const> sequences, const DraftLimits& limits, std::span<Guess> guesses) override;
  double acceptance(const Sequence& sequence) const override;
  double ms_per_token(int32_t num_sequences) const override { return cost_.ms(num_sequences); }
  void learn(const Sequence& sequence, const Guess& guess, std::span<const Verdict> verdicts) override;
  void forget(const Sequence& sequence) override { acceptance_of_.erase(sequence.id); }

 private:
  struct Job {
    std::unique_ptr<Sequence> text;  // known tokens of the target's, then drafts
    Guess* guess = nullptr;
    std::vector<BlockId> table;
    int32_t last = -1;  // drawn token, in the guess
    int32_t num_drawn = 0;
    double probability = 1;  // of being accepted
  };

  bool add_job(const Sequence& sequence, int32_t max_tokens, Guess* guess);
  bool run_step(const DraftLimits& limits);

  Backend& target_;
  const LayersDrafterOptions options_;
  const Clock& clock_;
  Acceptance acceptance_{0.7};
  std::unordered_map<SeqId, Acceptance> acceptance_of_;
  DraftConfidence confidence_;
  StepCost cost_;
  bool has_failed_ = false;
  // These belong to the call under way:
  std::vector<Job> jobs_;
  int32_t num_scratch_used_ = 0;
  std::vector<BlockCopy> copies_;
  StepPlan plan_;
  StepOutput output_;
  std::vector<Job*> planned_;
};

}  // namespace llmb
