// The sequences that wait, in order: members of the running batch (batching modes but continuous), then the others,
// each by rank.
//
// Does not own them. Not thread-safe. Every call costs O(log size()) for each sequence that it moves.
// Invariants: the order of the line is that of goes_before() among members and among others; num_members() counts the
// sequences in the line with is_member, num_preempted() those that had to give their blocks to others.
#pragma once

#include <cstdint>
#include <set>
#include <utility>

#include "scheduler/rank.h"
#include "scheduler/sequence.h"

namespace llmb {

class WaitingQueue {
 public:
  explicit WaitingQueue(Policy policy) : policy_(std::move(policy)) {}

  bool empty() const { return line_.empty(); }
  int64_t size() const { return static_cast<int64_t>(line_.size()); }
  int64_t num_members() const { return num_members_; }
  int64_t num_preempted() const { return num_preempted_; }
  Sequence* front() const { return *line_.begin(); }  // REQUIRES: !empty()
  auto begin() const { return line_.begin(); }
  auto end() const { return line_.end(); }

  // Asks the policy for the sequence's rank as of now, as far as it may change.
  void push(Sequence* sequence, double now_ms);
  void erase(Sequence* sequence);  // REQUIRES: it is in the line
  // Moves the sequences whose rank holds no longer than now.
  void update_ranks(double now_ms);
  // The first `count` are members. REQUIRES: so were at most as many
  void make_members(int64_t count);

 private:
  struct InLine {
    bool operator()(const Sequence* a, const Sequence* b) const {
      return a->is_member != b->is_member ? a->is_member : goes_before(*a, *b);
    }
  };
  struct ByTime {
    bool operator()(const Sequence* a, const Sequence* b) const {
      return a->rank_until_ms != b->rank_until_ms ? a->rank_until_ms < b->rank_until_ms : a->id < b->id;
    }
  };

  const Policy policy_;
  std::set<Sequence*, InLine> line_;
  std::set<Sequence*, ByTime> changing_;  // of these, whose ranks hold for a time
  int64_t num_members_ = 0, num_preempted_ = 0;
};

}  // namespace llmb
