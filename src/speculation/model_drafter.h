// Drafts by a second, smaller model with the same tokenizer (Leviathan et al. 2023). It draws with the same numbers as
// the target, request, choice and position, so that its samples meet the target's as often as they can.
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
#include "speculation/draft_prefixes.h"
#include "speculation/drafter.h"
#include "speculation/unseen_steps.h"

namespace llmb {

struct ModelDrafterOptions {
  int32_t max_num_batched_tokens = 0;  // as the backend was loaded
  int32_t max_num_seqs = 0;
  int32_t max_model_len = 0;  // what lies behind it is not drafted
  bool guesses_trees = false;  // beside each drawn token the next best ones
  LentBlocks lent = {};        // where the backend's pool is the target's
};

// Keeps the keys and values of its sequences in the backend's pool, those of prompts that rows have in common once
// (draft_prefixes.h). Where that is full, sequences that are not drafted for give theirs up, and a sequence that finds no
// room is not drafted for. Where it is the target's pool, blocks are lent as they are needed, and the target takes them
// back whenever it needs them: then sequences that were drafted for longest ago lose theirs first, and are read again when
// there is room. A step of the backend that fails ends all drafting: the answers do not need it.
//
// With a DraftFeed the drafts of rows that are drawn by their own numbers and logits alone, without penalties or a form,
// go to the target on the device (model_drafter_feed.cpp): their guesses hold drafted_token()s, and a chain of steps and
// the step that verifies it wait for nobody. How long such a chain is goes by how often the row's drafts were right; how
// sure the model was of each token is seen only afterwards. A chain may begin behind a plan in flight of the target's: its
// first step also computes the token before the last one that the target gives, which may be the last draft before.
class ModelDrafter final : public Drafter, private BlockBorrower {
 public:
  // The clock outlives it. The backend is loaded, and nobody else's. feed: from it to the target, which is the only one to
  // read its guesses; null: none
  ModelDrafter(std::unique_ptr<Backend> backend, const ModelDrafterOptions& options, const Clock& clock,
               std::unique_ptr<DraftFeed> feed = nullptr);

  std::string name() const override { return "draft"; }
  void draft(std::span<const Sequence* const> sequences, const DraftLimits& limits, std::span<Guess> guesses) override;
  double acceptance(const Sequence& sequence) const override;
  double ms_per_token(int32_t num_sequences) const override {
    return std::max(kUnknownMs, cost_.ms(num_sequences));
  }
  double take_invested_ms() override;
  bool guesses_behind(const Sequence& sequence) const override { return is_fed(sequence); }
  void see_drafts(std::span<TokenId> tokens) override;
  void learn(const Sequence& sequence, const Guess& guess, std::span<const Verdict> verdicts) override;
  DraftBlocks blocks() const override { return {prefixes_.most_lent(), num_taken_back_}; }
  void forget(const Sequence& sequence) override;

 private:
  struct Row {
    std::unique_ptr<Sequence> text;  // known tokens of the target's, then drafts
    Acceptance acceptance;
    int64_t last_call = 0;
    int64_t last_plan = -2;  // of the target's, that steps which nobody waits for drafted for; < 0: none
    int64_t text_plan = -1;  // that those drafts in the text are for which are not seen yet; < 0: there are none
  };
  struct Job {
    Sequence* text;
    Guess* guess;
    int32_t last = -1;       // drawn token, in the guess
    int32_t num_drawn = 0;
    double probability = 1;  // of being accepted
    double acceptance = 0;   // of the row's tokens
    Row* row = nullptr;
    const Sequence* target = nullptr;  // where it is behind a plan in flight, else null
  };
  Row* row_for(const Sequence& sequence, const DraftLimits& limits);
  static bool follow(const Sequence& sequence, int64_t plan, Row* row);
  BlockId give_back(bool even_used) override;
  BlockAllocator* lender_for(const DraftLimits& limits);
  void make_room();
  static bool goes_on(const Job& job, const DraftLimits& limits);
  bool run_step(std::span<Job> jobs, const DraftLimits& limits);
  void add_entry(Sequence* text, int32_t num_tokens, StepPlan* plan);
  bool run_plan(bool catches_up);
  void give_up(const Status& status);
  bool is_fed(const Sequence& text) const;
  bool is_group_known(const Sequence& sequence) const;
  static int32_t most_first_rows(const Sequence& sequence);
  void feed(std::span<Job> jobs, const DraftLimits& limits);
  bool catch_up(std::span<Job> jobs);
  bool feed_step(std::span<Job> jobs, const DraftLimits& limits);
  Status see_unseen(const UnseenStep& step, const StepOutput& output);
  void see_all();

  const std::unique_ptr<Backend> backend_;
  const ModelDrafterOptions options_;
  const Clock& clock_;
  DraftPrefixes prefixes_;
  std::unordered_map<SeqId, Row> rows_;
  Acceptance acceptance_{0.7};  // of the drawn tokens of all sequences
  DraftConfidence confidence_;
  StepCost cost_;
  double invested_ms_ = 0;
  int64_t num_calls_ = 0;
  BlockAllocator* lender_ = nullptr;  // of what it has of the target's pool; null: nothing was lent yet
  int64_t num_taken_back_ = 0;        // of that, used blocks
  bool has_failed_ = false;
  StepPlan plan_;
  StepOutput output_;
  std::vector<Job*> planned_;
  std::optional<UnseenSteps> unseen_;  // with a feed
};

}  // namespace llmb
