// How waiting sequences join the running ones, and what of a prompt they share with other choices of their request.
#include <algorithm>

#include "base/check.h"
#include "scheduler/plan_builder.h"
#include "scheduler/scheduler.h"

namespace llmb {

void Scheduler::admit(int32_t* token_budget, StepPlan* plan) {
  drafts_.clear();
  for (; num_candidates_ > 0 && has_seat(); --num_candidates_) {
    Sequence* sequence = waiting_.front();
    const Shared shared = find_shared(*sequence, *plan);
    int32_t num_tokens = std::min(sequence->num_known_tokens() - shared.num_tokens, *token_budget);
    if (shared.group == kNoGroup && num_tokens <= 0) return;
    // Nobody overtakes.
    if (shared.must_wait || blocks_wanted_with(*sequence, shared) > allocator_.num_free()) return;
    if (sequence->request->is_indivisible && shared.group == kNoGroup) {
      if (num_tokens < sequence->num_known_tokens() - shared.num_tokens && !plan->empty()) return;
      num_tokens = sequence->num_known_tokens() - shared.num_tokens;
    }
    join(sequence, shared);
    if (shared.group != kNoGroup) {  // the prompt is computed by this very step
      append_group_like(*sequence, shared.group, plan);
      planned_groups_.push_back(sequence);
      continue;
    }
    sequence->num_computed_tokens = shared.num_tokens;
    LLMB_CHECK(take_blocks(sequence, num_tokens, plan) == num_tokens);
    plan_entry(sequence, num_tokens, plan);
    *token_budget -= num_tokens;
  }
}

bool Scheduler::has_seat() const {
  return num_running() < std::min(config_.max_num_seqs, config_.max_num_batched_tokens);
}

void Scheduler::join(Sequence* sequence, const Shared& shared) {
  waiting_.erase(sequence);
  enter_running(sequence);
  if (shared.from == nullptr) return;
  const int64_t num_blocks = ceil_div(shared.num_tokens, config_.block_size);
  sequence->blocks.share(shared.from->blocks, num_blocks, &allocator_);
}

// Another choice of the request that runs may have computed the prompt, or be about to.
Scheduler::Shared Scheduler::find_shared(const Sequence& candidate, const StepPlan& plan) const {
  Shared shared;
  if (candidate.request->params.sampling.num_choices == 1) return shared;
  const bool has_output = candidate.num_output_tokens() > 0;
  // Without output the prompt's last token must be computed for what it samples.
  const int32_t num_tokens = candidate.num_prompt_tokens() - (has_output ? 0 : 1);
  for (const Sequence* other : running_) {
    if (other->request != candidate.request) continue;
    if (other->num_computed_tokens >= num_tokens) return {other, num_tokens, kNoGroup, false};
    shared.must_wait = true;
  }
  for (int32_t g = 0; g < plan.num_groups() && !has_output; ++g) {
    const Sequence* other = planned_groups_[g];
    if (other->request != candidate.request || other->num_output_tokens() > 0 || other->num_in_flight > 0) continue;
    return {other, candidate.num_prompt_tokens(), g, false};
  }
  return shared;
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
  // Of shared blocks, the last one is copied before it is written to, if it is not full.
  int64_t num_wanted =
      num_blocks_wanted(candidate, config_.block_size, growth) - shared.num_tokens / config_.block_size;
  for (const Sequence* sequence : running_)
    num_wanted += num_blocks_wanted(*sequence, config_.block_size, growth) + needs_copy(*sequence);
  return num_wanted;
}

}  // namespace llmb
