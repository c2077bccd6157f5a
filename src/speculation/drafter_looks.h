// Looks at drafters that take time and are not asked, as they would not pay if they were right as often as is known so
// far: now and then one drafts a token of one sequence, which no step verifies, and which is compared with what the
// sequence gets. So a look costs the time of a token, and all looks together a small share of the run's.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "core/types.h"
#include "speculation/guess.h"

namespace llmb {

class DrafterLooks {
 public:
  static constexpr size_t kNobody = SIZE_MAX;
  // A token that is drafted and not compared yet.
  struct Look {
    size_t drafter = 0;
    SeqId seq = -1;
    Guess guess;
    int32_t num_output_tokens = 0;  // of the sequence, before it
    int64_t step = 0;
  };

  explicit DrafterLooks(size_t num_drafters) : seen_(num_drafters) {}

  // A step ran: a share of its time may be spent.
  void earn() { saved_ = std::min(saved_ + kShare, kMostSaved); }
  // A look took as long as so many steps. What something else had the processor for is no reason never to look again.
  void spend(double num_steps) {
    num_steps = std::min(num_steps, kMostSpent);
    charge(num_steps);
    usual_ += (num_steps - usual_) / (usual_ == 0 ? 1 : 4);
  }
  // Something else was in vain for so long.
  void charge(double num_steps) { saved_ -= std::clamp(num_steps, 0.0, kMostSpent); }
  // A look that takes a token's time at least is paid for before it is made.
  bool can_spend(double num_steps) const { return saved_ >= std::max(num_steps, usual_); }

  // As right as the drafter may still turn out to be: the less was seen of it the more.
  double hoped(size_t drafter) const {
    const Seen& seen = seen_[drafter];
    return (seen.num_right + kHope) / (seen.num_judged + kHope);
  }
  // Counts the tokens on the guess's first path.
  void judge(size_t drafter, const Guess& guess, std::span<const Verdict> verdicts);

  // Whose turn it is, or nobody's: before the next plan all sequences are seen.
  size_t next = kNobody;
  std::optional<Look> newest;
  SeqId sequence = -1;  // of the newest one: what it has is read
  int64_t count = 0;    // of looks

 private:
  static constexpr double kShare = 0.002;                    // of all steps' time
  static constexpr double kMostSaved = 4, kMostSpent = 24;   // steps
  static constexpr double kHope = 4, kMemory = 64;           // tokens

  struct Seen {
    double num_right = 0, num_judged = 0;
  };
  std::vector<Seen> seen_;  // [drafters]
  double saved_ = 0, usual_ = 0;
};

}  // namespace llmb
