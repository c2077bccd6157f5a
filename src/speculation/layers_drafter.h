// Drafts by layers that share the model's KV blocks, so that only drafts are computed twice: its own first layers and its
// head (self-speculation: Zhang et al. 2024, Elhoushi et al. 2024), for which no weight is loaded; or the layer behind
// its last one, which was trained for that, with the model (multi-token prediction: DeepSeek-AI 2024) or behind it (EAGLE:
// Li et al. 2024), and takes for the second token and further ones what it gave itself.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "backend/backend.h"
#include "backend/draft_feed.h"
#include "base/clock.h"
#include "core/step_cost.h"
#include "core/step_plan.h"
#include "speculation/acceptance.h"
#include "speculation/draft_confidence.h"
#include "speculation/drafter.h"
#include "speculation/unseen_steps.h"

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
//
// With OwnDrafts the drafts of rows that are drawn by their own numbers and logits alone, without penalties or a form,
// stay on the device: their guesses hold drafted_token()s, and a chain of steps and the step that verifies it wait for
// nobody. How long such a chain is goes by how often the row's drafts were right, as in ModelDrafter.
class LayersDrafter final : public Drafter {
 public:
  // Blocks that drafts of `max_tokens` take of a sequence, at most.
  static int32_t blocks_per_sequence(int32_t max_tokens, int32_t block_size);

  // The target's backend, which has nothing in flight when it is asked to draft by way of the host, and the clock outlive it.
  // own: of the target; or null both. REQUIRES: info().runs_first_layers, or info().has_mtp; one layer group that sees
  // everything
  LayersDrafter(Backend& target, const LayersDrafterOptions& options, const Clock& clock, OwnDrafts own = {});

  std::string name() const override { return options_.name; }
  void draft(std::span<const Sequence* const> sequences, const DraftLimits& limits, std::span<Guess> guesses) override;
  double acceptance(const Sequence& sequence) const override;
  double ms_per_token(int32_t num_sequences) const override {
    return std::max(kUnknownMs, cost_.ms(num_sequences));
  }
  bool guesses_behind(const Sequence& sequence) const override;
  bool needs_idle_target() const override { return own_queue_ == nullptr; }
  void see_drafts(std::span<TokenId> tokens) override;
  void learn(const Sequence& sequence, const Guess& guess, std::span<const Verdict> verdicts) override;
  void forget(const Sequence& sequence) override { acceptance_of_.erase(sequence.id); }

 private:
  struct Job {
    std::unique_ptr<Sequence> text;  // known tokens of the target's, then drafts
    Guess* guess = nullptr;
    std::vector<BlockId> table;
    std::optional<BlockCopy> copy;  // that its first plan makes
    bool is_fed = false;            // to the target on the device
    int32_t last = -1;              // drawn token, in the guess
    int32_t num_drawn = 0;
    double probability = 1;  // of being accepted
    double acceptance = 0;   // of the sequence's tokens
  };

  bool add_job(const Sequence& sequence, int32_t max_tokens, Guess* guess);
  bool is_fed(const Sequence& text) const;
  static bool is_long_enough(const Job& job, const DraftLimits& limits) {
    return job.num_drawn == limits.max_tokens || job.probability < limits.min_probability;
  }
  void begin_plan(StepPlan* plan) const;
  static void append_row(Job& job, StepPlan* plan);
  bool run_step(const DraftLimits& limits);
  void feed(const DraftLimits& limits);
  bool feed_step(const DraftLimits& limits);
  void give_up(const Status& status);

  Backend& target_;
  const std::unique_ptr<Backend> own_queue_;  // null: none
  const LayersDrafterOptions options_;
  const Clock& clock_;
  Acceptance acceptance_{0.7};
  std::unordered_map<SeqId, Acceptance> acceptance_of_;
  DraftConfidence confidence_;
  StepCost cost_;
  bool has_failed_ = false;
  std::optional<UnseenSteps> unseen_;  // with own_queue_
  // These belong to the call under way:
  std::vector<Job> jobs_;
  int32_t num_scratch_used_ = 0;
  StepPlan plan_;
  StepOutput output_;
  std::vector<Job*> planned_;
};

}  // namespace llmb
