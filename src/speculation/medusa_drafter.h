// Drafts by heads on the target's last hidden state (Medusa: Cai et al. 2024): each guesses one place further, without
// seeing the others, and the likeliest combinations of their best tokens form a tree. The backend keeps the hidden
// states of a step and runs the heads (StepPlan::hidden_rows).
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
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

// As the backend was loaded.
struct MedusaDrafterOptions {
  int32_t max_num_seqs = 0, max_num_tokens = 0, max_num_samples = 0;  // of a plan
};

// A sequence that was not in the newest step is not drafted for. A step of heads that fails ends all drafting: the
// target's next step will tell.
//
// With OwnDrafts the trees of rows that are drawn by their own numbers and logits alone, without penalties or a form, stay
// on the device: their guesses hold drafted_token()s, and the step of heads and the one that verifies it wait for nobody
// (medusa_drafter_feed.cpp). The shape of such a tree goes by how often each head's best, second best and further tokens
// were right (as Medusa's own trees do, section 2.3.3): how sure a head was of each is seen only afterwards.
class MedusaDrafter final : public Drafter {
 public:
  // The target's backend, which has nothing in flight when it is asked to draft, and the clock outlive it.
  // own: of the target, whose slots nobody else drafts to; or null both. REQUIRES: info().num_heads > 0
  MedusaDrafter(Backend& target, const MedusaDrafterOptions& options, const Clock& clock, OwnDrafts own = {});

  std::string name() const override { return "medusa"; }
  void draft(std::span<const Sequence* const> sequences, const DraftLimits& limits, std::span<Guess> guesses) override;
  double acceptance(const Sequence& sequence) const override;
  double ms_per_token(int32_t num_sequences) const override {
    return std::max(kUnknownMs, cost_.ms(num_sequences) / num_heads_);
  }
  bool needs_idle_target() const override { return own_queue_ == nullptr; }
  void see_drafts(std::span<TokenId> tokens) override;
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

  // That is drafted for.
  struct Row {
    const Sequence* sequence;
    Guess* guess;
    Given given;
    bool is_sampled() const { return sequence->request->params.sampling.temperature > 0; }
  };
  // A place in a tree: a token of a head's.
  struct Node {
    double probability;  // that it is right, and all before it
    int32_t parent, head, rank;
    bool operator<(const Node& other) const { return probability < other.probability; }
  };
  // How often the token of a head at a rank is right where the ones before it are; 0: there is none
  using Share = std::function<double(int32_t head, int32_t rank)>;
  // Adds the token to the guess, and returns its place.
  using Add = std::function<int32_t(const Node& node)>;
  using SharesOfHeads = std::vector<std::array<Acceptance, DraftConfidence::kMaxRank + 1>>;

  const Given* given_to(const Sequence& sequence) const;
  void write_plan(std::span<const Row> rows, int32_t num_heads, StepPlan* plan) const;
  void run(std::span<const Row> rows, int32_t num_heads, double min_probability);
  static void grow_tree(int32_t num_heads, double min_probability, const Share& share, const Add& add);
  void add_tree(const Row& row, int32_t place, int32_t num_heads, double min_probability) const;
  bool is_fed(const Sequence& sequence) const;
  void feed(std::span<const Row> rows, int32_t num_heads, double min_probability);
  void add_unseen_tree(const Row& row, std::span<const int32_t> slots, double min_probability) const;
  void see_all();
  void give_up(const Status& status);

  Backend& target_;
  const std::unique_ptr<Backend> own_queue_;  // null: none
  const MedusaDrafterOptions options_;
  const Clock& clock_;
  const int32_t num_heads_;
  std::vector<DraftConfidence> confidence_;  // by head
  std::array<SharesOfHeads, 2> shares_;      // of tokens by rank, and by whether the row is sampled
  Acceptance acceptance_{0.6};               // of the first head's best token
  std::unordered_map<SeqId, Acceptance> acceptance_of_;
  StepCost cost_;
  bool has_failed_ = false;
  std::optional<UnseenSteps> unseen_;           // with own_queue_
  std::vector<std::pair<SeqId, Given>> given_;  // by the newest step, by sequence
  // These belong to the call under way:
  std::vector<Row> by_host_, fed_;
  StepPlan plan_;
  StepOutput output_;
};

}  // namespace llmb
