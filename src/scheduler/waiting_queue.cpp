#include "scheduler/waiting_queue.h"

#include <cmath>

#include "base/check.h"

namespace llmb {

void WaitingQueue::push(Sequence* sequence, double now_ms) {
  if (policy_.num_levels > 0 && !sequence->is_promoted) {
    const Ranking ranking = policy_.rank(*sequence, now_ms);
    LLMB_CHECK_MSG(ranking.until_ms > now_ms, "a rank that does not hold");
    sequence->rank_until_ms = ranking.until_ms;
    if (ranking.rank < sequence->rank) sequence->promote(ranking.rank);
    else if (sequence->may_be_demoted_to(ranking.rank, policy_.num_levels)) sequence->demote(ranking.rank);
    if (!sequence->is_promoted && std::isfinite(ranking.until_ms)) changing_.insert(sequence);
  }
  line_.insert(line_.end(), sequence);  // most often a new one, which is the last
  num_members_ += sequence->is_member;
  num_preempted_ += sequence->num_memory_preemptions > 0;
}

void WaitingQueue::erase(Sequence* sequence) {
  LLMB_CHECK(line_.erase(sequence) == 1);
  if (!changing_.empty()) changing_.erase(sequence);
  num_members_ -= sequence->is_member;
  num_preempted_ -= sequence->num_memory_preemptions > 0;
}

void WaitingQueue::update_ranks(double now_ms) {
  while (!changing_.empty() && (*changing_.begin())->rank_until_ms <= now_ms) {
    Sequence* sequence = *changing_.begin();
    erase(sequence);
    push(sequence, now_ms);
  }
}

void WaitingQueue::make_members(int64_t count) {
  LLMB_CHECK(num_members_ <= count && count <= size());
  // The order stays: whoever becomes a member stands before all others.
  for (auto at = line_.begin(); num_members_ < count; ++at) {
    num_members_ += !(*at)->is_member;
    (*at)->is_member = true;
  }
}

}  // namespace llmb
