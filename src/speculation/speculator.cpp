#include "speculation/speculator.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

#include "base/check.h"

namespace llmb {

Speculator::Speculator(const SpeculatorOptions& options, std::vector<std::unique_ptr<Drafter>> drafters,
                       const StepCost& cost, const Clock& clock)
    : options_(options), drafters_(std::move(drafters)), cost_(cost), clock_(clock) {
  LLMB_CHECK(!drafters_.empty());
  for (const auto& drafter : drafters_) metrics_.drafters.push_back({drafter->name()});
}

void Speculator::begin_plan(std::span<const Sequence* const> decoding, int32_t num_rows) {
  if (!is_on()) return;
  was_on_ = true;
  choices_.clear();
  num_accepted_ = 0;
  const double begin_ms = clock_.now_ms();
  for (size_t i = 0; i < drafters_.size(); ++i) ask(i, decoding, num_rows);
  keep_what_pays(num_rows);
  draft_ms_ = drafting_ms_ = clock_.now_ms() - begin_ms;
  for (const auto& drafter : drafters_) {
    const double invested_ms = drafter->take_invested_ms();
    draft_ms_ -= invested_ms;
    invested_ms_ += invested_ms;
  }
}

// Those sequences for which it expects more than the drafters before it.
void Speculator::ask(size_t drafter, std::span<const Sequence* const> decoding, int32_t num_rows) {
  Drafter& asked = *drafters_[drafter];
  asked_.clear();
  for (const Sequence* sequence : decoding) {
    const auto at = choices_.find(sequence->id);
    const double p = asked.acceptance(*sequence);
    if (at == choices_.end() || at->second.chain.expected() < p / (1 - std::min(p, 0.95))) asked_.push_back(sequence);
  }
  const int32_t max_tokens = tokens_worth_asking(asked, asked_, num_rows);
  if (asked_.empty() || max_tokens == 0) return;
  chains_.assign(asked_.size(), DraftChain());
  asked.draft(asked_, max_tokens, chains_);
  for (size_t i = 0; i < asked_.size(); ++i) {
    LLMB_CHECK(chains_[i].tokens.size() == chains_[i].acceptance.size());
    if (chains_[i].tokens.empty()) continue;
    Choice& choice = choices_[asked_[i]->id];
    if (chains_[i].expected() > choice.chain.expected()) choice = {drafter, std::move(chains_[i])};
  }
}

// Tokens for each sequence at which a step with them, and the time to draft them, gives most tokens a millisecond.
int32_t Speculator::tokens_worth_asking(const Drafter& drafter, std::span<const Sequence* const> sequences,
                                        int32_t num_rows) const {
  const auto count = static_cast<int32_t>(sequences.size());
  const double ms_per_token = drafter.ms_per_token(count);
  if (options_.drafts_always || ms_per_token <= 0 || count == 0) return options_.max_tokens;
  double mean = 0;
  for (const Sequence* sequence : sequences) mean += drafter.acceptance(*sequence) / count;
  int32_t best = 0;
  double best_rate = count / std::max(1e-6, cost_.ms(num_rows)), right = 1, expected = 0;
  for (int32_t tokens = 1; tokens <= options_.max_tokens && tokens * count <= options_.max_step_tokens; ++tokens) {
    expected += count * (right *= mean);
    const double ms = cost_.ms(num_rows + tokens * count) + tokens * ms_per_token;
    if ((count + expected) / std::max(1e-6, ms) <= best_rate) continue;
    best = tokens;
    best_rate = (count + expected) / ms;
  }
  return switch_.is_trial() ? std::clamp(best, 1, 2) : best;
}

// The likeliest tokens of all sequences.
void Speculator::keep_what_pays(int32_t num_rows) {
  std::vector<double> probabilities;
  for (const auto& [seq, choice] : choices_) {
    double all_right = 1;
    for (const double p : choice.chain.acceptance) probabilities.push_back(all_right *= p);
  }
  std::sort(probabilities.begin(), probabilities.end(), std::greater<>());
  if (probabilities.size() > static_cast<size_t>(options_.max_step_tokens))
    probabilities.resize(options_.max_step_tokens);
  if (!options_.drafts_always) probabilities.resize(num_worth(probabilities, num_rows));
  expected_ = std::accumulate(probabilities.begin(), probabilities.end(), 0.0);
  const double least = probabilities.empty() ? 2 : probabilities.back();
  auto left = static_cast<int64_t>(probabilities.size());
  for (auto& [seq, choice] : choices_) {
    double all_right = 1;
    size_t count = 0;
    for (; count < choice.chain.tokens.size() && left > 0; ++count, --left)
      if ((all_right *= choice.chain.acceptance[count]) < least) break;
    choice.chain.tokens.resize(count);
    choice.chain.acceptance.resize(count);
  }
}

// `probabilities` of being accepted, falling: how many of the first make most tokens a millisecond.
int32_t Speculator::num_worth(const std::vector<double>& probabilities, int32_t num_rows) const {
  const auto num_sequences = static_cast<double>(std::max<size_t>(1, choices_.size()));
  const auto most = static_cast<int32_t>(probabilities.size());
  int32_t best = 0;
  double given = num_sequences, best_rate = given / std::max(1e-6, cost_.ms(num_rows));
  for (int32_t count = 1; count <= most; ++count) {
    given += probabilities[count - 1];
    const double rate = given / std::max(1e-6, cost_.ms(num_rows + count));
    if (rate <= best_rate) continue;
    best = count;
    best_rate = rate;
  }
  // A trial drafts a little in any case, else nothing would be learned: so much that the step's cost differs. And no
  // more, as what is expected may be wrong.
  if (switch_.is_trial()) best = std::min(1 + num_rows / 8, most);
  return best;
}

void Speculator::propose(const Sequence& sequence, int32_t max_drafts, Drafts* drafts) {
  if (!was_on_) return;
  const auto at = choices_.find(sequence.id);
  if (at == choices_.end() || sequence.num_in_flight > 0) return;
  const std::vector<TokenId>& tokens = at->second.chain.tokens;
  drafts->tokens.assign(tokens.begin(), tokens.begin() + std::min<size_t>(tokens.size(), max_drafts));
}

void Speculator::on_verified(const Sequence& sequence, int32_t num_drafts, int32_t num_accepted) {
  const auto at = choices_.find(sequence.id);
  if (at == choices_.end()) return;
  drafters_[at->second.drafter]->learn(sequence, num_drafts, num_accepted);
  metrics_.drafters[at->second.drafter].num_drafted += num_drafts;
  metrics_.drafters[at->second.drafter].num_accepted += num_accepted;
  num_accepted_ += num_accepted;
  ++metrics_.num_groups;
  metrics_.num_given += num_accepted + 1;
}

void Speculator::on_end(const Sequence& sequence) {
  choices_.erase(sequence.id);
  for (const auto& drafter : drafters_) drafter->forget(sequence);
}

void Speculator::on_step(const StepPlan& plan, double step_ms, double gap_ms) {
  const int32_t num_sequences = plan.num_groups(), num_drafts = plan.num_samples() - num_sequences;
  const bool was_on = std::exchange(was_on_, false);
  if (num_sequences == 0) return;
  if (!was_on) {
    gap_without_ms_ += (std::min(gap_ms, step_ms) - gap_without_ms_) / 16;
    return switch_.count_step(num_sequences);
  }
  const double added_ms = cost_.ms(plan.num_tokens()) - cost_.ms(plan.num_tokens() - num_drafts);
  // More would be an accident: something else had the processor.
  const double host_ms = std::clamp(gap_ms - drafting_ms_ - gap_without_ms_, 0.0, step_ms);
  const double charged_ms = invested_ms_ / 64;
  invested_ms_ -= charged_ms;
  const double gap_cost_ms = host_ms + draft_ms_ + charged_ms;
  // An accepted token saves its sequence a step, and so a row's share of one.
  const double without_ms = cost_.ms(num_sequences), ms_per_token = without_ms / num_sequences;
  const auto accepted = static_cast<double>(num_accepted_);
  if (num_drafts > 0) {
    ++metrics_.num_steps;
    metrics_.predicted_saved_ms += ms_per_token * expected_ - added_ms - gap_cost_ms;
    metrics_.measured_saved_ms +=
        ms_per_token * accepted - (step_ms - cost_.ms(plan.num_tokens()) + added_ms) - gap_cost_ms;
  }
  // Bounded: a step that took long by accident decides nothing.
  const double gain = (ms_per_token * accepted - added_ms - gap_cost_ms) / std::max(1e-6, without_ms);
  switch_.add(without_ms > 0 ? std::clamp(gain, -0.5, 0.5) : 0);
}

}  // namespace llmb
