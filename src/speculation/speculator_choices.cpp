// A speculator's guesses from where they are chosen to where they are verified.
#include <algorithm>
#include <utility>

#include "core/drafted_tokens.h"
#include "speculation/speculator.h"

namespace llmb {

// Compares the guess with the tokens behind the first `num_output_tokens` of the sequence's.
std::vector<Verdict> Speculator::judge(const Guess& guess, const Sequence& sequence, int32_t num_output_tokens) {
  std::vector<Verdict> verdicts(guess.tokens.size(), Verdict::kUnknown);
  const std::vector<int32_t> depths = guess.depths();
  for (int32_t i = 0; i < guess.size(); ++i) {
    const int32_t parent = guess.parent(i), at = num_output_tokens + depths[i];
    if ((parent >= 0 && verdicts[parent] != Verdict::kRight) || at >= sequence.num_output_tokens()) continue;
    if (is_drafted(guess.tokens[i])) continue;  // whatever it was
    verdicts[i] = guess.tokens[i] == sequence.output_tokens[at] ? Verdict::kRight : Verdict::kWrong;
  }
  return verdicts;
}

// Forgets guesses for this plan that came to nothing, and those that are verified.
void Speculator::begin_choices(const PlanOutlook& outlook) {
  step_ = outlook.step, lender_ = outlook.lender, num_in_flight_ = outlook.num_in_flight;
  choices_.clear();
  for (auto& [seq, choices] : in_flight_)
    std::erase_if(choices, [this](const Choice& choice) { return choice.step >= step_; });
  std::erase_if(in_flight_, [](const auto& entry) { return entry.second.empty(); });
  for (const Sequence* sequence : outlook.decoding) in_flight_.erase(sequence->id);
  candidates_.assign(outlook.decoding.begin(), outlook.decoding.end());
  candidates_.insert(candidates_.end(), outlook.behind.begin(), outlook.behind.end());
  const auto goes_behind = [this](const Sequence* sequence) {
    return std::ranges::all_of(drafters_, [&](const auto& drafter) { return drafter->guesses_behind(*sequence); });
  };
  if (!candidates_.empty()) will_go_behind_ = !outlook.alternates && std::ranges::all_of(candidates_, goes_behind);
  if (outlook.num_in_flight == 0 || outlook.alternates || !goes_behind_) candidates_.resize(outlook.decoding.size());
  else std::erase_if(candidates_, [&](const Sequence* sequence) { return !goes_behind(sequence); });
}

// Behind drafts whose number of right ones must be seen.
int32_t Speculator::num_sitting_out(const PlanOutlook& outlook) const {
  const auto has_drafts = [this](const Sequence* sequence) { return in_flight_.contains(sequence->id); };
  return static_cast<int32_t>(in_flight_.size() - std::ranges::count_if(outlook.behind, has_drafts));
}

SpeculationMetrics Speculator::metrics() const {
  SpeculationMetrics metrics = metrics_;
  for (const auto& drafter : drafters_) {
    const DraftBlocks blocks = drafter->blocks();
    metrics.blocks.most += blocks.most, metrics.blocks.num_taken_back += blocks.num_taken_back;
  }
  return metrics;
}

Speculator::Choice* Speculator::find_choice(const Sequence& sequence) {
  const auto at = choices_.find(sequence.id);
  return at == choices_.end() ? nullptr : &at->second;
}

void Speculator::propose(const Sequence& sequence, int32_t max_drafts, Drafts* drafts) {
  Choice* choice = find_choice(sequence);
  if (choice == nullptr) return;
  choice->guess.keep_first(max_drafts);
  if (choice->guess.empty()) return;
  choice->step = step_;
  drafts->tokens = choice->guess.tokens;
  drafts->parents = choice->guess.parents;
  drafts->drafter = static_cast<int32_t>(choice->drafter);
  in_flight_[sequence.id].push_back(std::move(*choice));
  choices_.erase(sequence.id);
}

void Speculator::see_drafts(StepPlan* plan) {
  if (!has_drafted(*plan)) return;
  for (const auto& drafter : drafters_) drafter->see_drafts(plan->tokens);
  for (auto& [seq, choices] : in_flight_)
    for (Choice& choice : choices)
      if (choice.step == plan->step) drafters_[choice.drafter]->see_drafts(choice.guess.tokens);
}

void Speculator::on_verified(const Sequence& sequence, int32_t num_drafts, int32_t num_accepted) {
  const auto at = in_flight_.find(sequence.id);
  if (at == in_flight_.end()) return;
  std::vector<Choice>& choices = at->second;
  Choice& choice = choices.front();
  choice.guess.keep_first(num_drafts);
  const std::vector<Verdict> verdicts = judge(choice.guess, sequence, choice.num_output_tokens);
  drafters_[choice.drafter]->learn(sequence, choice.guess, verdicts);
  looks_.judge(choice.drafter, choice.guess, verdicts);
  SpeculationMetrics::Kind& kind = metrics_.drafters[choice.drafter];
  ++kind.num_steps;
  kind.num_drafted += num_drafts;
  kind.num_accepted += num_accepted;
  num_accepted_ += num_accepted;
  ++metrics_.num_groups;
  metrics_.num_given += num_accepted + 1;
  choices.erase(choices.begin());
  for (Choice& next : choices) next.num_output_tokens = sequence.num_output_tokens();
  if (choices.empty()) in_flight_.erase(at);
}

void Speculator::on_end(const Sequence& sequence) {
  choices_.erase(sequence.id);
  in_flight_.erase(sequence.id);
  if (looks_.newest && looks_.newest->seq == sequence.id) looks_.newest.reset();
  for (const auto& drafter : drafters_) drafter->forget(sequence);
}

}  // namespace llmb
