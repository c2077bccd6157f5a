// How waiting sequences join the running ones.
#include <algorithm>
#include "base/check.h"
#include "scheduler/plan_builder.h"
#include "scheduler/scheduler.h"

namespace llmb {

void Scheduler::admit(int32_t* token_budget, StepPlan* plan) {
  clear_drafts();
  for (; num_candidates_ > 0 && has_seat(); --num_candidates_) {
    Sequence* sequence = waiting_.front();
    Shared shared = find_shared(*sequence, *plan);
    if (shared.group == kNoGroup && *token_budget <= 0) return;
    // Nobody overtakes.
    if (shared.must_wait || !fits(*sequence, &shared)) return;
    int32_t num_tokens = std::min(sequence->num_known_tokens() - shared.num_tokens, *token_budget);
    if (sequence->request->is_indivisible && shared.group == kNoGroup) {
      if (num_tokens < sequence->num_known_tokens() - shared.num_tokens && !plan->empty()) return;
      num_tokens = sequence->num_known_tokens() - shared.num_tokens;
    }
    join(sequence, shared, plan);
    if (shared.group != kNoGroup) {  // the prompt is computed by this very step
      append_group_like(*sequence, shared.group, plan);
      planned_groups_.push_back(sequence);
      continue;
    }
    sequence->num_computed_tokens = shared.num_tokens;
    LLMB_CHECK(take_blocks(sequence, num_tokens, plan) == num_tokens);
    plan_entry(sequence, num_tokens, plan);
    cache_planned(sequence, num_tokens);
    *token_budget -= num_tokens;
  }
}

bool Scheduler::has_seat() const {
  return num_running() < std::min(config_.max_num_seqs, config_.max_num_batched_tokens);
}

void Scheduler::join(Sequence* sequence, const Shared& shared, StepPlan* plan) {
  waiting_.erase(sequence);
  enter_running(sequence);
  if (shared.from != nullptr) {
    sequence->blocks.share_seen(shared.from->blocks, shared.num_tokens, &allocator_);
    stand_beside(*shared.from, shared.num_tokens / config_.block_size, sequence);
  } else {
    share_cached(shared, sequence, plan);
  }
  unwant(sequence);
  if (shared.copy_from != kNoNode) {
    LLMB_CHECK(sequence->blocks.grow_to(shared.num_tokens, &allocator_));
    for (int32_t group = 0; group < num_groups(); ++group)
      plan_copy({group, cache_.block(shared.copy_from, group), sequence->blocks.blocks(group).back()}, plan);
  }
  if (sequence->num_preemptions() > 0 || sequence->num_output_tokens() > 0) return;
  sequence->num_cached_tokens = std::min(shared.num_tokens, sequence->num_prompt_tokens());
  prompt_tokens_.num_asked += sequence->num_prompt_tokens();
  prompt_tokens_.num_saved += sequence->num_cached_tokens;
}

// By how many blocks everybody must be able to grow for the candidate to join (admission.h).
int64_t Scheduler::growth_asked_by(const Sequence& candidate) const {
  int32_t num_preemptions = candidate.num_memory_preemptions;
  for (size_t i = running_.size(); i > 0 && goes_before(candidate, *running_[i - 1]); --i)
    if (is_settled(*running_[i - 1])) num_preemptions = kMaxPreemptions;
  return growth_blocks(num_preemptions);
}

// Blocks that the running sequences and the candidate lack for the growth that it asks for.
int64_t Scheduler::blocks_wanted_with(const Sequence& candidate, const Shared& shared) const {
  const int64_t growth = growth_asked_by(candidate);
  // The last shared block is copied before it is written to, if it is not full. Idle ones are free until then.
  int64_t num_wanted = num_blocks_wanted(config_, candidate, growth) + shared.num_idle + shared.num_on_host;
  for (int32_t group = 0; group < num_groups(); ++group)
    num_wanted -= shared.num_tokens / config_.block_size - first_block_seen(group, shared.num_tokens);
  for (const Sequence* sequence : running_)
    num_wanted += num_blocks_wanted(config_, *sequence, growth) + num_copies_needed(*sequence);
  return num_wanted;
}

// Whether there are blocks for the candidate. It does without a copy whose sources, idle until now, are too many.
bool Scheduler::fits(const Sequence& candidate, Shared* shared) const {
  if (blocks_wanted_with(candidate, *shared) <= allocator_.num_free()) return true;
  if (shared->copy_from == kNoNode) return false;
  shared->copy_from = kNoNode;
  shared->num_tokens -= shared->num_tokens % config_.block_size;
  count_blocks(shared);
  return blocks_wanted_with(candidate, *shared) <= allocator_.num_free();
}

}  // namespace llmb
