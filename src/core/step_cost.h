// How long a step takes, by its rows, by the tokens that they look back on, and by the pairs of rows and positions of
// prompts' attention, learned from the steps that run.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace llmb {

// The lower quartile of the newest steps: what else the machine does makes some of them longer, by any factor.
class StepCost {
 public:
  // Stands for the steps of about one number of rows.
  struct Point {
    int32_t num_rows = 0;
    double ms = 0;
    double num_context_tokens = 0;  // of these steps, read from the KV cache; the mean
    double num_pairs = 0;           // of prompts' rows and the positions that each of them sees; the mean
  };
  static constexpr size_t kNumSums = 14;
  // One run leaves it for the next.
  struct Curve {
    std::vector<Point> points;         // by rows
    std::vector<double> deviations;    // [kNumSums] within numbers of rows, of which the slopes are made; empty: none
    double wall_share = 1;  // of the time that steps take by the points: what they took, pauses between them included
  };

  StepCost() = default;
  // Counts as two observations of each of its points.
  explicit StepCost(const Curve& curve);
  Curve curve() const;

  // gap_ms: before the step nothing ran. REQUIRES: num_rows >= 1
  void observe(int32_t num_rows, double num_context_tokens, double ms, double gap_ms = 0, double num_pairs = 0);
  // 0 before two observations of one number of rows. Between observed numbers of rows it is interpolated, and it never
  // falls with them.
  double ms(int32_t num_rows) const;
  // Where few steps, or none lately, took twice as long as as many rows in several steps would: as long as these. Something
  // else may have delayed them, and only another one tells.
  double hopeful_ms(int32_t num_rows) const { return interpolate(num_rows, hopeful_); }
  // The same for rows that look back on other than the usual numbers of tokens, or are parts of other prompts. Not
  // thread-safe, though const.
  double ms(int32_t num_rows, double num_context_tokens, double num_pairs = 0) const;
  // All steps of a run, of so many ms by the points, with what is between them.
  double wall_ms(double steps_ms) const { return steps_ms * wall_share(); }
  bool is_known() const { return ms(1) > 0; }

 private:
  // Numbers of rows: 1 to 8, then four to each doubling; the last stands for all above.
  static constexpr int32_t kNumPoints = 56;
  struct Step {
    float ms = 0, rows = 0, context = 0, pairs = 0;
  };
  struct Bin {
    std::array<Step, 16> newest = {};
    int32_t count = 0;  // of all observations
    int64_t last = 0;   // the number of the newest among those of all bins
    double ms = 0;      // the lower quartile
    double mean_ms = 0, rows = 0, context = 0, pairs = 0;  // means, the newest of most weight
  };
  struct Slopes {
    double rows = 0, context = 0, pairs = 0;  // ms of each; of rows, within a bin
  };
  static constexpr int32_t kEnough = 16;  // observations
  static constexpr int64_t kLately = 512;
  bool is_old(const Bin& bin) const { return num_observed_ - bin.last > kLately; }
  bool is_sure(int32_t bin) const { return bins_[bin].count >= kEnough && !is_old(bins_[bin]); }
  // One step alone may have taken long by accident.
  bool is_known(int32_t bin) const { return bins_[bin].count >= 2; }
  static int32_t bin_of(int32_t num_rows);
  static double rows_of(int32_t bin);
  static constexpr int kNumFactors = 3;  // rows, contexts, pairs
  struct Plane {
    std::array<double, kNumFactors> values = {}, errors = {};  // slopes, and their standard errors
  };
  using Values = std::array<double, kNumPoints>;  // [bins] ms
  double interpolate(int32_t num_rows, const Values& values) const;
  double beyond(int32_t last, double last_ms, double rows, const Values& values) const;
  double before(int32_t first, double rows, const Values& values) const;
  double lower_quartile(const Bin& bin, const Slopes& slopes, double middle) const;
  void make_rising(Values* values) const;
  void find_usual();
  void find_hopeful();
  Slopes slopes() const;
  Plane fit_plane(const std::array<bool, kNumFactors>& is_used) const;
  void fit() const;
  double fitted_ms(int32_t num_rows, double num_context_tokens, double num_pairs) const;
  double wall_share() const { return predicted_ms_ > 0 ? taken_ms_ / predicted_ms_ : 1; }

  std::array<Bin, kNumPoints> bins_;
  // Within bins: sums of products of the deviations of these and of times.
  std::array<std::array<double, kNumFactors>, kNumFactors> products_ = {};
  std::array<double, kNumFactors> with_times_ = {};
  double times_ = 0, num_deviations_ = 0;
  Values usual_ = {}, hopeful_ = {};  // [bins] ms, never falling
  int64_t num_observed_ = 0;
  double taken_ms_ = 0, predicted_ms_ = 0;                // of steps whose time was predicted
  // Made of what was observed, when it is asked for.
  mutable bool is_fitted_ = false;
  mutable Slopes fitted_;
  mutable Values bare_ = {}, rising_ = {};  // of steps, without what contexts and pairs take; and never falling
};

}  // namespace llmb
