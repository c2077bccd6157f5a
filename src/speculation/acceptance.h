// How often guesses were right, lately.
#pragma once

#include <cstdint>

namespace llmb {

// A share of right guesses that begins at a prior and forgets what is long ago.
class Acceptance {
 public:
  explicit Acceptance(double prior, double weight = 4) : right_(prior * weight), all_(weight) {}

  double share() const { return right_ / all_; }
  void add(bool is_right) {
    constexpr double kMemory = 256;  // guesses
    if (all_ >= kMemory) right_ *= 1 - 1 / kMemory, all_ *= 1 - 1 / kMemory;
    right_ += is_right ? 1 : 0;
    all_ += 1;
  }

 private:
  double right_, all_;
};

}  // namespace llmb
