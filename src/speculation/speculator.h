// The proposer of drafts that pay: asks the drafters, and gives each plan as many of their tokens as make it faster.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "core/plans_in_flight.h"
#include "core/step_cost.h"
#include "scheduler/proposer.h"
#include "speculation/drafter.h"
#include "speculation/drafter_looks.h"
#include "speculation/speculation_switch.h"

namespace llmb {

struct SpeculatorOptions {
  int32_t max_tokens = 16;       // drafted for one sequence in a step, on all paths
  int32_t max_step_tokens = 64;  // for all sequences
  bool drafts_always = false;    // else as many as pay, mostly
};

// A value in constant memory.
struct SpeculationMetrics {
  struct Kind {
    std::string name;
    int64_t num_steps = 0;  // of a sequence, that verified tokens of its
    int64_t num_drafted = 0, num_accepted = 0;
  };
  std::vector<Kind> drafters;
  int64_t num_steps = 0;                  // with drafts in them
  int64_t num_tree_steps = 0;             // of these, where some of a sequence's are alternatives to each other
  int64_t num_groups = 0, num_given = 0;  // of sequences drafted for in these steps; tokens that they gave
  // In them, beside the learned cost of steps without drafts: by what was expected to be accepted, and by what was
  // accepted and how long the steps took.
  double predicted_saved_ms = 0, measured_saved_ms = 0;
  DraftBlocks blocks;  // of drafters together; most: the sum of theirs
};

// Where it is off, steps run as without a proposer, one planned ahead of the other. Where it is on, it takes the faster
// of two ways, by what steps cost and how long the device waits for the host between two steps:
//  - Together: all sequences are seen before each plan, any of them may have drafts, and nothing is planned ahead.
//  - Alone: a sequence with drafts in flight sits out the plan ahead, the others do not, so the device never waits. Such
//    a sequence gets every second step only: those whose guesses make up for it have drafts. Now and then all are seen
//    before a plan, as others may have good guesses by then.
// While it is off, drafters that take time and may still turn out to pay are looked at now and then (drafter_looks.h).
// Where the drafters may guess behind what nobody has seen, for all sequences, neither is needed: each plan is planned
// ahead, drafts included, and the device goes from one to the next. A sequence's guesses for two plans are in flight then.
class Speculator final : public Proposer {
 public:
  // The clock and the cost, to which the engine adds each step before on_step(), outlive it. REQUIRES: a drafter
  Speculator(const SpeculatorOptions& options, std::vector<std::unique_ptr<Drafter>> drafters, const StepCost& cost,
             const Clock& clock);

  void begin_plan(const PlanOutlook& outlook) override;
  void propose(const Sequence& sequence, int32_t max_drafts, Drafts* drafts) override;
  bool must_see(const Sequence& sequence) const override { return !goes_behind_ && in_flight_.contains(sequence.id); }
  bool must_see_all() const override {
    return (is_on() && num_alone_left_ == 0 && !goes_behind_) || looks_.next != DrafterLooks::kNobody;
  }
  bool forms_one_plan() const override { return is_on() && needs_idle_target_; }
  void see_drafts(StepPlan* plan) override;
  void on_verified(const Sequence& sequence, int32_t num_drafts, int32_t num_accepted) override;
  void on_end(const Sequence& sequence) override;
  std::string drafter_name(int32_t drafter) const override { return drafters_.at(drafter)->name(); }
  void on_step(const StepPlan& plan, const StepOutput& output, double step_ms, double gap_ms) override;

  SpeculationMetrics metrics() const;
  int64_t num_looks() const { return looks_.count; }

 private:
  struct Choice {
    size_t drafter = 0;
    Guess guess;
    int32_t num_output_tokens = 0;  // of the sequence, before the guess; at least, where others are in flight
    double urgency = 1;
    int64_t step = 0;  // that verifies it
  };
  // Where plans go through stages of a pipeline the cost is what one stage takes.
  struct Stages {
    double per_step = 1;    // as many of these a step takes
    int32_t num_plans = 1;  // in which the plan's rows would be without drafts, all in flight
  };
  // A plan that has not run yet.
  struct Planned {
    bool is_on = false, is_ahead = false;
    bool has_look = false;                 // then drafting_ms is the look's, and nothing else is drafted
    double drafting_ms = 0, draft_ms = 0;  // that the device waited; draft_ms: without what is invested
    double expected = 0;                   // drafts to be accepted
    double promise = 0;                    // of a trial's step, see SpeculationSwitch::add()
    int32_t num_sitting_out = 0;           // sequences
    Stages stages;
  };
  // Guesses of sequences that sit out every second plan for them.
  struct Alone {
    std::vector<std::pair<SeqId, Guess>> guesses;
    int32_t num_tokens = 0;
    double expected = 0;
  };

  // How many of the first drafts make most tokens a millisecond, how many tokens a step gives with them, and how many
  // times the rate without any that is.
  struct Worth {
    int32_t count = 0;
    double given = 0, gain = 1;
  };

  bool is_on() const { return options_.drafts_always || switch_.is_on(); }
  static Stages stages_of(const PlanOutlook& outlook);
  // A step of so many rows, and as many rows without drafts.
  double ms(int32_t num_rows) const { return stages_.per_step * cost_.ms(num_rows); }
  double hopeful_ms(int32_t num_rows) const { return stages_.per_step * cost_.hopeful_ms(num_rows); }
  double ms_without(int32_t num_rows) const { return ms(rows_without(num_rows)); }
  double hopeful_ms_without(int32_t num_rows) const { return hopeful_ms(rows_without(num_rows)); }
  int32_t rows_without(int32_t num_rows) const {
    return static_cast<int32_t>(ceil_div(num_rows, stages_.num_plans));
  }
  void begin_choices(const PlanOutlook& outlook);
  int32_t num_sitting_out(const PlanOutlook& outlook) const;
  bool may_pay(const PlanOutlook& outlook);
  bool may_pay(const Drafter& drafter, const PlanOutlook& outlook) const;
  void choose_look(const PlanOutlook& outlook);
  void look(const PlanOutlook& outlook);
  void judge_look(const PlanOutlook& outlook);
  bool is_passed_over(size_t drafter) const {
    return !options_.drafts_always && switch_.is_trial() && num_passed_over_[drafter] > 0;
  }
  void ask(size_t drafter, const PlanOutlook& outlook);
  void draft(Drafter& drafter, DraftLimits limits);  // asked_ -> guesses_
  // For a drafter, and how many times the rate without any drafts that is expected to give.
  struct Asking {
    DraftLimits limits;
    double gain = 1;
  };
  Asking worth_asking(int32_t count, double ms_per_token, double acceptance, int32_t num_rows, const Worth& base,
                      double share = 1) const;
  DraftLimits limited(DraftLimits worth, double ms_per_token) const;
  double gain_in_trial(double ms_per_token, int32_t num_rows, const Worth& base);
  // That a step which all sequences are seen before waits longer for the host than another, drafting aside.
  double seeing_all_ms() const {
    return goes_behind_ ? 0 : std::max(0.0, gap_together_ms_ - gap_drafting_ms_ - gap_without_ms_);
  }
  double urgency(const Sequence& sequence) const;
  void choose(const PlanOutlook& outlook);
  void keep_what_pays(const PlanOutlook& outlook, Planned* planned);
  bool may_go_alone() const;
  Alone guesses_worth_waiting(const PlanOutlook& outlook) const;
  bool is_faster(const Alone& alone, const PlanOutlook& outlook) const;
  void keep(const Alone& alone, const PlanOutlook& outlook);
  static std::vector<Verdict> judge(const Guess& guess, const Sequence& sequence, int32_t num_output_tokens);
  Choice* find_choice(const Sequence& sequence);
  Worth worth(const std::vector<double>& probabilities, int32_t num_rows, double share_accepted = 1,
              double host_ms = 0, double spent_ms = 0) const;
  double promise(const std::vector<double>& probabilities, int32_t num_rows) const;
  double without_accident(double gap_cost_ms);

  const SpeculatorOptions options_;
  const std::vector<std::unique_ptr<Drafter>> drafters_;
  const StepCost& cost_;
  const Clock& clock_;
  SpeculationSwitch switch_;
  const bool needs_idle_target_;
  Stages stages_;  // of the plan that is made, or has run
  SpeculationMetrics metrics_;
  std::vector<const Sequence*> candidates_;    // for guesses in the plan that is made
  std::unordered_map<SeqId, Choice> choices_;  // for it
  std::unordered_map<SeqId, std::vector<Choice>> in_flight_;  // the oldest first
  int64_t step_ = 0;                                          // of the plan that is made
  BlockAllocator* lender_ = nullptr;                          // as in its outlook
  int32_t num_in_flight_ = 0;                                 // likewise
  bool goes_behind_ = false, will_go_behind_ = false;         // will: from the next step that has run on
  std::array<Planned, kMaxAlternatingPlans> planned_;  // by plans in flight before it
  std::vector<const Sequence*> asked_;
  std::vector<Guess> guesses_;
  int32_t num_giving_ = 0, most_giving_ = 0;  // sequences that the plan gives a token; most: of the run
  bool plans_ahead_ = false;                  // the engine has
  int32_t num_alone_left_ = 0;                // plans until all are seen again
  double spent_ms_ = 0;                       // on guesses for the plan that is made
  double invested_ms_ = 0;                    // and not yet charged
  int64_t num_accepted_ = 0;
  struct Trial {
    double expected = 0, accepted = 0;  // drafts that were verified
    std::vector<double> claimed;        // acceptances of all drawn drafts of drafters that take time
    double left_ms = 0;  // for drafters, not yet spent
  };
  Trial trial_;  // the newest
  DrafterLooks looks_;
  std::vector<int32_t> num_passed_over_;  // [drafters] steps of trials in a row; <= 0: it takes part
  double usual_gap_cost_ms_ = 0;
  double gap_without_ms_ = 0;   // between steps without drafting
  double gap_together_ms_ = 0;  // before a step that sees all,
  double gap_drafting_ms_ = 0;  // and of that drafting
};

}  // namespace llmb
