// How long answers will be: known where a row says so, else learned in the run from the answers of rows like it.
//
// Rows like a row are, first, those that share most of their prompt with the same earlier row (one template, one
// document), then those like that earlier row, and so on to all rows. Of the first of these groups of which enough rows
// have ended, the line is taken that fits the answers best: over the prompts' lengths, over max_tokens, or the mean. As
// long as there is none, a row counts with all that it may have.
//
// Orders and figures are made of it, and no byte of an answer.
#pragma once

#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "planner/run_simulation.h"

namespace llmb {

struct ExpectedRow {
  int64_t line = 0;          // LineRef::index; increasing from row to row
  int32_t prompt = 0;        // PrefixIndex's number of its prompt
  int32_t shared_with = -1;  // and of the first prompt of those that it shares most with; -1: none
  int32_t num_prompt_tokens = 0;
  int32_t num_shared_tokens = 0;  // of these, that an earlier prompt begins with
  int32_t max_tokens = 0;  // of an answer
  int32_t num_choices = 1;
  bool is_exact = false;  // every answer has max_tokens
};

// The line through pairs of numbers that fits best.
class LineFit {
 public:
  void add(double x, double y);
  double count() const { return count_; }
  double mean() const { return y_; }
  double squared_variation() const;  // the variance of y by the square of its mean
  double residual() const;  // the part of the variance of y that the line leaves, [0, 1]
  double at(double x) const;

 private:
  double count_ = 0, x_ = 0, y_ = 0, xx_ = 0, xy_ = 0, yy_ = 0;  // means, and sums of products of deviations
};

// Thread-safe. A row takes 40 bytes. Rows beyond kMaxGroups groups belong to the group of all.
class LengthPredictor {
 public:
  static constexpr size_t kMaxGroups = 1 << 16;
  static constexpr int64_t kEnough = 8;  // rows of a group that have ended

  void add(const ExpectedRow& row);
  // The row has its answers, with so many tokens in all; none: it has an error. Does nothing for rows that were not added.
  void end(int64_t line, int64_t num_output_tokens);

  // So many answers are under way, and have got so many tokens: those that have ended are the shorter ones of all.
  void set_running(int64_t num_answers, int64_t num_tokens);

  // Tokens of one answer to the row; 0: not added.
  double expected(int64_t line) const;
  // Tokens of all its answers.
  int64_t expected_tokens(int64_t line) const;
  // Rows whose lengths were not known before, and were learned from.
  int64_t num_learned() const;

  struct Totals {
    int64_t num_ended_tokens = 0;  // of rows that have ended
    double num_open_tokens = 0;    // expected of the others, all choices
    bool are_exact = true;         // the others' lengths are known
    bool are_limits = true;        // of those that are not known nothing is learned yet: they may be shorter
  };
  Totals totals() const;
  // Those that have not ended, in order, with the tokens that are expected of them.
  std::vector<SimulatedRow> open_rows() const;

 private:
  static constexpr int32_t kAll = -1;  // the group of all rows
  struct Row : ExpectedRow {
    float expected = 0;  // of one answer
    bool has_ended = false;
  };
  struct Group {
    int32_t parent = kAll;
    LineFit by_prompt, by_max;
    double expected(const ExpectedRow& row) const;
  };

  int64_t find(int64_t line) const;  // its place in rows_; -1: not there
  int32_t group_of(const ExpectedRow& row) const;
  const Group* learned_group(int32_t group) const;
  double expected_of(const ExpectedRow& row) const;
  double running_factor() const;
  void refresh();

  mutable std::mutex mutex_;
  std::vector<Row> rows_;
  std::unordered_map<int32_t, Group> groups_ = {{kAll, {}}};  // by the prompt of their first row
  int64_t num_ended_ = 0, num_inexact_open_ = 0;
  int64_t refresh_at_ = kEnough;  // rows ended: what is expected of the open ones is found anew
  int64_t num_ended_tokens_ = 0, num_running_ = 0, num_running_tokens_ = 0;
  int64_t num_learned_ = 0, num_learned_tokens_ = 0;  // answers of ended rows whose lengths were not known
  double num_open_tokens_ = 0;
};

}  // namespace llmb
