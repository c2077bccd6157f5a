#include "speculation/lookahead_drafter.h"

#include <algorithm>
#include <utility>

namespace llmb {

namespace {

enum Kind : int32_t { kNgram, kWindow };

// The row of a tree that holds `token` behind `row`; -1: none.
int32_t child_row(const StepPlan& plan, const SampleGroup& group, int32_t row, TokenId token) {
  const int32_t first = plan.sample_rows[group.row_begin].token_row;
  for (int32_t child = row + 1; row >= 0 && child < first + group.num_rows(); ++child) {
    const int32_t parent = plan.parent_rows.empty() ? child - 1 : plan.parent_rows[child];
    if (parent == row && plan.tokens[child] == token) return child;
  }
  return -1;
}

int32_t find_or_add(TokenId token, int32_t parent, double acceptance, Kind kind, Guess* guess) {
  const int32_t same = guess->find(parent, token);
  return same >= 0 ? same : guess->add(token, parent, acceptance, kind);
}

}  // namespace

void LookaheadDrafter::draft(std::span<const Sequence* const> sequences, const DraftLimits& limits,
                             std::span<Guess> guesses) {
  for (size_t i = 0; i < sequences.size(); ++i) {
    const Sequence& sequence = *sequences[i];
    Row& row = rows_[sequence.id];
    if (row.window.empty()) begin(sequence, &row);
    row.last_token = sequence.token(sequence.num_known_tokens() - 1);
    add_ngrams(row, limits.max_tokens, &guesses[i]);
    add_window(row, limits.max_tokens, &guesses[i]);
    guesses[i].is_whole = true;
  }
}

// Any tokens will do.
void LookaheadDrafter::begin(const Sequence& sequence, Row* row) const {
  int32_t at = 0;
  for (int32_t level = 0; level < options_.num_levels; ++level) {
    Tokens& tokens = row->window.emplace_back();
    while (static_cast<int32_t>(tokens.size()) < options_.window)
      tokens.push_back(sequence.token(at++ % sequence.num_known_tokens()));
  }
}

void LookaheadDrafter::add_ngrams(const Row& row, int32_t max_tokens, Guess* guess) const {
  const auto at = row.pool.find(row.last_token);
  if (at == row.pool.end()) return;
  int32_t count = 0;
  for (auto ngram = at->second.rbegin(); ngram != at->second.rend() && count < options_.num_ngrams; ++ngram, ++count) {
    if (guess->size() + static_cast<int32_t>(ngram->size()) > max_tokens / 2) return;
    int32_t parent = -1;
    for (const TokenId token : *ngram) parent = find_or_add(token, parent, ngrams_.share(), kNgram, guess);
  }
}

void LookaheadDrafter::add_window(const Row& row, int32_t max_tokens, Guess* guess) const {
  const int32_t num_columns = std::min(options_.window, (max_tokens - guess->size()) / options_.num_levels);
  int32_t trunk = -1;
  for (int32_t column = 0; column < num_columns; ++column) {
    trunk = find_or_add(row.window[0][column], trunk, window_.share(), kWindow, guess);
    int32_t parent = trunk;
    for (int32_t level = 1; level < options_.num_levels; ++level)
      parent = find_or_add(row.window[level][column], parent, window_.share(), kWindow, guess);
  }
}

void LookaheadDrafter::see(const StepPlan& plan, const StepOutput& output) {
  if (output.drawn.empty()) return;
  for (const SampleGroup& group : plan.groups)
    if (const auto at = rows_.find(group.seq); at != rows_.end() && group.mode == SampleMode::kVerify)
      advance(plan, output, group, &at->second);
}

// The tokens drawn behind the last level become a level of their own; then the first level has done its duty.
void LookaheadDrafter::advance(const StepPlan& plan, const StepOutput& output, const SampleGroup& group,
                               Row* row) const {
  const auto g = static_cast<int32_t>(&group - plan.groups.data());
  const int32_t num_given = output.token_start[g + 1] - output.token_start[g];
  const int32_t first_row = plan.sample_rows[group.row_begin].token_row;
  Tokens drawn;
  int32_t trunk = first_row;
  for (int32_t column = 0; column < options_.window; ++column) {
    trunk = child_row(plan, group, trunk, row->window[0][column]);
    int32_t deepest = trunk;
    for (int32_t level = 1; level < options_.num_levels; ++level)
      deepest = child_row(plan, group, deepest, row->window[level][column]);
    if (deepest < 0) break;
    drawn.push_back(output.drawn[group.row_begin + deepest - first_row]);
    Tokens rest;
    for (int32_t level = 1; level < options_.num_levels; ++level) rest.push_back(row->window[level][column]);
    rest.push_back(drawn.back());
    keep(row->window[0][column], std::move(rest), row);
  }
  if (drawn.empty()) return;
  row->window.push_back(std::move(drawn));
  row->window.erase(row->window.begin());
  // Columns that lie behind the sequence's end now; at the other end any token will do.
  for (Tokens& level : row->window) {
    const auto size = static_cast<std::ptrdiff_t>(level.size());
    const auto num_past = std::min<std::ptrdiff_t>(std::max(0, num_given - 1), size - 1);
    level.erase(level.begin(), level.begin() + num_past);
    const size_t count = level.size();
    while (static_cast<int32_t>(level.size()) < options_.window) level.push_back(level[level.size() % count]);
  }
}

void LookaheadDrafter::keep(TokenId first, Tokens rest, Row* row) const {
  std::vector<Tokens>& ngrams = row->pool[first];
  std::erase(ngrams, rest);
  ngrams.push_back(std::move(rest));
  if (static_cast<int32_t>(ngrams.size()) > options_.pool_size) ngrams.erase(ngrams.begin());
}

void LookaheadDrafter::learn(const Sequence& /*sequence*/, const Guess& guess, std::span<const Verdict> verdicts) {
  for (int32_t i = 0; i < guess.size(); ++i)
    if (verdicts[i] != Verdict::kUnknown)
      (guess.kinds[i] == kNgram ? ngrams_ : window_).add(verdicts[i] == Verdict::kRight);
}

}  // namespace llmb
