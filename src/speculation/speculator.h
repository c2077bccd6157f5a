// The proposer of drafts that pay: asks the drafters, and gives each plan as many of their tokens as make it faster.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "core/step_cost.h"
#include "scheduler/proposer.h"
#include "speculation/drafter.h"
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
    int64_t num_drafted = 0, num_accepted = 0;
  };
  std::vector<Kind> drafters;
  int64_t num_steps = 0;                  // with drafts in them
  int64_t num_groups = 0, num_given = 0;  // of sequences drafted for in these steps; tokens that they gave
  // In them, beside the learned cost of steps without drafts: by what was expected to be accepted, and by what was
  // accepted and how long the steps took.
  double predicted_saved_ms = 0, measured_saved_ms = 0;
};

// Where it is off, steps run as without a proposer, one planned ahead of the other. Where it is on, nothing is planned
// ahead: a sequence that waited to be seen while others went on would get every second step only.
class Speculator final : public Proposer {
 public:
  // The clock and the cost, to which the engine adds each step before on_step(), outlive it. REQUIRES: a drafter
  Speculator(const SpeculatorOptions& options, std::vector<std::unique_ptr<Drafter>> drafters, const StepCost& cost,
             const Clock& clock);

  void begin_plan(std::span<const Sequence* const> decoding, int32_t num_rows) override;
  void propose(const Sequence& sequence, int32_t max_drafts, Drafts* drafts) override;
  bool must_see(const Sequence&) const override { return false; }
  bool must_see_all() const override { return is_on(); }
  void on_verified(const Sequence& sequence, int32_t num_drafts, int32_t num_accepted) override;
  void on_end(const Sequence& sequence) override;
  void on_step(const StepPlan& plan, const StepOutput& output, double step_ms, double gap_ms) override;

  const SpeculationMetrics& metrics() const { return metrics_; }

 private:
  struct Choice {
    size_t drafter = 0;
    Guess guess;
    int32_t num_output_tokens = 0;  // of the sequence, before the guess
    double urgency = 1;
  };

  bool is_on() const { return options_.drafts_always || switch_.is_on(); }
  void ask(size_t drafter, std::span<const Sequence* const> decoding, int32_t num_rows);
  void draft(Drafter& drafter, const DraftLimits& limits);  // asked_ -> guesses_
  DraftLimits limits_worth_asking(const Drafter& drafter, std::span<const Sequence* const> sequences,
                                  int32_t num_rows) const;
  double urgency(const Sequence& sequence) const;
  void keep_what_pays(std::span<const Sequence* const> decoding, int32_t num_rows);
  int32_t num_worth(const std::vector<double>& probabilities, int32_t num_rows) const;

  const SpeculatorOptions options_;
  const std::vector<std::unique_ptr<Drafter>> drafters_;
  const StepCost& cost_;
  const Clock& clock_;
  SpeculationSwitch switch_;
  SpeculationMetrics metrics_;
  // For the plan that is made, or in flight while it is on:
  std::unordered_map<SeqId, Choice> choices_;
  std::vector<const Sequence*> asked_;
  std::vector<Guess> guesses_;
  int32_t num_decoding_ = 0, most_decoding_ = 0;  // most: of the run
  bool was_on_ = false;
  double drafting_ms_ = 0, draft_ms_ = 0;  // without what is invested
  double invested_ms_ = 0;                 // and not yet charged
  double expected_ = 0;                    // to be accepted
  int64_t num_accepted_ = 0;
  double gap_without_ms_ = 0;  // between steps without drafting
};

}  // namespace llmb
