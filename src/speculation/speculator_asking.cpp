// Whom a speculator asks for drafts, and for how many tokens.
#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include "base/check.h"
#include "core/drafted_tokens.h"
#include "speculation/speculator.h"

namespace llmb {

// A trial of drafters that take time is dear. Those that would not pay if half of their wrong tokens were right, at what
// they and steps cost, are passed over. False: all of them.
bool Speculator::may_pay(const PlanOutlook& outlook) {
  // A time that was wrong when it was measured is not believed for ever: then a drafter has a trial all the same.
  constexpr int32_t kMostPassedOver = 128, kTrialSteps = 4;
  const int32_t num_to_try = kTrialSteps + (switch_.is_trial_next() ? 1 : 0);
  bool may_any = false;
  for (size_t i = 0; i < drafters_.size(); ++i) {
    int32_t& num_passed_over = num_passed_over_[i];
    if (may_pay(*drafters_[i], outlook)) num_passed_over = 0;
    else if (++num_passed_over > kMostPassedOver) num_passed_over = 1 - num_to_try;
    may_any |= num_passed_over <= 0;
  }
  return may_any;
}

bool Speculator::may_pay(const Drafter& drafter, const PlanOutlook& outlook) const {
  const auto count = static_cast<int32_t>(outlook.decoding.size() + outlook.behind.size());
  const double ms = count == 0 ? 0 : drafter.ms_per_token(count);
  if (ms == 0 || cost_.ms(outlook.num_rows) == 0) return true;
  double acceptance = 0;
  for (const auto& sequences : {outlook.decoding, outlook.behind})
    for (const Sequence* sequence : sequences) acceptance += drafter.acceptance(*sequence) / count;
  const double hoped = (1 + acceptance) / 2;
  return worth_asking(count, ms, hoped, outlook.num_rows, {0, static_cast<double>(num_giving_), 1}).gain > 1;
}

// Whoever would pay if it were as right as it may still turn out to be. Where plans alternate all stages would wait.
void Speculator::choose_look(const PlanOutlook& outlook) {
  constexpr int64_t kEvery = 16;  // plans: it takes some microseconds
  const double step_ms = ms(outlook.num_rows);
  if (step_ % kEvery != 0 || looks_.next != DrafterLooks::kNobody || looks_.newest || num_giving_ == 0 ||
      step_ms == 0 || outlook.num_alternating > 1)
    return;
  for (size_t i = 0; i < drafters_.size(); ++i) {
    const Drafter& drafter = *drafters_[i];
    const double token_ms = drafter.ms_per_token(1);
    if (token_ms <= Drafter::kUnknownMs || !looks_.can_spend(token_ms / step_ms)) continue;
    const Worth base = {0, static_cast<double>(num_giving_), 1};
    const double gain =
        worth_asking(num_giving_, drafter.ms_per_token(num_giving_), looks_.hoped(i), outlook.num_rows, base).gain;
    if (gain > 1) looks_.next = i;
  }
}

void Speculator::look(const PlanOutlook& outlook) {
  const size_t index = std::exchange(looks_.next, DrafterLooks::kNobody);
  if (outlook.decoding.empty()) return;
  // The one before is read already, but for its newest tokens; among others the shortest is read soonest.
  const auto cost = [this](const Sequence* sequence) {
    return sequence->id == looks_.sequence ? 0 : sequence->num_known_tokens();
  };
  const Sequence* looked_at = *std::ranges::min_element(outlook.decoding, {}, cost);
  Drafter& drafter = *drafters_[index];
  const double begin_ms = clock_.now_ms();
  guesses_.assign(1, Guess());
  drafter.draft(std::span(&looked_at, 1),
                {.max_tokens = 1, .is_trial = true, .plan = step_, .num_in_flight = num_in_flight_, .lender = lender_},
                guesses_);
  drafter.take_invested_ms();
  Planned& planned = planned_[outlook.num_in_flight];
  planned.has_look = true;
  planned.drafting_ms = clock_.now_ms() - begin_ms;
  looks_.sequence = looked_at->id;
  ++looks_.count;
  Guess& guess = guesses_[0];
  if (guess.empty()) {  // as good as a wrong one
    guess.add(0, -1, 0, 0);
    return looks_.judge(index, guess, std::vector{Verdict::kWrong});
  }
  // A token that stays on the device takes the device its time all the same.
  if (is_drafted(guess.tokens[0])) planned.drafting_ms = std::max(planned.drafting_ms, drafter.ms_per_token(1));
  looks_.newest = {index, looked_at->id, std::move(guess), looked_at->num_output_tokens(), step_};
}

// Once the sequence has its token.
void Speculator::judge_look(const PlanOutlook& outlook) {
  constexpr int64_t kMostSteps = 2;  // then others may draft, over what the device keeps of it
  if (looks_.newest && step_ > looks_.newest->step + kMostSteps) looks_.newest.reset();
  if (!looks_.newest) return;
  DrafterLooks::Look& look = *looks_.newest;
  for (const auto& sequences : {outlook.decoding, outlook.behind})
    for (const Sequence* sequence : sequences) {
      if (sequence->id != look.seq || sequence->num_output_tokens() <= look.num_output_tokens) continue;
      drafters_[look.drafter]->see_drafts(look.guess.tokens);
      const std::vector<Verdict> verdicts = judge(look.guess, *sequence, look.num_output_tokens);
      drafters_[look.drafter]->learn(*sequence, look.guess, verdicts);
      looks_.judge(look.drafter, look.guess, verdicts);
      return looks_.newest.reset();
    }
}

// Those sequences for which it expects more than the drafters before it.
void Speculator::ask(size_t drafter, const PlanOutlook& outlook) {
  Drafter& asked = *drafters_[drafter];
  asked_.clear();
  double acceptance = 0;
  std::vector<double> others;
  for (const Sequence* sequence : candidates_) {
    const Choice* choice = find_choice(*sequence);
    const double p = asked.acceptance(*sequence);
    if (choice == nullptr || choice->guess.expected() < p / (1 - std::min(p, 0.95))) {
      asked_.push_back(sequence);
      acceptance += p;
    } else {
      for (const double probability : choice->guess.probabilities()) others.push_back(probability);
    }
  }
  if (asked_.empty()) return;
  std::ranges::sort(others, std::greater());
  const Worth base = worth(others, outlook.num_rows);
  const auto count = static_cast<int32_t>(asked_.size());
  DraftLimits limits = {.max_tokens = options_.max_tokens};
  if (const double ms = asked.ms_per_token(count); ms > 0 && !options_.drafts_always)
    limits = limited(worth_asking(count, ms, acceptance / count, outlook.num_rows, base).limits, ms);
  if (limits.max_tokens == 0) return;
  guesses_.assign(asked_.size(), Guess());
  draft(asked, limits);
  if (const double ms = asked.ms_per_token(count); ms > 0 && switch_.is_trial()) {
    double& promise = planned_[outlook.num_in_flight].promise;
    promise = std::max(promise, gain_in_trial(ms, outlook.num_rows, base) - 1);
  }
  for (size_t i = 0; i < asked_.size(); ++i) {
    Guess& guess = guesses_[i];
    LLMB_CHECK(guess.tokens.size() == guess.acceptance.size() && guess.tokens.size() == guess.kinds.size());
    guess.keep_likeliest(options_.max_tokens);
    if (guess.empty()) continue;
    Choice& choice = choices_[asked_[i]->id];
    if (guess.expected() <= choice.guess.expected()) continue;
    guess.put_likeliest_first();
    choice = {drafter, std::move(guess), asked_[i]->num_output_tokens() + asked_[i]->num_in_flight};
  }
}

// A trial must not cost much: a drafter that reads a sequence's prompt before it guesses for the first time does so for
// as many as a part of the trial's time allows, and for one.
void Speculator::draft(Drafter& drafter, DraftLimits limits) {
  const std::span<const Sequence* const> sequences = asked_;
  limits.is_trial = !options_.drafts_always && switch_.is_trial();
  limits.plan = step_, limits.num_in_flight = num_in_flight_, limits.lender = lender_;
  if (!limits.is_trial || !drafter.guesses_one_by_one())
    return drafter.draft(sequences, limits, guesses_);
  trial_.left_ms += ms(num_giving_) / 8;
  for (size_t i = 0; i < sequences.size() && (i == 0 || trial_.left_ms > 0); ++i) {
    const double begin_ms = clock_.now_ms();
    drafter.draft(sequences.subspan(i, 1), limits, std::span(guesses_).subspan(i, 1));
    trial_.left_ms -= clock_.now_ms() - begin_ms;
  }
}

// Tokens for each of `count` sequences at which a step with them, and the time to draft them, gives most tokens a
// millisecond; and how likely a token has to be to keep this rate up. acceptance: of a token behind right ones,
// where this share of tokens is worth verifying, and behind others nothing is drafted. base: without them, with drafts of
// others.
Speculator::Asking Speculator::worth_asking(int32_t count, double ms_per_token, double acceptance, int32_t num_rows,
                                            const Worth& base, double share) const {
  const double rate_without = num_giving_ / std::max(1e-6, hopeful_ms_without(num_rows));
  num_rows += base.count;
  double ms_before = hopeful_ms(num_rows) + seeing_all_ms(), right = 1, given = base.given;
  double drafting_ms = 0, verified = 1, rows = num_rows;
  double best_rate = given / std::max(1e-6, ms_before);
  Asking best;
  for (int32_t tokens = 1;
       tokens <= options_.max_tokens && base.count + tokens * count <= options_.max_step_tokens; ++tokens) {
    drafting_ms += ms_per_token * (1 - std::pow(1 - verified, count));  // while one of them goes on
    given += count * (right *= share * acceptance);
    rows += count * (verified *= share);
    const double ms = hopeful_ms(static_cast<int32_t>(std::lround(rows))) + seeing_all_ms() + drafting_ms;
    const double rate = given / std::max(1e-6, ms);
    if (rate > best_rate) best.limits = {tokens, rate * (ms - ms_before) / count}, best_rate = rate;
    ms_before = ms;
  }
  best.gain = best_rate / rate_without;
  return best;
}

DraftLimits Speculator::limited(DraftLimits worth, double ms_per_token) const {
  // A trial says what a little costs and gives.
  const int32_t most_tried = ms_per_token > Drafter::kUnknownMs ? 2 : 1;
  if (switch_.is_trial()) return {.max_tokens = std::clamp(worth.max_tokens, 1, most_tried)};
  // Sequences whose tokens are likelier than usual have room for more.
  if (worth.max_tokens > 0) worth.max_tokens = std::min(options_.max_tokens, worth.max_tokens + worth.max_tokens / 2 + 1);
  worth.min_probability = std::min(worth.min_probability, 0.9);
  return worth;
}

// A trial verifies few drafts, and none as far ahead as may pay. So it is asked how sure the drafter was of all that it
// drafted, by how often those that were verified were right: believed like so many drafts, but not against all of them.
// Then those that it was surest of are verified, of which there are as many as pay most.
double Speculator::gain_in_trial(double ms_per_token, int32_t num_rows, const Worth& base) {
  constexpr double kBelief = 4;
  constexpr int32_t kShares = 8;
  const auto count_asked = static_cast<int32_t>(asked_.size());
  for (const Guess& guess : guesses_) {
    int32_t last = -1;
    for (int32_t i = 0; i < guess.size(); ++i) {
      if (guess.parent(i) != last) continue;  // beside the drawn one
      last = i;
      trial_.claimed.push_back(guess.acceptance[i]);
    }
  }
  if (trial_.accepted == 0 || trial_.claimed.empty()) return 1;
  const double share_right = std::min(1.0, (trial_.accepted + kBelief) / (trial_.expected + kBelief));
  std::ranges::sort(trial_.claimed, std::greater());
  double gain = 1, sum = 0;
  size_t at = 0;
  for (int32_t eighths = 1; eighths <= kShares; ++eighths) {
    const double share = static_cast<double>(eighths) / kShares;
    const size_t count = std::max<size_t>(1, static_cast<size_t>(share * static_cast<double>(trial_.claimed.size())));
    for (; at < count; ++at) sum += trial_.claimed[at];
    const double acceptance = share_right * sum / static_cast<double>(count);
    gain = std::max(gain, worth_asking(count_asked, ms_per_token, acceptance, num_rows, base, share).gain);
  }
  return gain;
}

}  // namespace llmb
