// A step's output, to the sequences that it was planned for.
#include <algorithm>
#include <span>
#include <vector>

#include "base/check.h"
#include "scheduler/scheduler.h"

namespace llmb {

void Scheduler::apply(const StepPlan& plan, const StepOutput& output, std::vector<SequenceUpdate>* updates) {
  LLMB_CHECK_MSG(num_in_flight_ > 0 && plan.step == next_step_ - num_in_flight_, "not the oldest plan in flight");
  LLMB_CHECK(static_cast<int32_t>(output.token_start.size()) == plan.num_groups() + 1);
  LLMB_CHECK(static_cast<int32_t>(output.is_finite.size()) == plan.num_groups());
  --num_in_flight_;
  updates->clear();
  for (int32_t g = 0; g < plan.num_groups(); ++g) {
    // One that is gone has ended: nobody else leaves running_ with a plan in flight.
    Sequence* sequence = find_mutable(plan.groups[g].seq);
    if (sequence == nullptr) continue;
    if (plan.groups[g].mode == SampleMode::kScore) take_scores(plan, output, g, *sequence, updates);
    else if (sequence->is_beam()) take_best(output, g, sequence, updates);
    else take_tokens(plan, output, g, sequence, updates);
  }
  for (const SequenceUpdate& update : *updates)
    if (Sequence* sequence = update.finish ? find_mutable(update.seq) : nullptr) end(sequence, !update.numeric_error);
}

void Scheduler::take_scores(const StepPlan& plan, const StepOutput& output, int32_t group, const Sequence& sequence,
                            std::vector<SequenceUpdate>* updates) {
  const int32_t begin = output.token_start[group], end = output.token_start[group + 1];
  SequenceUpdate update = update_of(sequence);
  update.is_prompt = true;
  for (update.given = begin; update.given < end; ++update.given) {
    update.token = output.tokens[update.given];
    updates->push_back(update);
  }
  if (end - begin == plan.groups[group].num_rows()) return;
  update.is_prompt = false;
  update.numeric_error = true;
  update.finish = FinishReason::kError;
  updates->push_back(update);
}

SequenceUpdate Scheduler::update_of(const Sequence& sequence) {
  SequenceUpdate update;
  update.seq = sequence.id;
  update.choice = sequence.choice;
  update.num_preemptions = sequence.num_preemptions();
  update.num_cached_tokens = sequence.num_cached_tokens;
  return update;
}

void Scheduler::take_tokens(const StepPlan& plan, const StepOutput& output, int32_t group, Sequence* sequence,
                            std::vector<SequenceUpdate>* updates) {
  const int32_t begin = output.token_start[group], end = output.token_start[group + 1];
  SequenceUpdate update = update_of(*sequence);
  // Forced tokens, which come last, are not guessed.
  const int32_t num_drafts = plan.groups[group].num_rows() - 1 - sequence->in_flight[0].num_forced;
  const int32_t num_accepted = num_drafts > 0 ? std::clamp(end - begin - 1, 0, num_drafts) : 0;
  DraftCounts& counts = sequence->drafted[sequence->in_flight[0].drafter];
  counts.num_steps += num_drafts > 0;
  counts.num_drafted += num_drafts;
  counts.num_accepted += num_accepted;
  update.drafted = sequence->drafted;
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
    update.has_no_choice = sequence->has_no_choice();
    update.numeric_error = true;
    update.finish = FinishReason::kError;
    updates->push_back(update);
  }
  const std::span<const TokenId> given(output.tokens.data() + begin, output.tokens.data() + update.given);
  const int32_t num_misplaced =
      given.empty() ? 0 : update.given - begin - num_in_place(plan, plan.groups[group], given);
  sequence->end_oldest_group(num_misplaced);
  num_ending_ += sequence->ends_in_flight();
  // Drafts that were not accepted may have had blocks.
  sequence->blocks.shrink_to(sequence->num_known_tokens() + sequence->max_unseen_tokens(), &allocator_);
  if (num_drafts > 0) proposer_->on_verified(*sequence, num_drafts, num_accepted);
  if (update.finish) return;
  if (const int32_t count = sequence->num_reusable_tokens(); has_uncached_block(*sequence, count))
    cache_full_blocks(sequence, count, count);
  sequence->blocks.give_back_unseen(sequence->next_write(), &allocator_);
  consider_demotion(sequence);
}

}  // namespace llmb
