// Drafts by heads on the target's last hidden state (Medusa: Cai et al. 2024): each guesses one place further, without
// seeing the others, and the likeliest combinations of their best tokens form a tree. The backend keeps the hidden
// states of a step and runs the heads (StepPlan::hidden_rows).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "base/clock.h"
#include "core/step_cost.h"
#include "core/step_plan.h"
#include "speculation/acceptance.h"
#include "speculation/draft_confidence.h"
#include "speculation/drafter.h"

namespace llmb {

// As the backend was loaded.
struct MedusaDrafterOptions {
  int32_t max_num_seqs = 0, max_num_tokens = 0, max_num_samples = 0;  // of a plan
};

// A sequence that was not in the newest step is not drafted for. A step of heads that fails ends all drafting: the
// target's next step will tell.
class MedusaDrafter final : public Drafter {
 public:
  // The target's backend, which has nothing in flight when it is asked to draft, and the clock outlive it.
  // REQUIRES: info().num_heads > 0
  MedusaDrafter(Backend& target, const MedusaDrafterOptions& options, const Clock& clock);

  std::string name() const override { return "medusa"; }
  void draft(std::span<const Sequence* const> sequences, const DraftLimits& limits, std::span<Guess> guesses) override;
  double acceptance(const Sequence& sequence) const override;
  double ms_per_token(int32_t num_sequences) const override { return cost_.ms(num_sequences) / num_heads_; }
  void learn(const Sequence& sequence, const Guess& guess, std::span<const Verdict> verdicts) override;
  void see(const StepPlan& plan, const StepOutput& output) override;
  void forget(const Sequence& sequence) override { acceptance_of_.erase(sequence.id); }

 private:
  static constexpr int32_t kMaxNodes = 32;  // of a tree
  // The newest step's last token of a sequence, and the sample row that gave it.
  struct Given {
    int32_t sample_row;
    TokenId token;
  };

  void run(std::span<const Sequence* const> sequences, int32_t num_heads, double min_probability,
           std::span<Guess> guesses);
  void add_tree(int32_t place, int32_t num_heads, bool is_sampled, double min_probability, Guess* guess) const;

  Backend& target_;
  const MedusaDrafterOptions options_;
  const Clock& clock_;
  const int32_t num_heads_;
  std::vector<DraftConfidence> confidence_;  // by head
  Acceptance acceptance_{0.6};               // of the first head's best token
  std::unordered_map<SeqId, Acceptance> acceptance_of_;
  StepCost cost_;
  bool has_failed_ = false;
  std::vector<std::pair<SeqId, Given>> given_;  // by the newest step, by sequence
  // These belong to the call under way:
  std::vector<const Sequence*> planned_;
  std::vector<size_t> places_;  // of planned_, in the call
  StepPlan plan_;
  StepOutput output_;
};

}  // namespace llmb
