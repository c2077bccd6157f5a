// Who leaves the running sequences before it has ended, and who changes places among them.
#include <algorithm>

#include "base/check.h"
#include "scheduler/scheduler.h"

namespace llmb {

// Sets yielding_: the running sequences that give way to the head of the line; none where that would not let it join.
void Scheduler::find_yielding(const StepPlan& plan) {
  yielding_.clear();
  if (config_.policy.num_levels == 0 || num_candidates_ == 0 || running_.empty()) return;
  const Sequence& head = *waiting_.front();
  if (!goes_before(head, *running_.back())) return;
  const Shared shared = find_shared(head, plan);
  if (shared.must_wait) return;
  const int64_t growth = growth_asked_by(head);
  int64_t num_lacking = blocks_wanted_with(head, shared, growth) - allocator_.num_free();
  bool lacks_seat = !has_seat();
  for (size_t i = running_.size(); i > 0 && (lacks_seat || num_lacking > 0); --i) {
    Sequence* sequence = running_[i - 1];
    if (!may_yield(*sequence, head) || sequence == shared.from) continue;
    yielding_.push_back(sequence);
    lacks_seat = false;
    num_lacking -= num_blocks_wanted(config_, *sequence, growth) + num_copies_needed(*sequence) +
                   num_freed_by(*sequence, shared);
  }
  if (lacks_seat || num_lacking > 0) yielding_.clear();
}

// Blocks that nobody holds without the sequence, but those that the head of the line would take up at once.
int32_t Scheduler::num_freed_by(const Sequence& sequence, const Shared& head) const {
  int32_t count = sequence.blocks.num_unshared(allocator_);
  for (int32_t group = 0; group < num_groups(); ++group) {
    const std::vector<BlockId>& blocks = sequence.blocks.blocks(group);
    for (size_t i = 0; i < std::min(blocks.size(), head.nodes.size()); ++i) {
      if (blocks[i] != cache_.block(head.nodes[i], group)) break;
      count -= blocks[i] != kNoBlock && allocator_.num_references(blocks[i]) == 1;
    }
  }
  return count;
}

bool Scheduler::may_yield(const Sequence& sequence, const Sequence& to) const {
  return goes_before(to, sequence) && !sequence.is_promoted && !sequence.ends_in_flight() &&
         sequence.num_policy_preemptions < config_.policy.num_levels;
}

// One that awaits its fork is parked.
void Scheduler::preempt(Sequence* sequence, int32_t Sequence::*counter) {
  LLMB_CHECK(num_in_flight_ == 0);
  leave_running(sequence);
  want(cache_computed(sequence), sequence);
  let_go_of_blocks(sequence);
  sequence->num_computed_tokens = sequence->num_misplaced_tokens = 0;
  if (sequence->awaits_fork) return;
  ++(sequence->*counter);
  ++num_preemptions_total_;
  waiting_.push(sequence, now_ms_);
  ++num_candidates_;
}

void Scheduler::enter_running(Sequence* sequence) {
  auto at = running_.end();
  while (at != running_.begin() && goes_before(*sequence, **(at - 1))) --at;
  running_.insert(at, sequence);
  sequence->is_running = true;
}

void Scheduler::leave_running(Sequence* sequence) {
  const auto before = [](const Sequence* a, const Sequence* b) { return goes_before(*a, *b); };
  const auto at = std::lower_bound(running_.begin(), running_.end(), sequence, before);
  LLMB_CHECK(at != running_.end() && *at == sequence);
  running_.erase(at);
  sequence->is_running = false;
}

// The sequence has got tokens.
void Scheduler::consider_demotion(Sequence* sequence) {
  const int32_t num_levels = config_.policy.num_levels;
  if (num_levels == 0 || is_settled(*sequence)) return;
  const Rank rank = config_.policy.rank(*sequence, now_ms_).rank;
  sequence->is_demotion_due = sequence->may_be_demoted_to(rank, num_levels);
  if (!sequence->is_demotion_due || sequence->num_in_flight > 0) return;
  sequence->is_demotion_due = false;
  leave_running(sequence);
  sequence->demote(rank);
  enter_running(sequence);
}

}  // namespace llmb
