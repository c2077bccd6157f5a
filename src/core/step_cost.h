// How long a step takes, by its rows and by the tokens that they look back on, learned from the steps that run.
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
  };
  // One run leaves it for the next.
  struct Curve {
    std::vector<Point> points;         // by rows
    double ms_per_context_token = 0;
    double wall_share = 1;  // of the time that steps take by the points: what they took, pauses between them included
  };

  StepCost() = default;
  // Counts as two observations of each of its points.
  explicit StepCost(const Curve& curve);
  Curve curve() const;

  // gap_ms: before the step nothing ran. REQUIRES: num_rows >= 1
  void observe(int32_t num_rows, double num_context_tokens, double ms, double gap_ms = 0);
  // 0 before two observations of one number of rows. Between observed numbers of rows it is interpolated, and it never
  // falls with them.
  double ms(int32_t num_rows) const;
  // The same for rows that look back on other than the usual numbers of tokens.
  double ms(int32_t num_rows, double num_context_tokens) const;
  // All steps of a run, of so many ms by the points, with what is between them.
  double wall_ms(double steps_ms) const { return steps_ms * wall_share(); }
  bool is_known() const { return ms(1) > 0; }

 private:
  // Numbers of rows: 1 to 8, then four to each doubling; the last stands for all above.
  static constexpr int32_t kNumPoints = 56;
  struct Bin {
    std::array<float, 16> newest = {};  // ms
    int32_t count = 0;                  // of all observations
    double ms = 0;                      // the lower quartile
    double mean_ms = 0, context = 0;    // means of all observations
  };
  // One step alone may have taken long by accident.
  bool is_known(int32_t bin) const { return bins_[bin].count >= 2; }
  static int32_t bin_of(int32_t num_rows);
  static double rows_of(int32_t bin);
  double beyond(int32_t last, double last_ms, double rows) const;
  double usual_context(int32_t num_rows) const;
  double ms_per_context_token() const;
  double wall_share() const { return predicted_ms_ > 0 ? taken_ms_ / predicted_ms_ : 1; }

  std::array<Bin, kNumPoints> bins_;
  double context_deviations_ = 0, context_products_ = 0;  // within bins: squares of contexts', and with times'
  double taken_ms_ = 0, predicted_ms_ = 0;                // of steps whose time was predicted
};

}  // namespace llmb
