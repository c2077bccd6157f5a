// The order of sequences. A SeqId is a name and says nothing about the order, except that it parts equal ranks.
//
// A policy is a pure function from a sequence and a time to a rank. The scheduler asks it
//  - when the sequence is added and when it is preempted, then whenever the time has come that the last answer named;
//  - for a running sequence each time it has got tokens. Then only a worse rank counts: a demotion. It takes effect
//    when no plan in flight holds the sequence, which sits out plans ahead until then.
// A better rank counts while a sequence waits: a promotion, as against starvation. A sequence is demoted at most
// num_levels - 1 times and promoted at most once. From then on its rank is final and no policy preempts it. So a rank
// changes at most num_levels times.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <limits>

namespace llmb {

struct Sequence;

inline constexpr int32_t kMaxLevels = 8;

// The smaller rank goes first, of equal ranks the smaller id.
struct Rank {
  int64_t value = 0;
  friend auto operator<=>(Rank, Rank) = default;
};

struct Ranking {
  Rank rank;
  double until_ms = std::numeric_limits<double>::infinity();  // while it waits; later than the time asked about
};

// rank = id
Ranking first_come_first_served(const Sequence& sequence, double now_ms);

struct Policy {
  std::function<Ranking(const Sequence&, double now_ms)> rank = first_come_first_served;
  // Bounds the changes of a rank, and how often a running sequence gives way to a waiting one of a better rank. 0:
  // ranks are final, nobody gives way. REQUIRES: 0 <= num_levels <= kMaxLevels
  int32_t num_levels = 0;
};

}  // namespace llmb
