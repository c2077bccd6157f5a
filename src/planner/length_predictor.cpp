#include "planner/length_predictor.h"

#include <algorithm>
#include <cmath>

namespace llmb {

void LineFit::add(double x, double y) {
  ++count_;
  const double dx = x - x_, dy = y - y_;
  x_ += dx / count_;
  y_ += dy / count_;
  xx_ += dx * (x - x_);
  xy_ += dx * (y - y_);
  yy_ += dy * (y - y_);
}

double LineFit::squared_variation() const { return count_ > 0 && y_ > 0 ? yy_ / count_ / (y_ * y_) : 0; }

double LineFit::residual() const {
  if (!(xx_ > 0) || !(yy_ > 0)) return 1;
  return std::max(0.0, 1 - xy_ * xy_ / (xx_ * yy_));
}

double LineFit::at(double x) const { return xx_ > 0 ? y_ + xy_ / xx_ * (x - x_) : y_; }

// A line is used only where it tells much more than the mean: over few rows some line always tells a little.
double LengthPredictor::Group::expected(const ExpectedRow& row) const {
  constexpr double kTellsMuch = 0.7;
  const double prompt = by_prompt.residual(), max = by_max.residual();
  double tokens = by_prompt.mean();
  if (std::min(prompt, max) < kTellsMuch)
    tokens = prompt < max ? by_prompt.at(row.num_prompt_tokens) : by_max.at(row.max_tokens);
  return std::clamp(tokens, 1.0, std::max(1.0, static_cast<double>(row.max_tokens)));
}

void LengthPredictor::add(const ExpectedRow& row) {
  std::lock_guard lock(mutex_);
  if (row.shared_with >= 0 && groups_.size() < kMaxGroups && !groups_.contains(row.shared_with)) {
    const auto first = std::lower_bound(rows_.begin(), rows_.end(), row.shared_with,
                                        [](const Row& r, int32_t prompt) { return r.prompt < prompt; });
    const bool is_known = first != rows_.end() && first->prompt == row.shared_with;
    groups_[row.shared_with].parent = is_known && first->shared_with >= 0 ? first->shared_with : kAll;
  }
  Row& added = rows_.emplace_back(Row{row});
  added.expected = static_cast<float>(expected_of(row));
  num_open_tokens_ += double{added.expected} * row.num_choices;
  num_inexact_open_ += !row.is_exact;
}

void LengthPredictor::end(int64_t line, int64_t num_output_tokens) {
  std::lock_guard lock(mutex_);
  const int64_t at = find(line);
  if (at < 0 || rows_[at].has_ended) return;
  Row& row = rows_[at];
  row.has_ended = true;
  num_open_tokens_ -= double{row.expected} * row.num_choices;
  num_ended_tokens_ += num_output_tokens;
  ++num_ended_;
  num_inexact_open_ -= !row.is_exact;
  if (!row.is_exact && num_output_tokens > 0) {
    num_learned_ += row.num_choices;
    num_learned_tokens_ += num_output_tokens;
    const double length = static_cast<double>(num_output_tokens) / row.num_choices;
    for (int32_t group = group_of(row);;) {
      Group& one = groups_.at(group);
      one.by_prompt.add(row.num_prompt_tokens, length);
      one.by_max.add(row.max_tokens, length);
      if (group == kAll) break;
      group = one.parent;
    }
  }
  if (num_ended_ < refresh_at_) return;
  refresh();
  refresh_at_ = num_ended_ + std::max(kEnough, num_ended_ / 4);
}

void LengthPredictor::set_running(int64_t num_answers, int64_t num_tokens) {
  std::lock_guard lock(mutex_);
  num_running_ = num_answers;
  num_running_tokens_ = num_tokens;
}

double LengthPredictor::expected(int64_t line) const {
  std::lock_guard lock(mutex_);
  const int64_t at = find(line);
  return at < 0 ? 0 : rows_[at].expected;
}

int64_t LengthPredictor::expected_tokens(int64_t line) const {
  std::lock_guard lock(mutex_);
  const int64_t at = find(line);
  return at < 0 ? 0 : std::llround(double{rows_[at].expected} * rows_[at].num_choices);
}

int64_t LengthPredictor::num_learned() const {
  std::lock_guard lock(mutex_);
  return static_cast<int64_t>(groups_.at(kAll).by_prompt.count());
}

LengthPredictor::Totals LengthPredictor::totals() const {
  std::lock_guard lock(mutex_);
  return {num_ended_tokens_, num_open_tokens_, num_inexact_open_ == 0, learned_group(kAll) == nullptr};
}

std::vector<SimulatedRow> LengthPredictor::open_rows() const {
  std::lock_guard lock(mutex_);
  std::vector<SimulatedRow> open;
  for (const Row& row : rows_)
    if (!row.has_ended)
      open.push_back({row.num_prompt_tokens - row.num_shared_tokens,
                      std::max(1, static_cast<int32_t>(std::lround(row.expected))), row.num_choices,
                      row.num_shared_tokens});
  return open;
}

int64_t LengthPredictor::find(int64_t line) const {
  const auto at =
      std::lower_bound(rows_.begin(), rows_.end(), line, [](const Row& row, int64_t l) { return row.line < l; });
  return at == rows_.end() || at->line != line ? -1 : at - rows_.begin();
}

// The rows that share with a prompt; its first row itself belongs to the group above.
int32_t LengthPredictor::group_of(const ExpectedRow& row) const {
  return groups_.contains(row.shared_with) ? row.shared_with : kAll;
}

const LengthPredictor::Group* LengthPredictor::learned_group(int32_t group) const {
  while (true) {
    const Group& one = groups_.at(group);
    if (one.by_prompt.count() >= kEnough) return &one;
    if (group == kAll) return nullptr;
    group = one.parent;
  }
}

double LengthPredictor::expected_of(const ExpectedRow& row) const {
  if (row.is_exact) return row.max_tokens;
  const Group* group = learned_group(group_of(row));
  if (group == nullptr) return row.max_tokens;
  return std::min<double>(row.max_tokens, group->expected(row) * running_factor());
}

// By how much the answers that have ended are shorter than all that began. Those under way will get as many tokens more as
// is left of a renewal process at any moment: mean * (1 + squared variation) / 2.
double LengthPredictor::running_factor() const {
  if (num_learned_tokens_ == 0) return 1;
  const auto learned = static_cast<double>(num_learned_), running = static_cast<double>(num_running_);
  const double left = (1 + groups_.at(kAll).by_prompt.squared_variation()) / 2;
  const double count = std::max(learned / 2, learned + running * (1 - left));
  const double mean = static_cast<double>(num_learned_tokens_ + num_running_tokens_) / count;
  return std::max(1.0, mean * learned / static_cast<double>(num_learned_tokens_));
}

void LengthPredictor::refresh() {
  num_open_tokens_ = 0;
  for (Row& row : rows_) {
    if (row.has_ended) continue;
    row.expected = static_cast<float>(expected_of(row));
    num_open_tokens_ += double{row.expected} * row.num_choices;
  }
}

}  // namespace llmb
