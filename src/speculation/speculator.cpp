#include "speculation/speculator.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "base/check.h"

namespace llmb {

namespace {

// Compares the guess with the tokens behind the first `num_output_tokens` of the sequence's.
std::vector<Verdict> judge(const Guess& guess, const Sequence& sequence, int32_t num_output_tokens) {
  std::vector<Verdict> verdicts(guess.tokens.size(), Verdict::kUnknown);
  std::vector<int32_t> depths(guess.tokens.size());
  for (int32_t i = 0; i < guess.size(); ++i) {
    const int32_t parent = guess.parent(i);
    depths[i] = parent < 0 ? 0 : depths[parent] + 1;
    const int32_t at = num_output_tokens + depths[i];
    if ((parent >= 0 && verdicts[parent] != Verdict::kRight) || at >= sequence.num_output_tokens()) continue;
    verdicts[i] = guess.tokens[i] == sequence.output_tokens[at] ? Verdict::kRight : Verdict::kWrong;
  }
  return verdicts;
}

}  // namespace

Speculator::Speculator(const SpeculatorOptions& options, std::vector<std::unique_ptr<Drafter>> drafters,
                       const StepCost& cost, const Clock& clock)
    : options_(options), drafters_(std::move(drafters)), cost_(cost), clock_(clock) {
  LLMB_CHECK(!drafters_.empty());
  for (const auto& drafter : drafters_) metrics_.drafters.push_back({drafter->name()});
}

void Speculator::begin_plan(std::span<const Sequence* const> decoding, int32_t num_rows) {
  num_decoding_ = static_cast<int32_t>(decoding.size());
  most_decoding_ = std::max(most_decoding_, num_decoding_);
  if (!is_on()) return;
  was_on_ = true;
  choices_.clear();
  num_accepted_ = 0;
  const double begin_ms = clock_.now_ms();
  for (size_t i = 0; i < drafters_.size(); ++i) ask(i, decoding, num_rows);
  keep_what_pays(decoding, num_rows);
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
    if (at == choices_.end() || at->second.guess.expected() < p / (1 - std::min(p, 0.95))) asked_.push_back(sequence);
  }
  const DraftLimits limits = limits_worth_asking(asked, asked_, num_rows);
  if (asked_.empty() || limits.max_tokens == 0) return;
  guesses_.assign(asked_.size(), Guess());
  draft(asked, limits);
  for (size_t i = 0; i < asked_.size(); ++i) {
    Guess& guess = guesses_[i];
    LLMB_CHECK(guess.tokens.size() == guess.acceptance.size() && guess.tokens.size() == guess.kinds.size());
    guess.keep_likeliest(options_.max_tokens);
    if (guess.empty()) continue;
    Choice& choice = choices_[asked_[i]->id];
    if (guess.expected() > choice.guess.expected())
      choice = {drafter, std::move(guess), asked_[i]->num_output_tokens()};
  }
}

// A trial must not cost much: a drafter that reads a sequence's prompt before it guesses for the first time does so for
// as many as a part of a step's time allows.
void Speculator::draft(Drafter& drafter, const DraftLimits& limits) {
  const std::span<const Sequence* const> sequences = asked_;
  if (options_.drafts_always || !switch_.is_trial() || !drafter.guesses_one_by_one())
    return drafter.draft(sequences, limits, guesses_);
  const double end_ms = clock_.now_ms() + cost_.ms(num_decoding_) / 8;
  for (size_t i = 0; i < sequences.size() && (i == 0 || clock_.now_ms() < end_ms); ++i)
    drafter.draft(sequences.subspan(i, 1), limits, std::span(guesses_).subspan(i, 1));
}

// Tokens for each sequence at which a step with them, and the time to draft them, gives most tokens a millisecond; and
// how likely a token has to be to keep this rate up.
DraftLimits Speculator::limits_worth_asking(const Drafter& drafter, std::span<const Sequence* const> sequences,
                                            int32_t num_rows) const {
  const auto count = static_cast<int32_t>(sequences.size());
  const double ms_per_token = drafter.ms_per_token(count);
  if (options_.drafts_always || ms_per_token <= 0 || count == 0) return {options_.max_tokens, 0};
  double mean = 0;
  for (const Sequence* sequence : sequences) mean += drafter.acceptance(*sequence) / count;
  DraftLimits best;
  double ms_before = cost_.ms(num_rows), right = 1, expected = 0;
  double best_rate = num_decoding_ / std::max(1e-6, ms_before);
  for (int32_t tokens = 1; tokens <= options_.max_tokens && tokens * count <= options_.max_step_tokens; ++tokens) {
    expected += count * (right *= mean);
    const double ms = cost_.ms(num_rows + tokens * count) + tokens * ms_per_token;
    const double rate = (num_decoding_ + expected) / std::max(1e-6, ms);
    if (rate > best_rate) best = {tokens, rate * (ms - ms_before) / count}, best_rate = rate;
    ms_before = ms;
  }
  // A trial says what a little costs and gives.
  if (switch_.is_trial()) return {std::clamp(best.max_tokens, 1, 2), 0};
  // Sequences whose tokens are likelier than usual have room for more.
  if (best.max_tokens > 0) best.max_tokens = std::min(options_.max_tokens, best.max_tokens + best.max_tokens / 2 + 1);
  best.min_probability = std::min(best.min_probability, 0.9);
  return best;
}

// Where the batch thins the run's end is near, and whoever may still be long decides when that is.
double Speculator::urgency(const Sequence& sequence) const {
  if (10 * num_decoding_ >= 9 * most_decoding_) return 1;  // others join
  return sequence.max_new_tokens - sequence.num_output_tokens();
}

// The likeliest tokens of all sequences.
void Speculator::keep_what_pays(std::span<const Sequence* const> decoding, int32_t num_rows) {
  struct Candidate {
    double urgency, probability;
  };
  std::vector<Candidate> candidates;
  double expected_of_whole = 0;
  for (const Sequence* sequence : decoding) {
    const auto at = choices_.find(sequence->id);
    if (at == choices_.end()) continue;
    Choice& choice = at->second;
    choice.guess.put_likeliest_first();
    choice.urgency = urgency(*sequence);
    if (choice.guess.is_whole) expected_of_whole += choice.guess.expected();
    else for (const double p : choice.guess.probabilities()) candidates.push_back({choice.urgency * p, p});
  }
  const size_t most = std::min(candidates.size(), static_cast<size_t>(options_.max_step_tokens));
  std::partial_sort(candidates.begin(), candidates.begin() + static_cast<std::ptrdiff_t>(most), candidates.end(),
                    [](const Candidate& a, const Candidate& b) { return a.urgency > b.urgency; });
  std::vector<double> probabilities;
  for (size_t i = 0; i < most; ++i) probabilities.push_back(candidates[i].probability);
  if (!options_.drafts_always) probabilities.resize(num_worth(probabilities, num_rows));
  expected_ = std::accumulate(probabilities.begin(), probabilities.end(), expected_of_whole);
  candidates.resize(probabilities.size());
  const double least = candidates.empty() ? std::numeric_limits<double>::infinity() : candidates.back().urgency;
  // Tokens that are as urgent as the last one: no more than fit.
  auto num_alike = std::count_if(candidates.begin(), candidates.end(),
                                 [least](const Candidate& candidate) { return candidate.urgency == least; });
  for (auto& [seq, choice] : choices_) {
    Guess& guess = choice.guess;
    if (guess.is_whole) continue;  // while drafting pays as a whole
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

// `probabilities` of being accepted, in the order in which they are taken: how many of the first make most tokens a
// millisecond.
int32_t Speculator::num_worth(const std::vector<double>& probabilities, int32_t num_rows) const {
  const auto most = static_cast<int32_t>(probabilities.size());
  int32_t best = 0;
  double given = num_decoding_, best_rate = given / std::max(1e-6, cost_.ms(num_rows));
  for (int32_t count = 1; count <= most; ++count) {
    given += probabilities[count - 1];
    const double rate = given / std::max(1e-6, cost_.ms(num_rows + count));
    if (rate <= best_rate) continue;
    best = count;
    best_rate = rate;
  }
  // A trial drafts a little in any case, else nothing would be learned: so much that the step's cost differs. And no
  // more, as what is expected may be wrong.
  if (switch_.is_trial()) best = std::min(1 + num_decoding_ / 8, most);
  return best;
}

void Speculator::propose(const Sequence& sequence, int32_t max_drafts, Drafts* drafts) {
  if (!was_on_) return;
  const auto at = choices_.find(sequence.id);
  if (at == choices_.end() || sequence.num_in_flight > 0) return;
  Guess& guess = at->second.guess;
  guess.keep_first(max_drafts);
  drafts->tokens = guess.tokens;
  drafts->parents = guess.parents;
}

void Speculator::on_verified(const Sequence& sequence, int32_t num_drafts, int32_t num_accepted) {
  const auto at = choices_.find(sequence.id);
  if (at == choices_.end()) return;
  Choice& choice = at->second;
  choice.guess.keep_first(num_drafts);
  drafters_[choice.drafter]->learn(sequence, choice.guess, judge(choice.guess, sequence, choice.num_output_tokens));
  metrics_.drafters[choice.drafter].num_drafted += num_drafts;
  metrics_.drafters[choice.drafter].num_accepted += num_accepted;
  num_accepted_ += num_accepted;
  ++metrics_.num_groups;
  metrics_.num_given += num_accepted + 1;
}

void Speculator::on_end(const Sequence& sequence) {
  choices_.erase(sequence.id);
  for (const auto& drafter : drafters_) drafter->forget(sequence);
}

void Speculator::on_step(const StepPlan& plan, const StepOutput& output, double step_ms, double gap_ms) {
  const int32_t num_sequences = plan.num_groups(), num_drafts = plan.num_samples() - num_sequences;
  const bool was_on = std::exchange(was_on_, false);
  if (num_sequences == 0) return;
  for (const auto& drafter : drafters_) drafter->see(plan, output);
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
