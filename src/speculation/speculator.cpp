#include "speculation/speculator.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"
#include "core/drafted_tokens.h"

namespace llmb {

Speculator::Speculator(const SpeculatorOptions& options, std::vector<std::unique_ptr<Drafter>> drafters,
                       const StepCost& cost, const Clock& clock)
    : options_(options), drafters_(std::move(drafters)), cost_(cost), clock_(clock), switch_(cost.is_known()),
      needs_idle_target_(std::ranges::any_of(drafters_, [](const auto& d) { return d->needs_idle_target(); })),
      looks_(drafters_.size()) {
  LLMB_CHECK(!drafters_.empty() && drafters_.size() <= static_cast<size_t>(kMaxDrafters));
  for (const auto& drafter : drafters_) metrics_.drafters.push_back({.name = drafter->name()});
  num_passed_over_.resize(drafters_.size());
}

// Where fewer plans than stages are in flight a step takes as long as several stages.
Speculator::Stages Speculator::stages_of(const PlanOutlook& outlook) {
  const int32_t num_plans = std::clamp(outlook.num_running, 1, outlook.num_alternating);
  if (!outlook.alternates) return {static_cast<double>(outlook.num_alternating), num_plans};
  return {static_cast<double>(outlook.num_alternating) / num_plans, 1};
}

void Speculator::begin_plan(const PlanOutlook& outlook) {
  Planned& planned = planned_[outlook.num_in_flight];
  planned = {};
  planned.stages = stages_ = stages_of(outlook);
  planned.is_ahead = outlook.num_in_flight > 0 && !outlook.alternates;
  plans_ahead_ |= planned.is_ahead;
  num_giving_ = static_cast<int32_t>(outlook.decoding.size()) + outlook.num_unseen;
  most_giving_ = std::max(most_giving_, num_giving_);
  begin_choices(outlook);
  if (planned.is_ahead) planned.num_sitting_out = num_sitting_out(outlook);
  judge_look(outlook);
  // One step before a trial it is known whether there is to be one, so that nothing waits for one that is put off.
  const bool may_try = switch_.is_trial() || (switch_.is_trial_next() && num_giving_ > 0);
  if (may_try && !options_.drafts_always && !may_pay(outlook)) switch_.put_off();
  if (!is_on()) {
    num_alone_left_ = 0;
    if (outlook.num_in_flight == 0 && looks_.next != DrafterLooks::kNobody) look(outlook);
    return choose_look(outlook);
  }
  looks_.next = DrafterLooks::kNobody;
  planned.is_on = true;
  const double begin_ms = clock_.now_ms();
  for (size_t i = 0; i < drafters_.size(); ++i)
    if (!is_passed_over(i)) ask(i, outlook);
  // Drafts that the host does not see take the device their time all the same.
  int32_t num_unseen = 0, most_unseen = 0;
  double unseen_ms = 0;
  for (const auto& [seq, choice] : choices_) {
    if (choice.guess.empty() || !is_drafted(choice.guess.tokens[0])) continue;
    most_unseen = std::max(most_unseen, std::ranges::max(choice.guess.depths()) + 1);
    unseen_ms = most_unseen * drafters_[choice.drafter]->ms_per_token(++num_unseen);
  }
  double now_invested_ms = 0;
  for (const auto& drafter : drafters_) now_invested_ms += drafter->take_invested_ms();
  const bool device_waits = outlook.num_in_flight == 0;
  spent_ms_ = std::max(device_waits ? clock_.now_ms() - begin_ms - now_invested_ms : 0, unseen_ms);
  choose(outlook);
  for (const Sequence* sequence : candidates_)
    if (const Choice* choice = find_choice(*sequence)) planned.expected += choice->guess.expected();
  const double took_ms = clock_.now_ms() - begin_ms;
  planned.draft_ms = unseen_ms;
  if (!device_waits) return;
  planned.drafting_ms = took_ms;
  planned.draft_ms = std::max(took_ms - now_invested_ms, unseen_ms);
  invested_ms_ += now_invested_ms;
  switch_.invest(now_invested_ms / std::max(1e-6, ms(outlook.num_rows)));
  metrics_.predicted_saved_ms -= now_invested_ms;
  metrics_.measured_saved_ms -= now_invested_ms;
}

// Where the batch thins the run's end is near, and whoever may still be long decides when that is.
double Speculator::urgency(const Sequence& sequence) const {
  if (10 * num_giving_ >= 9 * most_giving_) return 1;  // others join
  return sequence.max_new_tokens - sequence.num_output_tokens();
}

// Keeps of all guesses those that this plan verifies.
void Speculator::choose(const PlanOutlook& outlook) {
  constexpr int32_t kPlansAlone = 32;
  if (goes_behind_) return keep_what_pays(outlook, &planned_[outlook.num_in_flight]);
  if (outlook.num_in_flight > 0 && !outlook.alternates) {
    num_alone_left_ = std::max(0, num_alone_left_ - 1);
    return keep(guesses_worth_waiting(outlook), outlook);
  }
  num_alone_left_ = 0;
  Alone alone;
  if (may_go_alone()) alone = guesses_worth_waiting(outlook);
  keep_what_pays(outlook, &planned_[outlook.num_in_flight]);
  // A trial that drafts nothing teaches nothing.
  if (!may_go_alone() || (switch_.is_trial() && alone.guesses.empty()) || !is_faster(alone, outlook)) return;
  num_alone_left_ = kPlansAlone;
  keep(alone, outlook);
}

bool Speculator::may_go_alone() const {
  const auto guesses_ahead = [](const auto& drafter) { return drafter->guesses_while_steps_run(); };
  return plans_ahead_ && gap_together_ms_ > 0 && !options_.drafts_always &&
         std::all_of(drafters_.begin(), drafters_.end(), guesses_ahead);
}

// The best guesses, as far as the tokens that they add to this plan pay for the token that is missing in the next one.
Speculator::Alone Speculator::guesses_worth_waiting(const PlanOutlook& outlook) const {
  std::vector<std::pair<double, SeqId>> by_expected;
  for (const Sequence* sequence : outlook.decoding)
    if (const auto at = choices_.find(sequence->id); at != choices_.end())
      by_expected.emplace_back(-at->second.guess.expected(), sequence->id);
  std::sort(by_expected.begin(), by_expected.end());
  const double step_ms = ms(outlook.num_rows), ms_per_token = step_ms / std::max(1, num_giving_);
  int32_t most = options_.max_step_tokens;
  if (switch_.is_trial())  // what is expected may be wrong
    while (most > 1 + num_giving_ / 8 && ms(outlook.num_rows + most) > step_ms * 9 / 8) --most;
  Alone alone;
  for (const auto& [negative, seq] : by_expected) {
    Guess guess = choices_.at(seq).guess;
    guess.keep_first(most - alone.num_tokens);
    const double expected = guess.expected();
    const int32_t num_rows = outlook.num_rows + alone.num_tokens;
    if ((expected - 1) * ms_per_token <= ms(num_rows + guess.size()) - ms(num_rows)) break;
    if (switch_.is_trial() && 8 * static_cast<int32_t>(alone.guesses.size()) > num_giving_) break;
    alone.num_tokens += guess.size();
    alone.expected += expected;
    alone.guesses.emplace_back(seq, std::move(guess));
  }
  return alone;
}

// Than what is kept for going on together. Tokens a millisecond of two plans, the second of them without those that
// sit out, and of one plan.
bool Speculator::is_faster(const Alone& alone, const PlanOutlook& outlook) const {
  double expected = 0;
  int32_t num_tokens = 0;
  for (const Sequence* sequence : outlook.decoding)
    if (const auto at = choices_.find(sequence->id); at != choices_.end()) {
      expected += at->second.guess.expected();
      num_tokens += at->second.guess.size();
    }
  const auto num_alone = static_cast<int32_t>(alone.guesses.size());
  const double together_ms = ms(outlook.num_rows + num_tokens) + gap_together_ms_;
  const double alone_ms = ms(outlook.num_rows + alone.num_tokens) +
                          ms(std::max(1, outlook.num_rows - num_alone)) + gap_together_ms_ / 16;
  return (2 * num_giving_ + alone.expected - num_alone) * together_ms > (num_giving_ + expected) * alone_ms;
}

void Speculator::keep(const Alone& alone, const PlanOutlook& outlook) {
  for (const Sequence* sequence : outlook.decoding)
    if (Choice* choice = find_choice(*sequence)) choice->guess.clear();
  for (const auto& [seq, guess] : alone.guesses) choices_.at(seq).guess = guess;
}

// The likeliest tokens of all sequences.
void Speculator::keep_what_pays(const PlanOutlook& outlook, Planned* planned) {
  struct Candidate {
    double urgency, probability;
  };
  std::vector<Candidate> candidates;
  for (const Sequence* sequence : candidates_) {
    Choice* choice = find_choice(*sequence);
    if (choice == nullptr) continue;
    choice->urgency = urgency(*sequence);
    if (choice->guess.is_whole) continue;
    for (const double p : choice->guess.probabilities()) candidates.push_back({choice->urgency * p, p});
  }
  const size_t most = std::min(candidates.size(), static_cast<size_t>(options_.max_step_tokens));
  std::partial_sort(candidates.begin(), candidates.begin() + static_cast<std::ptrdiff_t>(most), candidates.end(),
                    [](const Candidate& a, const Candidate& b) { return a.urgency > b.urgency; });
  std::vector<double> probabilities;
  for (size_t i = 0; i < most; ++i) probabilities.push_back(candidates[i].probability);
  if (!options_.drafts_always) {
    size_t count = static_cast<size_t>(worth(probabilities, outlook.num_rows, 1, 0, spent_ms_).count);
    // A trial drafts a little in any case, else nothing would be learned: so much that the step's cost differs. And no
    // more, as what is expected may be wrong.
    if (switch_.is_trial()) {
      planned->promise = std::max(planned->promise, promise(probabilities, outlook.num_rows));
      count = std::min(most, static_cast<size_t>(1 + num_giving_ / 8));
    }
    probabilities.resize(count);
  }
  candidates.resize(probabilities.size());
  const double least = candidates.empty() ? std::numeric_limits<double>::infinity() : candidates.back().urgency;
  // Tokens that are as urgent as the last one: no more than fit.
  auto num_alike = std::count_if(candidates.begin(), candidates.end(),
                                 [least](const Candidate& candidate) { return candidate.urgency == least; });
  for (auto& [seq, choice] : choices_) {
    Guess& guess = choice.guess;
    if (guess.is_whole) continue;  // whole: while drafting pays as a whole
    const std::vector<double> all_right = guess.probabilities();
    std::vector<bool> is_kept(all_right.size());
    for (int32_t i = 0; i < guess.size(); ++i) {
      const bool has_parent = guess.parent(i) < 0 || is_kept[guess.parent(i)];
      const double urgency = choice.urgency * all_right[i];
      is_kept[i] = has_parent && (urgency > least || (urgency == least && num_alike-- > 0));
    }
    guess.keep(is_kept);
  }
}

// `probabilities` of being accepted, in the order in which they are taken, of which only this share is true. host_ms:
// that a step with drafts waits longer for the host than one without. spent_ms: on drafting, however many are taken.
Speculator::Worth Speculator::worth(const std::vector<double>& probabilities, int32_t num_rows, double share_accepted,
                                    double host_ms, double spent_ms) const {
  const auto most = static_cast<int32_t>(probabilities.size());
  double given = num_giving_;
  const double rate_without = given / std::max(1e-6, hopeful_ms_without(num_rows));
  Worth best = {0, given, given / std::max(1e-6, hopeful_ms(num_rows) + spent_ms) / rate_without};
  for (int32_t count = 1; count <= most; ++count) {
    given += share_accepted * probabilities[count - 1];
    const double gain = given / std::max(1e-6, hopeful_ms(num_rows + count) + host_ms + spent_ms) / rate_without;
    if (gain > best.gain) best = {count, given, gain};
  }
  return best;
}

// Where steps of a few more rows take much longer than without them, and of many more not much longer still, a trial's
// few drafts lose time even if all are right; many would not.
double Speculator::promise(const std::vector<double>& probabilities, int32_t num_rows) const {
  if (trial_.expected <= 0) return 0;
  const double host_ms = goes_behind_ ? 0 : std::max(0.0, gap_together_ms_ - gap_without_ms_);
  return worth(probabilities, num_rows, std::min(1.0, trial_.accepted / trial_.expected), host_ms).gain - 1;
}

// The time that drafting takes; where something else had the processor meanwhile no more than several times the usual.
double Speculator::without_accident(double gap_cost_ms) {
  constexpr double kAccident = 4;
  if (usual_gap_cost_ms_ == 0) return usual_gap_cost_ms_ = gap_cost_ms;
  gap_cost_ms = std::min(gap_cost_ms, kAccident * usual_gap_cost_ms_);
  usual_gap_cost_ms_ += (gap_cost_ms - usual_gap_cost_ms_) / 16;
  return gap_cost_ms;
}

void Speculator::on_step(const StepPlan& plan, const StepOutput& output, double step_ms, double gap_ms) {
  int32_t num_sequences = 0, num_drafts = 0;
  bool has_trees = false;
  for (const SampleGroup& group : plan.groups) {
    if (group.mode == SampleMode::kScore) continue;
    ++num_sequences;
    num_drafts += group.num_rows() - 1;
    has_trees |= is_tree(plan, group);
  }
  goes_behind_ = will_go_behind_;
  const Planned planned = planned_[0];
  stages_ = planned.stages;
  std::shift_left(planned_.begin(), planned_.end(), 1);
  const auto num_accepted = static_cast<double>(std::exchange(num_accepted_, 0));
  if (num_sequences == 0) return;
  if (!planned.is_on) trial_ = {};
  else if (switch_.is_trial()) trial_.expected += planned.expected, trial_.accepted += num_accepted;
  for (const auto& drafter : drafters_) drafter->see(plan, output);
  looks_.earn();
  if (planned.has_look) {
    const double waited_ms = std::clamp(gap_ms - planned.drafting_ms - gap_without_ms_, 0.0, step_ms);
    const double look_ms = planned.drafting_ms + waited_ms;
    looks_.spend(look_ms / std::max(1e-6, ms_without(num_sequences)));
    metrics_.predicted_saved_ms -= look_ms;
    metrics_.measured_saved_ms -= look_ms;
  } else if (!planned.is_on) {
    gap_without_ms_ += (std::min(gap_ms, step_ms) - gap_without_ms_) / 16;
  }
  if (!planned.is_on) return switch_.count_step(num_sequences + planned.num_sitting_out);
  const double gap_of_step_ms = std::min(gap_ms, step_ms);
  if (!planned.is_ahead) {
    const double weight = gap_together_ms_ > 0 ? 1.0 / 8 : 1;
    gap_together_ms_ += weight * (gap_of_step_ms - gap_together_ms_);
    gap_drafting_ms_ += weight * (std::min(planned.drafting_ms, gap_of_step_ms) - gap_drafting_ms_);
  }
  // Without drafts nobody would sit out.
  const int32_t num_without = num_sequences + planned.num_sitting_out;
  const double added_ms =
      ms(plan.num_tokens()) - ms_without(plan.num_tokens() - num_drafts + planned.num_sitting_out);
  // More would be an accident: something else had the processor.
  const double host_ms = std::clamp(gap_ms - planned.drafting_ms - gap_without_ms_, 0.0, step_ms);
  const double charged_ms = invested_ms_ / 64;
  invested_ms_ -= charged_ms;
  const double gap_cost_ms = host_ms + planned.draft_ms;
  // An accepted token saves its sequence a step, and so a row's share of one.
  const double without_ms = ms_without(num_without), ms_per_token = without_ms / num_without;
  const double gained_ms = ms_per_token * (num_accepted - planned.num_sitting_out);
  if (num_drafts > 0) ++metrics_.num_steps, metrics_.num_tree_steps += has_trees;
  if (num_drafts > 0 || planned.num_sitting_out > 0) {
    metrics_.predicted_saved_ms +=
        ms_per_token * (planned.expected - planned.num_sitting_out) - added_ms - gap_cost_ms;
    metrics_.measured_saved_ms += gained_ms - (step_ms - ms(plan.num_tokens()) + added_ms) - gap_cost_ms;
  }
  if (!is_on()) return;  // since the plan was made
  const double gain = (gained_ms - added_ms - without_accident(gap_cost_ms) - charged_ms) / std::max(1e-6, without_ms);
  const bool is_in_vain = trial_.expected > 0 && trial_.accepted == 0;
  if (is_in_vain && switch_.is_trial()) looks_.charge(-gain);
  switch_.add(without_ms > 0 ? std::clamp(gain, -4.0, 4.0) : 0, planned.promise, is_in_vain);
}

}  // namespace llmb
