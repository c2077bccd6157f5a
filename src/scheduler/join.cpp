// How waiting sequences join the running ones.
#include <algorithm>

#include "base/check.h"
#include "scheduler/plan_builder.h"
#include "scheduler/scheduler.h"

namespace llmb {

namespace {

// Where preempted sequences are moved to the host, the pool is filled by prediction (Past-Future: Gong et al. 2025), up
// to this share of it: with 0.97, 29 % more blocks are moved, for 0 to 1.8 % fewer steps (tests/scheduler/pool_use_test).
constexpr double kMostUse = 0.95;

}  // namespace

void Scheduler::admit(int32_t* token_budget, StepPlan* plan) {
  clear_drafts();
  const int64_t most_running = std::min<int64_t>(config_.max_num_seqs, num_running() + num_candidates_);
  const int64_t most = part_of_plan(most_running);
  for (; num_candidates_ > 0 && has_seat(); --num_candidates_) {
    Sequence* sequence = waiting_.front();
    Shared shared = find_shared(*sequence, *plan);
    if (shared.group == kNoGroup && (*token_budget <= 0 || plan->num_entries() >= most)) return;
    // Nobody overtakes.
    if (shared.must_wait || !fits(*sequence, &shared)) return;
    int32_t num_tokens = std::min(sequence->num_known_tokens() - shared.num_tokens, *token_budget);
    if (sequence->request->is_indivisible && shared.group == kNoGroup) {
      if (num_tokens < sequence->num_known_tokens() - shared.num_tokens && !plan->empty()) return;
      num_tokens = sequence->num_known_tokens() - shared.num_tokens;
    }
    if (shared.group == kNoGroup) num_tokens = num_scorable(*sequence, shared.num_tokens, num_tokens);
    if (shared.group == kNoGroup && num_tokens <= 0) return;
    join(sequence, shared, plan);
    find_forks(shared, sequence);
    if (shared.group != kNoGroup) {  // the prompt is computed by this very step
      append_group_like(*sequence, shared.group, plan);
      planned_groups_.push_back(sequence);
      continue;
    }
    sequence->num_computed_tokens = shared.num_tokens;
    num_tokens = up_to_fork(*sequence, num_tokens);
    reserve_score_rows(*sequence, num_tokens);
    LLMB_CHECK(take_blocks(sequence, num_tokens, plan) == num_tokens);
    plan_entry(sequence, num_tokens, plan);
    cache_planned(sequence, num_tokens);
    *token_budget -= num_tokens;
    if (ends_at_fork(*sequence, num_tokens)) return;  // the next plan finds a snapshot there
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
    share_state(*shared.from, sequence);
    stand_beside(*shared.from, shared.num_tokens / config_.block_size, sequence);
  } else {
    share_cached(shared, sequence, plan);
  }
  if (shared.copy_from != kNoNode) copy_part(shared, sequence, plan);
  unwant(sequence);
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

// Blocks that the running sequences and the candidate lack to grow by so many.
int64_t Scheduler::blocks_wanted_with(const Sequence& candidate, const Shared& shared, int64_t growth) const {
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
  if (has_blocks_for(candidate, *shared)) return true;
  if (shared->copy_from == kNoNode) return false;
  shared->copy_from = kNoNode;
  shared->num_tokens -= shared->num_tokens % config_.block_size;
  count_blocks(shared);
  return has_blocks_for(candidate, *shared);
}

bool Scheduler::has_blocks_for(const Sequence& candidate, const Shared& shared) const {
  const int64_t growth = growth_asked_by(candidate);
  if (blocks_wanted_with(candidate, shared, growth) <= allocator_.num_free()) return true;
  if (growth == growth_blocks(kMaxPreemptions) || !goes_by_prediction()) return false;
  const int64_t num_wanted = blocks_wanted_with(candidate, shared, 0);
  return num_wanted <= allocator_.num_free() &&
         expected_peak(candidate, num_wanted, growth) <= kMostUse * config_.num_blocks;
}

// Where a wrong guess costs moving some blocks, and nobody gives way by rank.
bool Scheduler::goes_by_prediction() const {
  return cache_.keeps_evicted() && !running_.empty() && config_.policy.num_levels == 0 &&
         config_.batching == BatchingMode::kContinuous;
}

// By how many blocks the sequence grows in so many steps, less what it gives back if it ends.
double Scheduler::expected_growth(const Sequence& sequence, int32_t num_steps) const {
  const int32_t num_unseen = sequence.max_unseen_tokens();
  const int32_t num_given = sequence.num_output_tokens() + num_unseen;
  const int32_t num_tokens = sequence.num_known_tokens() + num_unseen;
  const bool may_go_on = num_given + num_steps < sequence.max_new_tokens;
  const double goes_on = may_go_on ? answer_lengths_.share_going_on(num_given, num_steps) : 0;
  const auto num_growing = std::count_if(config_.windows.begin(), config_.windows.end(),
                                         [&](int32_t window) { return window == 0 || num_tokens < window; });
  const int64_t growth =
      ceil_div(num_tokens + num_steps, config_.block_size) - ceil_div(num_tokens, config_.block_size);
  const int64_t own = (num_tokens - sequence.num_cached_tokens) / config_.block_size;
  return static_cast<double>(num_growing) *
         (goes_on * static_cast<double>(growth) - (1 - goes_on) * static_cast<double>(own));
}

// Blocks in use, at most, if the candidate joins, for which `num_wanted` are taken: now, and while `growth` blocks are
// filled.
double Scheduler::expected_peak(const Sequence& candidate, int64_t num_wanted, int64_t growth) const {
  const auto now = static_cast<double>(config_.num_blocks - allocator_.num_free() + num_wanted);
  const auto num_steps_ahead = static_cast<int32_t>(growth) * config_.block_size;
  double peak = now;
  for (const int32_t num_steps : {num_steps_ahead / 2, num_steps_ahead}) {
    double use = now + expected_growth(candidate, num_steps);
    for (const Sequence* sequence : running_) use += expected_growth(*sequence, num_steps);
    peak = std::max(peak, use);
  }
  return peak;
}

}  // namespace llmb
