#include "scheduler/scheduler.h"

#include <algorithm>
#include <limits>
#include <span>
#include <string>
#include <utility>

#include "base/check.h"
#include "scheduler/plan_builder.h"

namespace llmb {

namespace {

// First element of a line ordered by id that is not before `seq`.
auto lower_bound_id(auto& line, SeqId seq) {
  return std::lower_bound(line.begin(), line.end(), seq, [](const auto& s, SeqId id) { return s->id < id; });
}

// Before the allocator takes memory for num_blocks.
const SchedulerConfig& checked(const SchedulerConfig& config) {
  LLMB_CHECK(config.max_num_seqs >= 1 && config.max_num_batched_tokens >= 1 && config.max_model_len >= 1);
  LLMB_CHECK(config.block_size >= 1 && config.num_blocks >= 1);
  LLMB_CHECK(int64_t{config.num_blocks} * config.block_size <= std::numeric_limits<int32_t>::max());
  LLMB_CHECK(config.batch_window_ms >= 0);
  return config;
}

}  // namespace

Scheduler::Scheduler(const SchedulerConfig& config) : config_(checked(config)), allocator_(config.num_blocks) {}

std::variant<SeqId, RequestError> Scheduler::add(std::shared_ptr<const Request> request, double now_ms) {
  LLMB_CHECK(!request->prompt_tokens.empty() && request->params.stop.max_tokens.value_or(1) >= 1);
  if (std::optional<RequestError> error = never_fits(config_, *request)) return *std::move(error);
  const auto num_new_tokens = static_cast<int32_t>(max_new_tokens(config_, *request));
  waiting_.push_back(
      std::make_unique<Sequence>(next_id_, std::move(request), config_.block_size, num_new_tokens, now_ms));
  return next_id_++;
}

bool Scheduler::schedule(double now_ms, bool more_may_arrive, StepPlan* plan) {
  LLMB_CHECK_MSG(num_in_flight_ < kMaxPlansInFlight, "two plans are in flight");
  plan->clear();
  planned_.clear();
  plan->step = next_step_;
  plan->block_size = config_.block_size;
  num_members_ = num_batch_members(config_, waiting_line(), now_ms, more_may_arrive);
  int32_t token_budget = config_.max_num_batched_tokens;
  if (schedule_running(&token_budget, plan)) admit(&token_budget, plan);
  else plan->clear();
  if (plan->empty()) return false;
  commit(*plan);
  ++num_in_flight_;
  ++next_step_;
  return true;
}

// False: there is no plan ahead.
bool Scheduler::schedule_running(int32_t* token_budget, StepPlan* plan) {
  // running_ shrinks from its end while this loop preempts.
  for (size_t i = 0; i < running_.size() && *token_budget > 0; ++i) {
    Sequence* sequence = running_[i].get();
    if (sequence->ends_in_flight()) continue;
    int32_t num_tokens = std::min(sequence->num_pending_tokens(), *token_budget);
    while (!grow(sequence, num_tokens)) {
      if (num_in_flight_ > 0) return false;
      if (running_.back().get() == sequence) break;
      preempt_newest();
    }
    // The newest takes what the blocks allow: giving up its own would help nobody in this step.
    const int64_t num_held = sequence->blocks.capacity_tokens() - sequence->max_next_base();
    num_tokens = static_cast<int32_t>(std::min<int64_t>(num_tokens, num_held));
    if (num_tokens == 0) continue;
    plan_entry(sequence, num_tokens, plan);
    *token_budget -= num_tokens;
  }
  return true;
}

void Scheduler::admit(int32_t* token_budget, StepPlan* plan) {
  while (num_members_ > 0 && *token_budget > 0 && num_running() < config_.max_num_seqs) {
    Sequence* sequence = waiting_.front().get();
    if (!has_room_for(*sequence)) return;  // nobody overtakes
    running_.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
    --num_members_;
    const int32_t num_tokens = std::min(sequence->num_pending_tokens(), *token_budget);
    LLMB_CHECK(grow(sequence, num_tokens));
    plan_entry(sequence, num_tokens, plan);
    *token_budget -= num_tokens;
  }
}

void Scheduler::plan_entry(Sequence* sequence, int32_t num_tokens, StepPlan* plan) {
  append_to_plan(*sequence, num_tokens, plan);
  planned_.push_back(sequence);
}

// Moves the plan's sequences to where they are when it has run.
void Scheduler::commit(const StepPlan& plan) {
  for (int32_t e = 0; e < plan.num_entries(); ++e) planned_[e]->num_computed_tokens = plan.max_context_len(e);
  for (int32_t g = 0; g < plan.num_groups(); ++g) {
    Sequence& sequence = *planned_[plan.groups[g].entry];
    sequence.add_group_in_flight({g, max_tokens_given(plan, plan.groups[g])});
    num_ending_ += sequence.ends_in_flight();
  }
}

bool Scheduler::has_room_for(const Sequence& candidate) const {
  const int64_t growth = growth_blocks(candidate.num_preemptions);
  int64_t num_wanted = num_blocks_wanted(candidate, config_.block_size, growth);
  for (const SequencePtr& sequence : running_) num_wanted += num_blocks_wanted(*sequence, config_.block_size, growth);
  return num_wanted <= allocator_.num_free();
}

bool Scheduler::grow(Sequence* sequence, int32_t num_tokens) {
  return sequence->blocks.grow_to(int64_t{sequence->max_next_base()} + num_tokens, &allocator_);
}

void Scheduler::preempt_newest() {
  Sequence* sequence = running_.back().get();
  sequence->blocks.release_all(&allocator_);
  sequence->num_computed_tokens = 0;
  ++sequence->num_preemptions;
  ++num_preemptions_total_;
  waiting_.push_front(std::move(running_.back()));
  running_.pop_back();
  ++num_members_;
}

std::optional<double> Scheduler::next_wakeup_ms() const { return batch_deadline_ms(config_, waiting_line()); }

WaitingLine Scheduler::waiting_line() const {
  return {num_running(), num_members_, num_waiting(), waiting_.empty() ? 0 : waiting_.front()->arrival_ms};
}

void Scheduler::apply(const StepPlan& plan, const StepOutput& output, std::vector<SequenceUpdate>* updates) {
  LLMB_CHECK_MSG(num_in_flight_ > 0 && plan.step == next_step_ - num_in_flight_, "not the oldest plan in flight");
  LLMB_CHECK(static_cast<int32_t>(output.token_start.size()) == plan.num_groups() + 1);
  LLMB_CHECK(static_cast<int32_t>(output.is_finite.size()) == plan.num_groups());
  --num_in_flight_;
  updates->clear();
  for (int32_t g = 0; g < plan.num_groups(); ++g) {
    const SeqId seq = plan.groups[g].seq;
    const auto at = lower_bound_id(running_, seq);
    if (at != running_.end() && (*at)->id == seq) take_tokens(plan, output, g, at->get(), updates);
  }
  for (const SequenceUpdate& update : *updates)
    if (update.finish) finish(update.seq);
}

void Scheduler::take_tokens(const StepPlan& plan, const StepOutput& output, int32_t group, Sequence* sequence,
                            std::vector<SequenceUpdate>* updates) {
  const int32_t begin = output.token_start[group], end = output.token_start[group + 1];
  SequenceUpdate update;
  update.seq = sequence->id;
  update.num_preemptions = sequence->num_preemptions;
  num_ending_ -= sequence->ends_in_flight();
  for (update.given = begin; update.given < end && !update.finish; ++update.given) {
    update.token = output.tokens[update.given];
    const int32_t index = sequence->num_output_tokens();
    sequence->append_token(update.token);
    if (sequence->may_end_with(index) && sequence->is_ending_token(update.token)) {
      update.finish = FinishReason::kStop;
      update.stop_token = update.token;
    } else if (index + 1 == sequence->max_new_tokens) {
      update.finish = FinishReason::kLength;
    }
    updates->push_back(update);
  }
  if (!update.finish && !output.is_finite[group]) {
    update.numeric_error = true;
    update.finish = FinishReason::kError;
    updates->push_back(update);
  }
  const std::span<const TokenId> given(output.tokens.data() + begin, output.tokens.data() + end);
  const int32_t num_misplaced = update.finish ? 0 : end - begin - num_in_place(plan, plan.groups[group], given);
  sequence->end_oldest_group(num_misplaced);
  num_ending_ += sequence->ends_in_flight();
}

void Scheduler::finish(SeqId seq) {
  if (const auto at = lower_bound_id(running_, seq); at != running_.end() && (*at)->id == seq) {
    (*at)->blocks.release_all(&allocator_);
    num_ending_ -= (*at)->ends_in_flight();
    running_.erase(at);
    return;
  }
  const auto at = lower_bound_id(waiting_, seq);
  LLMB_CHECK_MSG(at != waiting_.end() && (*at)->id == seq, "no sequence " + std::to_string(seq));
  if (at - waiting_.begin() < num_members_) --num_members_;
  waiting_.erase(at);
}

const Sequence* Scheduler::find(SeqId seq) const {
  if (const auto at = lower_bound_id(running_, seq); at != running_.end() && (*at)->id == seq) return at->get();
  if (const auto at = lower_bound_id(waiting_, seq); at != waiting_.end() && (*at)->id == seq) return at->get();
  return nullptr;
}

int32_t Scheduler::num_preemptions(SeqId seq) const {
  const Sequence* sequence = find(seq);
  LLMB_CHECK_MSG(sequence != nullptr, "no sequence " + std::to_string(seq));
  return sequence->num_preemptions;
}

KvUsage Scheduler::kv_usage() const {
  KvUsage usage;
  for (const SequencePtr& sequence : running_) {
    usage.used_slots += sequence->num_computed_tokens;
    usage.allocated_slots += sequence->blocks.capacity_tokens();
  }
  usage.total_slots = int64_t{config_.num_blocks} * config_.block_size;
  return usage;
}

}  // namespace llmb
