// Whether drafting pays at present: tried for a few steps, kept while it does, and tried again ever more rarely.
#pragma once

#include <algorithm>
#include <cstdint>

namespace llmb {

class SpeculationSwitch {
 public:
  bool is_on() const { return wait_ == 0; }
  bool is_trial() const { return is_on() && trial_left_ > 0; }

  // A step ran without drafting, for so many sequences.
  void count_step(int32_t num_sequences) {
    // Each row of a thinner batch costs more: what did not pay may pay now.
    if (num_sequences * 2 <= tried_with_) wait_ = std::min(wait_, kFirstWait), pause_ = kFirstPause;
    if (wait_ > 0 && --wait_ == 0) begin_trial(num_sequences);
  }

  // A step ran with drafting on and gained this share of a step's time, or lost it.
  void add(double gain) {
    if (trial_left_ > 0) {
      trial_sum_ += gain;
      if (--trial_left_ > 0) return;
      gain_ = trial_sum_ / kTrialSteps;
    } else {
      gain_ += (gain - gain_) / kMemory;
      if (gain_ >= 0) pause_ = kFirstPause;
    }
    if (gain_ >= 0) return;
    wait_ = pause_;
    pause_ = std::min(2 * pause_, kMaxPause);
  }

 private:
  static constexpr int32_t kFirstWait = 16, kFirstPause = 64, kMaxPause = 1024;  // steps
  static constexpr int32_t kTrialSteps = 4;
  static constexpr double kMemory = 32;  // steps

  void begin_trial(int32_t num_sequences) {
    trial_left_ = kTrialSteps;
    trial_sum_ = 0;
    tried_with_ = num_sequences;
  }

  int32_t wait_ = kFirstWait, pause_ = kFirstPause;  // steps until the next trial; after the next one that fails
  int32_t trial_left_ = 0, tried_with_ = 0;
  double trial_sum_ = 0, gain_ = 0;
};

}  // namespace llmb
