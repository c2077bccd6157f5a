#include "engine/step_timeline.h"

#include <algorithm>

namespace llmb {

void TimelineBin::add(const TimelineBin& other) {
  busy_ms += other.busy_ms;
  num_input_tokens += other.num_input_tokens;
  num_output_tokens += other.num_output_tokens;
  running_ms += other.running_ms;
  waiting_ms += other.waiting_ms;
  kv_use_ms += other.kv_use_ms;
}

void StepTimeline::add(double end_ms, const TimelineBin& step) {
  while (end_ms >= bin_ms_ * kMaxBins) {
    for (size_t i = 0; i < bins_.size(); ++i) {
      if (i % 2 == 1) bins_[i / 2].add(bins_[i]);
      else if (i > 0) bins_[i / 2] = bins_[i];
    }
    bins_.resize((bins_.size() + 1) / 2);
    bin_ms_ *= 2;
  }
  const auto index = static_cast<size_t>(std::max(0.0, end_ms) / bin_ms_);
  if (index >= bins_.size()) bins_.resize(index + 1);
  bins_[index].add(step);
}

void StepTimeline::add(const StepTimeline& other, double later_ms) {
  for (size_t i = 0; i < other.bins_.size(); ++i)
    add(later_ms + (static_cast<double>(i) + 0.5) * other.bin_ms_, other.bins_[i]);
}

}  // namespace llmb
