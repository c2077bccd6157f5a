// Whether drafting pays at present: tried for a few steps, kept while it does, and tried again ever more rarely.
#pragma once

#include <algorithm>
#include <cstdint>

namespace llmb {

class SpeculationSwitch {
 public:
  // So many steps run before the first trial: fewer where their cost is known already.
  explicit SpeculationSwitch(bool knows_cost) : wait_(knows_cost ? kFirstWait / 4 : kFirstWait) {}

  bool is_on() const { return wait_ == 0; }
  bool is_trial() const { return is_on() && trial_left_ > 0; }
  bool is_trial_next() const { return wait_ == 1; }  // behind one step more

  // A step ran without drafting, for so many sequences.
  void count_step(int32_t num_sequences) {
    // Each row of a thinner batch costs more: what did not pay may pay now.
    if (num_sequences * 2 <= tried_with_) wait_ = std::min(wait_, kFirstWait), pause_ = kFirstPause;
    if (wait_ > 0 && --wait_ == 0) begin_trial(num_sequences);
  }

  // It is known that the trial that runs, or was to begin, will not pay.
  void put_off() {
    wait_ = std::max(kFirstPause, wait_for_lost(kPauseForLost));
    trial_left_ = 0;
    lost_ = 0;
  }

  // Gains leave out the time to read prompts and answers, of so many steps, which a trial that fails has lost.
  void invest(double num_steps) {
    if (is_trial()) lost_ += num_steps;
  }

  // A step ran with drafting on and gained this share of a step's time, or lost it. `promise`: what a step of a trial
  // would have gained with as many drafts as pay, by how many of the trial's drafts were accepted. Where a drafter is
  // sure now and then, few steps gain much and many lose a little: the mean decides, so neither is cut short, but for a
  // trial that lost much in vain, with none of its drafts accepted.
  void add(double gain, double promise, bool is_in_vain = false) {
    lost_ -= gain;
    gain = std::clamp(gain, -kMostGain, kMostGain);
    const bool is_vain_trial = trial_left_ > 0 && is_in_vain;
    if (trial_left_ > 0) {
      trial_sum_ += gain;
      if (is_in_vain && lost_ >= kMostLostInVain) trial_left_ = 1;
      if (--trial_left_ > 0) return;
      gain_ = trial_sum_ / kTrialSteps;
      if (promise >= kLeastPromise) gain_ = std::max(gain_, std::min(promise, kMostPromise));
    } else {
      gain_ += (gain - gain_) / kMemory;
      if (gain_ >= 0 && ++num_kept_ == kMemory) pause_ = kFirstPause;
    }
    if (gain_ >= 0) return;
    wait_ = std::max(pause_, wait_for_lost(is_vain_trial ? kPauseForLostInVain : kPauseForLost));
    pause_ = std::min(2 * pause_, kMaxPause);
  }

 private:
  static constexpr int32_t kFirstWait = 16, kFirstPause = 64, kMaxPause = 1024;  // steps
  static constexpr int32_t kTrialSteps = 4;
  static constexpr int32_t kMemory = 32;  // steps
  static constexpr double kMostLostInVain = 1;  // steps
  static constexpr double kPauseForLost = 150, kPauseForLostInVain = 500, kMaxPauseForLost = 8192;
  // A promise that is not kept is given up after some steps.
  static constexpr double kLeastPromise = 0.05, kMostPromise = 0.25;
  static constexpr double kMostGain = 2;  // of one step that counts

  // The next trial comes so late that the time lost in this one is a small part.
  int32_t wait_for_lost(double num_steps) const {
    return static_cast<int32_t>(std::min(num_steps * lost_, kMaxPauseForLost));
  }
  void begin_trial(int32_t num_sequences) {
    trial_left_ = kTrialSteps;
    trial_sum_ = lost_ = 0;
    num_kept_ = 0;
    tried_with_ = num_sequences;
  }

  int32_t wait_, pause_ = kFirstPause;  // steps until the next trial; after the next one that fails
  int32_t trial_left_ = 0, tried_with_ = 0, num_kept_ = 0;  // kept: steps since a trial
  double trial_sum_ = 0, gain_ = 0, lost_ = 0;  // lost: since the trial began
};

}  // namespace llmb
