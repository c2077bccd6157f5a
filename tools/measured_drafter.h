// A bench's look at a drafter that guesses chains: how often tokens are right, by their place, and how long one takes.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "base/clock.h"
#include "core/step_cost.h"
#include "speculation/drafter.h"

namespace llmb {

struct DraftFacts {
  static constexpr int32_t kMaxTokens = 16;
  std::array<double, kMaxTokens> num_right = {}, num_judged = {};  // [places]  right: with all before it
  double ms = 0, num_steps = 0;  // that drafted, a token of each sequence in each; without prompts

  double ms_per_step() const { return ms / std::max(1.0, num_steps); }
  // The best ratio of the times without drafts and with as many of them for each row as pay most, by what steps cost.
  double predicted(const StepCost& curve, int32_t batch, int32_t max_rows) const {
    double best = 1, given = 1;
    for (int32_t k = 1; k <= kMaxTokens && batch * k <= max_rows; ++k) {
      given += num_right[k - 1] / std::max(1.0, num_judged[k - 1]);
      best = std::max(best, given * curve.ms(batch) / (curve.ms(batch * (k + 1)) + k * ms_per_step()));
    }
    return best;
  }
};

class MeasuredDrafter final : public Drafter {
 public:
  // The facts outlive it.
  MeasuredDrafter(std::unique_ptr<Drafter> drafter, DraftFacts* facts) : drafter_(std::move(drafter)), facts_(*facts) {}

  std::string name() const override { return drafter_->name(); }
  void draft(std::span<const Sequence* const> sequences, const DraftLimits& limits, std::span<Guess> guesses) override {
    const double begin_ms = clock_.now_ms();
    drafter_->draft(sequences, limits, guesses);
    facts_.ms += clock_.now_ms() - begin_ms;
    int32_t longest = 0;
    for (const Guess& guess : guesses) longest = std::max(longest, guess.size());
    facts_.num_steps += longest;
  }
  double acceptance(const Sequence& sequence) const override { return drafter_->acceptance(sequence); }
  double ms_per_token(int32_t num_sequences) const override { return drafter_->ms_per_token(num_sequences); }
  bool guesses_one_by_one() const override { return drafter_->guesses_one_by_one(); }
  bool guesses_behind(const Sequence& sequence) const override { return drafter_->guesses_behind(sequence); }
  bool guesses_while_steps_run() const override { return drafter_->guesses_while_steps_run(); }
  double take_invested_ms() override {
    const double ms = drafter_->take_invested_ms();
    facts_.ms -= ms;
    return ms;
  }
  void see_drafts(std::span<TokenId> tokens) override { drafter_->see_drafts(tokens); }
  void learn(const Sequence& sequence, const Guess& guess, std::span<const Verdict> verdicts) override {
    bool is_right = true;
    for (int32_t i = 0; i < std::min(guess.size(), DraftFacts::kMaxTokens); ++i) {
      if (is_right && verdicts[i] == Verdict::kUnknown) break;  // behind the answer's end
      is_right = is_right && verdicts[i] == Verdict::kRight;
      facts_.num_right[i] += is_right;
      ++facts_.num_judged[i];
    }
    drafter_->learn(sequence, guess, verdicts);
  }
  void see(const StepPlan& plan, const StepOutput& output) override { drafter_->see(plan, output); }
  void forget(const Sequence& sequence) override { drafter_->forget(sequence); }

 private:
  const std::unique_ptr<Drafter> drafter_;
  DraftFacts& facts_;
  SteadyClock clock_;
};

}  // namespace llmb
