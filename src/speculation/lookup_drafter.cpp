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
constexpr double kMinProbability = 0.02;

bool has_child(const Guess& guess, int32_t parent) {
  for (int32_t i = parent + 1; i < guess.size(); ++i)
    if (guess.parent(i) == parent) return true;
  return false;
}
}  // namespace

LookupDrafter::LookupDrafter(const Clock& clock, int32_t max_answer_tokens, bool guesses_trees)
    : clock_(clock), max_answer_tokens_(max_answer_tokens), guesses_trees_(guesses_trees) {
  for (const double of_likeliest : {1.0, 0.3})
    for (int32_t source = 0; source < 2; ++source)
      for (int32_t length = 1; length <= kNumLengths; ++length)
        acceptance_.emplace_back(of_likeliest * (0.9 - 0.6 / length));  // until there is experience
}

void LookupDrafter::add_to_corpus(std::span<const TokenId> text) {
  for (const TokenId token : text) corpus_.append(token);
  corpus_.append(SuffixAutomaton::kTextEnd);
}

// is_other: another continuation stands behind the same parent.
int32_t LookupDrafter::kind_of(Source source, int32_t match_length, bool is_other) {
  const int32_t length_class = match_length <= 16 ? match_length - 1 : match_length <= 32 ? 16 : 17;
  return ((is_other ? 2 : 0) + (source != kOwnText ? 1 : 0)) * kNumLengths + length_class;
}

const SuffixAutomaton& LookupDrafter::automaton(Source source, const Row& row) const {
  return source == kOwnText ? row.text : source == kCorpus ? corpus_ : source == kAnswers ? answers_ : older_answers_;
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
  std::array<SuffixAutomaton::Match, kNumSources> matches;
  std::array<double, kNumSources> expected = {};
  Source best = kOwnText;
  for (const Source source : {kOwnText, kCorpus, kAnswers, kOlderAnswers}) {
    matches[source] =
        source == kOwnText ? row.text.repeated_end() : row.cursors[source].match(automaton(source, row));
    add_continuation(source, matches[source], row, max_tokens, &found[source]);
    expected[source] = found[source].expected();
    if (expected[source] > expected[best]) best = source;
  }
  std::swap(*guess, found[best]);
  if (!guesses_trees_ || guess->empty()) return;
  for (const Source source : {kOwnText, kCorpus, kAnswers, kOlderAnswers})
    if (source != best) add_continuation(source, matches[source], row, max_tokens, guess);
}

// Beside what the guess has.
void LookupDrafter::add_continuation(Source source, SuffixAutomaton::Match match, const Row& row, int32_t max_tokens,
                                     Guess* guess) {
  continuation_.clear();
  automaton(source, row).continue_match(match, max_tokens, &continuation_);
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
      const int32_t length = match.length + static_cast<int32_t>(i);  // once those before it are right
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
    row->text.append(token);
    for (const Source source : {kCorpus, kAnswers, kOlderAnswers})
      if (at >= num_context) row->cursors[source].advance(automaton(source, *row), token);
  }
}

void LookupDrafter::learn(const Sequence& /*sequence*/, const Guess& guess, std::span<const Verdict> verdicts) {
  for (int32_t i = 0; i < guess.size(); ++i)
    if (verdicts[i] != Verdict::kUnknown) acceptance_[guess.kinds[i]].add(verdicts[i] == Verdict::kRight);
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
