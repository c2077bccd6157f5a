#include "speculation/lookup_drafter.h"

#include <algorithm>
#include <utility>

namespace llmb {

namespace {
// Tokens of a prompt's end to match: a reference that matches further back guesses no better.
constexpr int32_t kContextTokens = 32;
// Answers that end while guesses do not pay are read when they do: so many tokens of them are kept. A trial, which is to cost
// little, reads one in each call.
constexpr int64_t kMaxEndedTokens = 1 << 11;
// A token that is less likely than this, all in all, is not worth its place in a list.
constexpr double kMinProbability = 0.005;
// That a rule's first token is right.
constexpr double kRulePrior = 0.1;

bool has_child(const Guess& guess, int32_t parent) {
  for (int32_t i = parent + 1; i < guess.size(); ++i)
    if (guess.parent(i) == parent) return true;
  return false;
}
}  // namespace

LookupDrafter::LookupDrafter(const Clock& clock, int32_t max_answer_tokens, bool guesses_trees)
    : clock_(clock), max_answer_tokens_(max_answer_tokens), guesses_trees_(guesses_trees) {
  for (int32_t kind = 0; kind < kNumKinds; ++kind) {  // until there is experience
    const double length = kind % kNumLengths + 1, of_likeliest = kind < kNumKinds / 2 ? 1 : 0.3;
    acceptance_.emplace_back(is_judged_anyway(kind) ? kRulePrior : of_likeliest * (0.9 - 0.6 / length));
  }
}

void LookupDrafter::add_to_corpus(std::span<const TokenId> text) {
  for (const TokenId token : text) corpus_.append(token);
  corpus_.append(SuffixAutomaton::kTextEnd);
}

// is_other: another continuation stands behind the same parent.
int32_t LookupDrafter::kind_of(Source source, int32_t match_length, bool is_other) {
  const int32_t length_class = match_length <= 16 ? match_length - 1 : match_length <= 32 ? 16 : 17;
  const int32_t source_class = is_rule(source) ? 2 + source - kReplaced : source != kOwnText ? 1 : 0;
  return ((is_other ? kNumSourceClasses : 0) + source_class) * kNumLengths + length_class;
}

const SuffixAutomaton& LookupDrafter::automaton(Source source, const Row& row) const {
  if (source == kOwnText || is_rule(source)) return row.text;
  return source == kCorpus ? corpus_ : source == kAnswers ? answers_ : older_answers_;
}

// A rule's place counts as a match of one token.
SuffixAutomaton::Match LookupDrafter::match(Source source, const Row& row) const {
  const SuffixAutomaton::Match own = row.text.repeated_end();
  if (source == kOwnText) return own;
  if (!is_rule(source)) return row.cursors[source].match(automaton(source, row));
  if (own.length > 0) return {};
  const int32_t place = source == kReplaced    ? row.behind_match
                        : source == kBehindNew ? row.behind_new_before
                                               : row.text.size() - 1;
  return place > 0 ? SuffixAutomaton::Match{1, place} : SuffixAutomaton::Match{};
}

void LookupDrafter::draft(std::span<const Sequence* const> sequences, const DraftLimits& limits,
                          std::span<Guess> guesses) {
  const double begin_ms = clock_.now_ms();
  if (!limits.is_trial) take_in_answers();
  else if (!ended_.empty()) take_in_newest_answer();
  invested_ms_ += clock_.now_ms() - begin_ms;
  for (size_t i = 0; i < sequences.size(); ++i) draft_one(*sequences[i], limits.max_tokens, &guesses[i]);
}

void LookupDrafter::draft_one(const Sequence& sequence, int32_t max_tokens, Guess* guess) {
  const auto [at, is_new] = rows_.try_emplace(sequence.id);
  Row& row = at->second;
  const double begin_ms = is_new ? clock_.now_ms() : 0;
  catch_up(sequence, &row);
  if (is_new) invested_ms_ += clock_.now_ms() - begin_ms;
  std::array<Guess, kNumSources> found;
  std::array<double, kNumSources> expected = {};
  Source best = kOwnText;
  for (const Source source : kSources) {
    add_continuation(source, row, max_tokens, &found[source]);
    expected[source] = found[source].expected();
    if (expected[source] > expected[best]) best = source;
  }
  std::swap(*guess, found[best]);
  if (!guesses_trees_ || guess->empty()) return;
  for (const Source source : kSources)
    if (source != best) add_continuation(source, row, max_tokens, guess);
}

// Beside what the guess has.
void LookupDrafter::add_continuation(Source source, const Row& row, int32_t max_tokens, Guess* guess) {
  continuation_.clear();
  const SuffixAutomaton::Match found = match(source, row);
  automaton(source, row).continue_match(found, max_tokens, &continuation_);
  bool may_share = !guess->empty();
  double all_right = 1;
  int32_t parent = -1;
  for (size_t i = 0; i < continuation_.size() && all_right >= kMinProbability; ++i) {
    const int32_t same = may_share ? guess->find(parent, continuation_[i]) : -1;
    if (same >= 0) {
      parent = same;
    } else {
      const bool branches_off = may_share && has_child(*guess, parent);
      may_share = false;
      const int32_t length = found.length + static_cast<int32_t>(i);  // once those before it are right
      const int32_t kind = kind_of(source, length, branches_off);
      parent = guess->add(continuation_[i], parent, acceptance_[kind].share(), kind);
    }
    all_right *= guess->acceptance[parent];
  }
}

void LookupDrafter::catch_up(const Sequence& sequence, Row* row) {
  if (row->generation != generation_) {
    // The automaton moved, its states are the same.
    row->cursors[kOlderAnswers] =
        row->generation + 1 == generation_ ? row->cursors[kAnswers] : SuffixAutomaton::Cursor();
    row->cursors[kAnswers] = {};
    row->generation = generation_;
  }
  const int32_t num_context = sequence.num_prompt_tokens() - kContextTokens;
  for (int32_t at = row->text.size(); at < sequence.num_known_tokens(); ++at) {
    const TokenId token = sequence.token(at);
    if (at >= sequence.num_prompt_tokens()) judge_rules(*row, token);
    append(token, row);
    for (const Source source : {kCorpus, kAnswers, kOlderAnswers})
      if (at >= num_context) row->cursors[source].advance(automaton(source, *row), token);
  }
}

void LookupDrafter::append(TokenId token, Row* row) {
  row->text.append(token);
  if (const SuffixAutomaton::Match found = row->text.repeated_end(); found.length > 0) {
    row->behind_match = found.end;
    return;
  }
  if (row->behind_match > 0) ++row->behind_match;
  row->behind_new_before = std::exchange(row->behind_new, row->text.size());
}

// Whether they would have been right about the next token. All are asked each time, so a rule that others outdo does not
// stay so for want of a try.
void LookupDrafter::judge_rules(const Row& row, TokenId token) {
  for (const Source source : {kReplaced, kBehindNew, kRepeated})
    if (const SuffixAutomaton::Match found = match(source, row); found.length > 0)
      acceptance_[kind_of(source, 1, false)].add(row.text.text()[found.end] == token);
}

void LookupDrafter::learn(const Sequence& /*sequence*/, const Guess& guess, std::span<const Verdict> verdicts) {
  for (int32_t i = 0; i < guess.size(); ++i)
    if (verdicts[i] != Verdict::kUnknown && !is_judged_anyway(guess.kinds[i]))
      acceptance_[guess.kinds[i]].add(verdicts[i] == Verdict::kRight);
}

void LookupDrafter::forget(const Sequence& sequence) {
  rows_.erase(sequence.id);
  const int32_t end = sequence.num_known_tokens();
  if (sequence.output_tokens.empty() || end > max_answer_tokens_ / 2) return;
  std::vector<TokenId>& answer = ended_.emplace_back();
  for (int32_t at = std::max(0, sequence.num_prompt_tokens() - kContextTokens); at < end; ++at)
    answer.push_back(sequence.token(at));
  num_ended_tokens_ += static_cast<int64_t>(answer.size());
  while (num_ended_tokens_ > kMaxEndedTokens && ended_.size() > 1) {
    num_ended_tokens_ -= static_cast<int64_t>(ended_.front().size());
    ended_.pop_front();
  }
}

// Only when drafts are asked for: where they do not pay, nothing is spent on answers.
void LookupDrafter::take_in_answers() {
  for (const std::vector<TokenId>& answer : std::exchange(ended_, {})) take_in(answer);
  num_ended_tokens_ = 0;
}

void LookupDrafter::take_in_newest_answer() {
  take_in(ended_.back());
  num_ended_tokens_ -= static_cast<int64_t>(ended_.back().size());
  ended_.pop_back();
}

void LookupDrafter::take_in(std::span<const TokenId> answer) {
  if (answers_.size() > max_answer_tokens_ / 2) {
    older_answers_ = std::exchange(answers_, SuffixAutomaton());
    ++generation_;
  }
  for (const TokenId token : answer) answers_.append(token);
  answers_.append(SuffixAutomaton::kTextEnd);
}

}  // namespace llmb
