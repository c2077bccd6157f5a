// Steps of a drafter that nobody waits for: of a chain each follows the one before it on the device, as a plan ahead
// does, and what it draws is copied to a feed's slots behind it, for the step that verifies it. The host sees them later.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "backend/draft_feed.h"
#include "base/status.h"
#include "core/step_plan.h"
#include "scheduler/sequence.h"
#include "speculation/guess.h"

namespace llmb {

struct UnseenStep {
  StepPlan plan;
  bool catches_up = false;  // also reads what was known: known to the drafter
  int64_t number = 0;       // of all such steps
  int64_t for_plan = 0;     // of the target's
  int32_t first_slot = 0;   // of its drafts
  int32_t num_best = 0;     // tokens of each group, which is kBest; 0: of each the one that it draws
  struct Draft {
    SeqId seq;
    int32_t index;  // of the text's output tokens; not of the best ones
    bool is_sampled;
  };
  std::vector<Draft> drafts;  // [groups]
};

// Texts hold some token in place of those that are not seen yet. A text may have a group of the target's plan in flight:
// then its chain goes on from what that gives, which the host need not know. So guesses for one plan may begin before the
// plan before it has run; each of the two has half of the slots.
class UnseenSteps {
 public:
  // A step that has run, before it is forgotten; what is not ok ends drafting.
  using See = std::function<Status(const UnseenStep& step, const StepOutput& output)>;

  // The backend, which gets the plans, outlives it. feed: from them to the target
  UnseenSteps(Backend& backend, std::unique_ptr<DraftFeed> feed, See see);

  // Guesses for this plan of the target's begin. Those for it before, and those for plans but the one before it, are in
  // plans that have run, or nobody wants them.
  void begin_guesses(int64_t plan) {
    plan_ = plan;
    first_slot_ = next_slot_ = static_cast<int32_t>(plan % kMaxPlansInFlight) * num_slots_of_plan();
  }
  // A step without rows behind the others. Where the backend holds no more of them, the oldest must have run.
  UnseenStep& begin(int32_t num_best = 0);
  int32_t num_free_slots() const { return first_slot_ + num_slots_of_plan() - next_slot_; }
  bool has_slot() const { return num_free_slots() > 0; }  // for one draft more of this step
  // The step's last row, the text's newest known token or the one that is not seen, draws the next token of the guess.
  // REQUIRES: has_slot(); a text with such an entry and no other one
  void add_draft(double acceptance, Sequence* text, Guess* guess);
  // The newest group's best tokens are drafts, in slots from what is returned on, best first. REQUIRES: so many are free
  int32_t add_best(bool is_sampled);
  // Stands for the kind of a draft in this slot until it is seen.
  static constexpr int32_t kind_of_slot(int32_t slot) { return -1 - slot; }
  // Queues the step that begin() gave. False: it has no rows, or drafting has ended; it is forgotten.
  bool submit();
  // The text goes on as if its last draft, if there is one, were seen; or one token of its group in flight.
  static void end_chain(Sequence* text);

  void see_all();
  // In the place of drafted_token()s, of one plan that has run, and of the slots of its guesses: what was drafted there.
  // Sees no later steps than it needs. REQUIRES: but for the next plan nothing has been drafted since
  void put_tokens(std::span<TokenId> tokens);
  Guess with_kinds(Guess guess) const;  // behind put_tokens()
  // Not ok: nothing is queued any more.
  const Status& failure() const { return failure_; }

 private:
  int32_t num_slots_of_plan() const { return feed_->num_slots() / kMaxPlansInFlight; }
  void see_oldest();
  void fail(const Status& status);

  Backend& backend_;
  const std::unique_ptr<DraftFeed> feed_;
  const See see_;
  std::deque<UnseenStep> steps_;  // in flight, the oldest first, and one that begin() gave
  int64_t num_steps_ = 0, plan_ = 0;
  int32_t first_slot_ = 0, next_slot_ = 0;  // of the guesses that have begun
  // The newest draft in a slot.
  struct Slot {
    int64_t step = -1;  // its number; -1: none
    int32_t kind = 0;   // by DraftConfidence
    TokenId token = 0;  // drafted_token() where it is not known
  };
  std::vector<Slot> slots_;
  Status failure_;
  StepOutput output_;
};

}  // namespace llmb
