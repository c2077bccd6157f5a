#include "scheduler/scheduler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <string>
#include <utility>

#include "base/check.h"
#include "core/shared_prefixes.h"
#include "scheduler/plan_builder.h"

namespace llmb {

namespace {

// Before the allocator takes memory for num_blocks.
const SchedulerConfig& checked(const SchedulerConfig& config) {
  LLMB_CHECK(config.max_num_seqs >= 1 && config.max_num_batched_tokens >= 1 && config.max_model_len >= 1);
  LLMB_CHECK(config.block_size >= 1 && config.num_blocks >= 1);
  LLMB_CHECK(int64_t{config.num_blocks} * config.block_size <= std::numeric_limits<int32_t>::max());
  LLMB_CHECK(!config.windows.empty() && config.batch_window_ms >= 0 && config.max_num_drafts >= 0);
  LLMB_CHECK(config.num_alternating >= 1);
  LLMB_CHECK(config.num_state_slots == 0 || !config.allows_trees);
  LLMB_CHECK(config.state_period == 0 || config.block_size % config.state_period == 0);
  LLMB_CHECK(config.policy.rank != nullptr && config.policy.num_levels >= 0 && config.policy.num_levels <= kMaxLevels);
  return config;
}

}  // namespace

Scheduler::Scheduler(const SchedulerConfig& config, Proposer* proposer)
    : config_(checked(config)),
      has_windows_(std::any_of(config.windows.begin(), config.windows.end(), [](int32_t window) { return window > 0; })),
      proposer_(proposer),
      cache_(config.block_size, config.windows, config.enable_prefix_caching ? config.num_host_blocks : 0),
      allocator_(config.num_blocks, config.enable_prefix_caching ? &cache_ : nullptr, config.max_idle_blocks),
      states_(config.num_state_slots),
      snapshots_(config.num_snapshots),
      waiting_(config.policy),
      answer_lengths_(config.max_model_len) {
  cache_.keep_evicted(config.preemption == PreemptionMode::kSwap && !needs_snapshots());
}

std::variant<SeqId, RequestError> Scheduler::add(std::shared_ptr<const Request> request, double now_ms) {
  LLMB_CHECK(!request->prompt_tokens.empty() && request->params.stop.max_tokens.value_or(1) >= 1);
  const int32_t num_choices = request->params.sampling.num_choices;
  LLMB_CHECK(num_choices >= 1);
  if (std::optional<RequestError> error = never_fits(config_, *request)) return *std::move(error);
  const auto num_new_tokens = static_cast<int32_t>(max_new_tokens(config_, *request));
  now_ms_ = now_ms;
  for (int32_t choice = 0; choice < num_choices; ++choice) {
    const SeqId id = next_id_ + choice;
    const bool is_given = !request->options.empty();
    const auto num_given = is_given ? static_cast<int32_t>(request->options[choice].tokens.size()) : num_new_tokens;
    auto sequence = std::make_unique<Sequence>(id, choice, request->parts.empty() ? request : request->parts[choice],
                                               BlockTable(config_.block_size, config_.windows),
                                               std::min(num_new_tokens, num_given), now_ms);
    sequence->rank = config_.policy.rank(*sequence, now_ms).rank;
    sequence->awaits_fork = request->params.sampling.beams && choice > 0;
    if (!sequence->awaits_fork) waiting_.push(sequence.get(), now_ms);
    sequences_.emplace(id, std::move(sequence));
  }
  next_id_ += num_choices;
  return next_id_ - num_choices;
}

bool Scheduler::schedule(double now_ms, bool more_may_arrive, StepPlan* plan) {
  LLMB_CHECK_MSG(num_in_flight_ < max_plans_in_flight(), "too many plans are in flight");
  plan->clear();
  forms_one_plan_ = proposer_ != nullptr && proposer_->forms_one_plan();
  if (num_in_flight_ > 0 && (forms_one_plan_ || must_see_all())) return false;
  now_ms_ = now_ms;
  waiting_.update_ranks(now_ms);
  do plan_step(now_ms, more_may_arrive, plan);
  while (plan->empty() && park_one());
  if (plan->empty()) return false;
  cache_.take_swaps_out(&plan->swaps_out);
  find_shared_prefixes(plan);
  commit(*plan);
  ++num_in_flight_;
  ++next_step_;
  return true;
}

void Scheduler::plan_step(double now_ms, bool more_may_arrive, StepPlan* plan) {
  plan->clear();
  planned_entries_.clear();
  planned_drafts_.clear();
  planned_groups_.clear();
  plan->step = next_step_;
  plan->block_size = config_.block_size;
  plan->num_layer_groups = static_cast<int32_t>(config_.windows.size());
  num_candidates_ = num_batch_members(config_, waiting_line(), now_ms, more_may_arrive);
  if (config_.batching != BatchingMode::kContinuous) waiting_.make_members(num_candidates_);
  find_yielding(*plan);
  if (num_in_flight_ > 0 && !yielding_.empty()) return;
  for (Sequence* sequence : yielding_) preempt(sequence, &Sequence::num_policy_preemptions);
  int32_t token_budget = config_.max_num_batched_tokens;
  num_spare_rows_ = config_.max_num_drafts;
  if (schedule_running(&token_budget, plan)) admit(&token_budget, plan);
}

bool Scheduler::must_see_all() const {
  if (alternates()) return false;  // nobody is planned who is not seen
  if (proposer_ != nullptr && proposer_->must_see_all()) return true;
  const int32_t count = num_constrained();
  return count > 0 && !constrained_wait_alone_.value_or(2 * count < num_running());
}

int32_t Scheduler::num_constrained() const {
  const auto has_constraint = [](const Sequence* sequence) { return sequence->constraint != nullptr; };
  return static_cast<int32_t>(std::count_if(running_.begin(), running_.end(), has_constraint));
}

// Whether the sequence, which runs, has an entry in the plan that is made, if there is budget.
bool Scheduler::is_planned(const Sequence& sequence) const {
  if (sequence.awaits_fork) return false;
  if (sequence.num_in_flight == 0) return true;
  if (alternates() || sequence.must_be_seen() || sequence.is_demotion_due) return false;
  return proposer_ == nullptr || !proposer_->must_see(sequence);
}

int32_t Scheduler::num_planned_behind(size_t running) const {
  int32_t count = 0;
  for (size_t i = running + 1; i < running_.size(); ++i) count += is_planned(*running_[i]);
  return count;
}

// A running sequence's share of the budget that is left. Whoever lags leaves a token to each sequence behind it.
int32_t Scheduler::tokens_for(size_t running, int32_t token_budget) const {
  const int32_t num_pending = running_[running]->num_pending_tokens();
  if (num_pending > 1 && running_[running]->lags()) token_budget -= num_planned_behind(running);
  return std::clamp(token_budget, 0, num_pending);
}

// How many of the next tokens of a sequence, which begin at `base`, there are sample rows for in the plan.
int32_t Scheduler::num_scorable(const Sequence& sequence, int32_t base, int32_t num_tokens) const {
  const int32_t next = sequence.next_to_score();
  if (next == INT32_MAX) return num_tokens;
  const int64_t end = int64_t{std::max(base, next - 1)} + num_spare_rows_;  // no sample row is left for this row
  return end >= sequence.num_prompt_tokens() - 1 ? num_tokens
                                                 : static_cast<int32_t>(std::min<int64_t>(num_tokens, end - base));
}

void Scheduler::reserve_score_rows(const Sequence& sequence, int32_t num_tokens) {
  const auto [begin, end] = sequence.scored_by(num_tokens);
  num_spare_rows_ -= end - begin;
}

Scheduler::Spare Scheduler::spare_after_running(int32_t token_budget) const {
  Spare spare{allocator_.num_free(), token_budget};
  for (size_t i = 0; i < running_.size() && spare.tokens > 0; ++i) {
    if (!is_planned(*running_[i])) continue;
    const int32_t num_tokens = tokens_for(i, spare.tokens);
    spare.tokens -= num_tokens;
    spare.blocks -= blocks_needed(*running_[i], num_tokens);
  }
  return spare;
}

// Whether waiting sequences may join. False also where there is no plan ahead.
bool Scheduler::schedule_running(int32_t* token_budget, StepPlan* plan) {
  Spare spare = spare_after_running(*token_budget);
  if (num_in_flight_ > 0 && spare.blocks < 0) return false;
  if (proposer_ != nullptr) begin_proposals(spare.blocks >= 0, *token_budget - spare.tokens);
  bool may_join = true;
  const int64_t most = part_of_plan(static_cast<int64_t>(running_.size()));
  // running_ shrinks from its end while this loop preempts.
  for (size_t i = 0; i < running_.size() && *token_budget > 0; ++i) {
    Sequence* sequence = running_[i];
    if (!is_planned(*sequence) || (plan->num_entries() >= most && !sequence->lags())) continue;
    const int32_t num_wanted = up_to_fork(
        *sequence, num_scorable(*sequence, sequence->next_base(), tokens_for(i, *token_budget)));
    while (blocks_needed(*sequence, num_wanted) > allocator_.num_free() && running_.back() != sequence)
      preempt(running_.back(), &Sequence::num_memory_preemptions);
    // The last takes what the blocks allow: giving up its own would help nobody in this step.
    const int32_t num_tokens = num_wanted > 0 ? take_blocks(sequence, num_wanted, plan) : 0;
    const bool is_all = num_tokens == sequence->num_pending_tokens();
    may_join &= is_all || !sequence->lags();
    if (num_tokens == 0) continue;
    const bool is_at_fork = ends_at_fork(*sequence, num_tokens);
    may_join &= !is_at_fork;
    clear_drafts();
    reserve_score_rows(*sequence, num_tokens);
    if (is_all && !is_at_fork) propose(sequence, &spare);
    plan_entry(sequence, num_tokens, plan);
    if (sequence->lags() || sequence->num_computed_tokens < sequence->num_prompt_tokens())
      cache_planned(sequence, num_tokens);
    *token_budget -= num_tokens + drafts_.size();
  }
  return may_join;
}

void Scheduler::plan_entry(Sequence* sequence, int32_t num_tokens, StepPlan* plan) {
  take_state(sequence, plan);
  append_entry(*sequence, num_tokens, drafts_, draft_states_, plan);
  planned_drafts_.push_back({num_forced_drafts_, drafts_.drafter});
  prompt_tokens_.num_computed += std::clamp(sequence->num_prompt_tokens() - sequence->next_write(), 0, num_tokens);
  planned_entries_.push_back(sequence);
  planned_groups_.resize(plan->groups.size(), sequence);
}

// Moves the plan's sequences to where they are when it has run.
void Scheduler::commit(const StepPlan& plan) {
  for (int32_t e = 0; e < plan.num_entries(); ++e) planned_entries_[e]->num_computed_tokens = plan.max_context_len(e);
  for (int32_t g = 0; g < plan.num_groups(); ++g) {
    Sequence& sequence = *planned_groups_[g];
    if (plan.groups[g].mode == SampleMode::kScore) {
      sequence.num_scored_tokens = std::max(1, sequence.num_scored_tokens) + plan.groups[g].num_rows();
      continue;
    }
    const int32_t max_tokens = sequence.is_beam() ? 1 : max_tokens_given(plan, plan.groups[g]);
    const bool has_drafts = plan.groups[g].num_rows() > 1;
    const PlannedDrafts drafts = has_drafts ? planned_drafts_[plan.groups[g].entry] : PlannedDrafts();
    sequence.add_group_in_flight({g, max_tokens, is_tree(plan, plan.groups[g]), drafts.num_forced, drafts.drafter});
    num_ending_ += sequence.ends_in_flight();
  }
  release_copied();
  cache_.make_ready();
  for (const auto* planned : {&planned_entries_, &planned_groups_})
    for (Sequence* sequence : *planned) give_back_unseen(sequence);
  for (Sequence* sequence : planned_entries_) keep_snapshot(sequence);
}

// A plan in flight may still read them: whoever gets them writes to them in a later one. The cache gets them before. With
// states a row computes again what is there without a snapshot: only now may it take the blocks that are there.
void Scheduler::give_back_unseen(Sequence* sequence) {
  const bool may_lack_node = has_windows_ || config_.num_state_slots > 0;
  if (const int32_t count = sequence->num_reusable_tokens(); may_lack_node && has_uncached_block(*sequence, count))
    cache_full_blocks(sequence, count, count);
  sequence->blocks.give_back_unseen(sequence->next_write(), &allocator_);
}

// Whether it writes next to a block that another sequence holds, too.
bool Scheduler::needs_copy(const Sequence& sequence, int32_t layer_group) const {
  if (!sequence.blocks.is_shared(layer_group, sequence.next_write(), allocator_)) return false;
  // References that are only kept until the plan is made do not count.
  const BlockId block = sequence.blocks.blocks(layer_group)[sequence.next_write() / config_.block_size];
  return allocator_.num_references(block) - std::count(copied_from_.begin(), copied_from_.end(), block) > 1;
}

int32_t Scheduler::num_copies_needed(const Sequence& sequence) const {
  int32_t count = 0;
  for (int32_t group = 0; group < sequence.blocks.num_groups(); ++group) count += needs_copy(sequence, group);
  return count;
}

int64_t Scheduler::blocks_needed(const Sequence& sequence, int32_t num_tokens) const {
  const int64_t num_blocks = ceil_div(int64_t{sequence.max_next_base()} + num_tokens, config_.block_size);
  return std::max<int64_t>(0, num_blocks - sequence.blocks.num_blocks()) * sequence.blocks.num_groups() +
         num_copies_needed(sequence);
}

// Blocks for the next `num_tokens`, all or none; returns how many tokens there is room for.
int32_t Scheduler::take_blocks(Sequence* sequence, int32_t num_tokens, StepPlan* plan) {
  for (int32_t group = 0; group < sequence->blocks.num_groups(); ++group)
    if (needs_copy(*sequence, group))
      plan_copy(sequence->blocks.copy_on_write(group, sequence->next_write(), &allocator_), plan);
  if (sequence->blocks.grow_to(int64_t{sequence->max_next_base()} + num_tokens, &allocator_)) return num_tokens;
  return static_cast<int32_t>(sequence->blocks.capacity_tokens() - sequence->max_next_base());
}

std::optional<double> Scheduler::next_wakeup_ms() const { return batch_deadline_ms(config_, waiting_line()); }

WaitingLine Scheduler::waiting_line() const {
  WaitingLine line{num_running(), waiting_.num_members(), num_waiting(), 0};
  if (config_.batching != BatchingMode::kDynamic || line.num_running + line.num_members > 0) return line;
  line.oldest_arrival_ms = std::numeric_limits<double>::infinity();
  for (const Sequence* sequence : waiting_)
    line.oldest_arrival_ms = std::min(line.oldest_arrival_ms, sequence->arrival_ms);
  return line;
}

void Scheduler::finish(SeqId seq) {
  Sequence* sequence = find_mutable(seq);
  LLMB_CHECK_MSG(sequence != nullptr, "no sequence " + std::to_string(seq));
  end(sequence, true);
}

void Scheduler::end(Sequence* sequence, bool keeps_prefix) {
  if (sequence->is_running) {
    num_ending_ -= sequence->ends_in_flight();
    leave_running(sequence);
    if (keeps_prefix) cache_computed(sequence);
    let_go_of_blocks(sequence);
  } else {
    if (!sequence->awaits_fork) waiting_.erase(sequence);
    unwant(sequence);
  }
  if (!sequence->is_beam()) answer_lengths_.add(sequence->num_output_tokens());
  if (proposer_ != nullptr) proposer_->on_end(*sequence);
  sequences_.erase(sequence->id);
}

const Sequence* Scheduler::find(SeqId seq) const {
  const auto at = sequences_.find(seq);
  return at == sequences_.end() ? nullptr : at->second.get();
}

int32_t Scheduler::num_preemptions(SeqId seq) const {
  const Sequence* sequence = find(seq);
  LLMB_CHECK_MSG(sequence != nullptr, "no sequence " + std::to_string(seq));
  return sequence->num_preemptions();
}

KvUsage Scheduler::kv_usage() const {
  KvUsage usage;
  usage.allocated_slots = int64_t{config_.num_blocks - allocator_.num_free()} * config_.block_size;
  double num_spare_slots = 0;
  for (const Sequence* sequence : running_) {
    const int64_t num_spare = sequence->blocks.capacity_tokens() - sequence->num_computed_tokens;
    for (int32_t group = 0; group < sequence->blocks.num_groups() && num_spare > 0; ++group) {
      // Those of a shared block are the same for all who hold it.
      const int32_t num_holders = allocator_.num_references(sequence->blocks.blocks(group).back());
      num_spare_slots += static_cast<double>(num_spare) / num_holders;
    }
  }
  usage.used_slots = usage.allocated_slots - std::llround(num_spare_slots);
  usage.total_slots = int64_t{config_.num_blocks} * config_.block_size;
  return usage;
}

}  // namespace llmb
