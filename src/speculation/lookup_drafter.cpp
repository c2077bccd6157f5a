#include "speculation/lookup_drafter.h"

#include <algorithm>
#include <utility>

namespace llmb {

namespace {
// Tokens of a prompt's end to match: a reference that matches further back guesses no better.
constexpr int32_t kContextTokens = 32;
// A token that is less likely than this, all in all, is not worth its place in a list.
constexpr double kMinProbability = 0.02;
}  // namespace

double DraftChain::expected() const {
  double sum = 0, all_right = 1;
  for (const double p : acceptance) sum += all_right *= p;
  return sum;
}

LookupDrafter::LookupDrafter(int32_t max_answer_tokens) : max_answer_tokens_(max_answer_tokens) {
  for (auto& by_length : acceptance_)
    for (int32_t length = 1; length <= kNumLengths; ++length)
      by_length.emplace_back(0.9 - 0.6 / length);  // until there is experience: 0.3 after one token
}

void LookupDrafter::add_to_corpus(std::span<const TokenId> text) {
  for (const TokenId token : text) corpus_.append(token);
  corpus_.append(SuffixAutomaton::kTextEnd);
}

int32_t LookupDrafter::length_class(int32_t match_length) {
  return match_length <= 16 ? match_length - 1 : match_length <= 32 ? 16 : 17;
}

const SuffixAutomaton& LookupDrafter::automaton(Source source, const Row& row) const {
  return source == kOwnText ? row.text : source == kCorpus ? corpus_ : source == kAnswers ? answers_ : older_answers_;
}

void LookupDrafter::draft(std::span<const Sequence* const> sequences, int32_t max_tokens,
                          std::span<DraftChain> chains) {
  take_in_answers();
  for (size_t i = 0; i < sequences.size(); ++i) draft_one(*sequences[i], max_tokens, &chains[i]);
}

void LookupDrafter::draft_one(const Sequence& sequence, int32_t max_tokens, DraftChain* chain) {
  Row& row = rows_[sequence.id];
  catch_up(sequence, &row);
  DraftChain candidate;
  for (const Source source : {kOwnText, kCorpus, kAnswers, kOlderAnswers}) {
    const SuffixAutomaton& text = automaton(source, row);
    const SuffixAutomaton::Match match = source == kOwnText ? row.text.repeated_end() : row.cursors[source].match(text);
    candidate.clear();
    text.continue_match(match, max_tokens, &candidate.tokens);
    double all_right = 1;
    for (size_t i = 0; i < candidate.tokens.size() && all_right >= kMinProbability; ++i) {
      const int32_t length = match.length + static_cast<int32_t>(i);  // once those before it are right
      candidate.acceptance.push_back(acceptance_[source != kOwnText][length_class(length)].share());
      all_right *= candidate.acceptance.back();
    }
    candidate.tokens.resize(candidate.acceptance.size());
    if (!(candidate.expected() > chain->expected())) continue;
    std::swap(*chain, candidate);
    row.source = source;
    row.match_length = match.length;
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

void LookupDrafter::learn(const Sequence& sequence, int32_t num_drafts, int32_t num_accepted) {
  const auto at = rows_.find(sequence.id);
  if (at == rows_.end()) return;
  const Row& row = at->second;
  for (int32_t i = 0; i < std::min(num_drafts, num_accepted + 1); ++i)
    acceptance_[row.source != kOwnText][length_class(row.match_length + i)].add(i < num_accepted);
}

void LookupDrafter::forget(const Sequence& sequence) {
  rows_.erase(sequence.id);
  const int32_t end = sequence.num_known_tokens();
  if (sequence.output_tokens.empty() || end > max_answer_tokens_ / 2) return;
  if (num_ended_tokens_ + end > max_answer_tokens_ / 2) {
    ended_.clear();
    num_ended_tokens_ = 0;
  }
  std::vector<TokenId>& answer = ended_.emplace_back();
  for (int32_t at = std::max(0, sequence.num_prompt_tokens() - kContextTokens); at < end; ++at)
    answer.push_back(sequence.token(at));
  num_ended_tokens_ += static_cast<int64_t>(answer.size());
}

// Only when drafts are asked for: where they do not pay, nothing is spent on answers.
void LookupDrafter::take_in_answers() {
  for (const std::vector<TokenId>& answer : std::exchange(ended_, {})) {
    if (answers_.size() > max_answer_tokens_ / 2) {
      older_answers_ = std::exchange(answers_, SuffixAutomaton());
      ++generation_;
    }
    for (const TokenId token : answer) answers_.append(token);
    answers_.append(SuffixAutomaton::kTextEnd);
  }
  num_ended_tokens_ = 0;
}

}  // namespace llmb
