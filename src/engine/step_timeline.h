// How a run went over time, in constant memory: as long as it takes, its bins number between half of kMaxBins and all.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace llmb {

// Sums over the steps in a bin, or in a stretch of time. Divided by busy_ms they are means.
struct TimelineBin {
  double busy_ms = 0;  // in steps
  int64_t num_input_tokens = 0, num_output_tokens = 0;
  double running_ms = 0, waiting_ms = 0;  // sequences × time
  double kv_use_ms = 0;                   // share of the pool × time

  void add(const TimelineBin& other);
};

class StepTimeline {
 public:
  static constexpr int kMaxBins = 240;

  StepTimeline() = default;
  // REQUIRES: what bin_ms() and bins() of another gave
  StepTimeline(double bin_ms, std::vector<TimelineBin> bins) : bin_ms_(bin_ms), bins_(std::move(bins)) {}

  // A step that ended then, since the start of the run.
  void add(double end_ms, const TimelineBin& step);
  // The steps of another one whose run started so much later.
  void add(const StepTimeline& other, double later_ms);
  double bin_ms() const { return bin_ms_; }
  const std::vector<TimelineBin>& bins() const { return bins_; }

 private:
  double bin_ms_ = 125;
  std::vector<TimelineBin> bins_;
};

}  // namespace llmb
