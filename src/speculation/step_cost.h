// How long a step takes, by its number of rows, learned from the steps that run.
#pragma once

#include <array>
#include <cstdint>

namespace llmb {

// The lower quartile of the newest steps: what else the machine does makes some of them longer, by any factor.
class StepCost {
 public:
  // REQUIRES: num_rows >= 1
  void observe(int32_t num_rows, double ms);
  // 0 before two observations of one number of rows. Between observed numbers of rows it is interpolated, and it never
  // falls with them.
  double ms(int32_t num_rows) const;

 private:
  // Numbers of rows: 1 to 8, then four to each doubling; the last stands for all above.
  static constexpr int32_t kNumPoints = 56;
  struct Point {
    std::array<float, 16> newest = {};  // ms
    int32_t count = 0;                  // of all observations
    double ms = 0;                      // the lower quartile
  };
  // One step alone may have taken long by accident.
  bool is_known(int32_t point) const { return points_[point].count >= 2; }
  static int32_t point_of(int32_t num_rows);
  static double rows_of(int32_t point);
  double beyond(int32_t last, double last_ms, double rows) const;

  std::array<Point, kNumPoints> points_;
};

}  // namespace llmb
