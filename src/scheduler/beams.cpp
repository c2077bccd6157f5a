// The beams of a request: sequences whose next tokens somebody else chooses, out of the best of each, and that go on as
// copies of each other.
#include <algorithm>

#include "base/check.h"
#include "scheduler/scheduler.h"

namespace llmb {

// The group has given the best tokens after the sequence's last one, or none where a logit was not finite.
void Scheduler::take_best(const StepOutput& output, int32_t group, Sequence* sequence,
                          std::vector<SequenceUpdate>* updates) {
  SequenceUpdate update = update_of(*sequence);
  update.given = output.token_start[group];
  update.num_best = output.token_start[group + 1] - update.given;
  sequence->end_oldest_group(0);
  sequence->num_computed_tokens = sequence->num_known_tokens();
  sequence->awaits_fork = true;
  if (!output.is_finite[group]) {
    update.numeric_error = true;
    update.finish = FinishReason::kError;
  } else if (const int32_t count = sequence->num_known_tokens(); has_uncached_block(*sequence, count)) {
    cache_full_blocks(sequence, count, count);
  }
  updates->push_back(update);
}

void Scheduler::fork(SeqId first, std::span<const BeamFork> forks) {
  // Nobody is overwritten before it is copied: who is a parent goes on as itself.
  for (const BeamFork& fork : forks) {
    if (fork.choice == fork.parent) continue;
    Sequence* sequence = find_mutable(first + fork.choice);
    Sequence& parent = *find_mutable(first + fork.parent);
    LLMB_CHECK(sequence->awaits_fork && parent.awaits_fork);
    sequence->output_tokens = parent.output_tokens;
    if (sequence->is_running) share_blocks(parent, sequence);
    if (sequence->is_running) continue;
    // For the sequence to find it when it joins.
    want(parent.is_running ? cache_computed(&parent) : wanted_by(parent), sequence);
  }
  for (const BeamFork& fork : forks) {
    Sequence* sequence = find_mutable(first + fork.choice);
    sequence->append_token(fork.token);
    sequence->awaits_fork = false;
    LLMB_CHECK(sequence->num_output_tokens() < sequence->max_new_tokens);
    if (sequence->is_running) {
      consider_demotion(sequence);
    } else {
      sequence->is_member = false;  // its place in the batch may be taken
      waiting_.push(sequence, now_ms_);
    }
  }
}

// In the place of its own. Where the parent has none, the sequence waits until it finds room for them.
void Scheduler::share_blocks(const Sequence& parent, Sequence* sequence) {
  sequence->blocks.release_all(&allocator_);
  let_go_of_state(sequence);
  if (parent.is_running) share_state(parent, sequence);
  stand_beside(parent, parent.num_blocks_in_cache, sequence);
  sequence->num_computed_tokens = parent.num_computed_tokens;
  if (parent.is_running) sequence->blocks.share_seen(parent.blocks, parent.next_write(), &allocator_);
  else leave_running(sequence);
}

// The running sequence of the worst rank among those that await their forks gives up its blocks and its seat. False:
// there is none.
bool Scheduler::park_one() {
  if (num_in_flight_ > 0) return false;
  const auto last = std::find_if(running_.rbegin(), running_.rend(), [](const Sequence* s) { return s->awaits_fork; });
  if (last == running_.rend()) return false;
  preempt(*last, &Sequence::num_memory_preemptions);
  return true;
}

}  // namespace llmb
