// Drafts that go to the target on the device. Each step follows the one before it there, as a plan ahead does; what it
// draws is copied to the feed's slots behind it. The texts hold kUnseen in place of these tokens until they are seen.
#include <algorithm>

#include "core/drafted_tokens.h"
#include "scheduler/plan_builder.h"
#include "speculation/model_drafter.h"

namespace llmb {

namespace {
constexpr TokenId kUnseen = 0;
}  // namespace

// Penalties and forms need to know the drafts before a token; trees the best others beside it.
bool ModelDrafter::is_fed(const Sequence& text) const {
  return feed_ != nullptr && !options_.guesses_trees && !text.penalty_counts && text.constraint == nullptr;
}

void ModelDrafter::feed(std::span<Job> jobs, const DraftLimits& limits) {
  while (catch_up(jobs)) {
  }
  for (int32_t slot = 0; feed_step(jobs, limits, slot);) slot += static_cast<int32_t>(unseen_.back().drafts.size());
  for (Job& job : jobs) {
    if (job.text->num_in_flight > 0) {
      job.text->append_token(kUnseen);
      job.text->end_oldest_group(0);
    }
    if (has_failed_) job.guess->clear();
  }
}

// A part of what the first step has no budget for; false: it has, or all is given up.
bool ModelDrafter::catch_up(std::span<Job> jobs) {
  int64_t num_pending = 0;
  for (const Job& job : jobs) num_pending += job.text->num_pending_tokens();
  if (num_pending <= options_.max_num_batched_tokens) return false;
  UnseenStep& step = begin_step();
  step.catches_up = true;
  for (Job& job : jobs) {
    const int32_t budget = options_.max_num_batched_tokens - step.plan.num_tokens();
    const int32_t num_tokens = std::min(budget, job.text->num_pending_tokens() - 1);
    if (num_tokens == 0) continue;
    append_entry(*job.text, num_tokens, Drafts(), DraftStates(), &step.plan);
    job.text->num_computed_tokens += num_tokens;
  }
  return submit_step();
}

// The next draft of the jobs that go on, to slots from `first_slot` on; false: none does.
bool ModelDrafter::feed_step(std::span<Job> jobs, const DraftLimits& limits, int32_t first_slot) {
  UnseenStep& step = begin_step();
  step.first_slot = first_slot;
  for (Job& job : jobs) {
    if (job.num_drawn == limits.max_tokens || job.probability < limits.min_probability) continue;
    const int32_t slot = first_slot + step.plan.num_groups();
    if (slot == feed_->num_slots()) break;
    Sequence& text = *job.text;
    const int32_t num_tokens = text.num_pending_tokens();
    step.catches_up |= num_tokens > 2;  // as in run_step()
    append_entry(text, num_tokens, Drafts(), DraftStates(), &step.plan);
    step.plan.sample_rows.back().num_logprobs = 0;
    if (text.num_in_flight > 0) {
      text.append_token(kUnseen);
      text.end_oldest_group(0);
    }
    text.add_group_in_flight({.group = step.plan.num_groups() - 1, .max_tokens = 1});
    step.drafts.push_back({text.id, text.num_output_tokens()});
    job.guess->add(drafted_token(slot), job.guess->size() - 1, job.acceptance, /*kind=*/0);
    job.probability *= job.acceptance;
    ++job.num_drawn;
  }
  return submit_step();
}

// Where the backend holds no more plans, the oldest must have run.
ModelDrafter::UnseenStep& ModelDrafter::begin_step() {
  while (static_cast<int32_t>(unseen_.size()) >= backend_->info().max_plans_in_flight) see_oldest();
  UnseenStep& step = unseen_.emplace_back();
  step.plan.clear();
  step.plan.block_size = backend_->info().kv.block_size;
  return step;
}

// The newest of unseen_; false: there is nothing in it, or it could not be submitted.
bool ModelDrafter::submit_step() {
  const UnseenStep& step = unseen_.back();
  const Status submitted = has_failed_ || step.plan.empty() ? Status() : backend_->submit(step.plan);
  if (has_failed_ || step.plan.empty() || !submitted.ok()) {
    unseen_.pop_back();
    if (!submitted.ok()) give_up(submitted);
    return false;
  }
  if (step.drafts.empty()) return true;
  const Status kept = feed_->keep(step.first_slot, static_cast<int32_t>(step.drafts.size()));
  if (!kept.ok()) give_up(kept);
  return kept.ok();
}

void ModelDrafter::see_oldest() {
  const UnseenStep& step = unseen_.front();
  if (const Status status = backend_->wait(&output_); !status.ok()) {
    give_up(status);
    return unseen_.clear();  // nothing is in flight any more
  }
  if (step.catches_up) invested_ms_ += output_.device_ms;
  else cost_.observe(step.plan.num_entries(), /*num_context_tokens=*/0, output_.device_ms);
  for (size_t g = 0; g < step.drafts.size(); ++g) {
    has_failed_ |= output_.token_start[g + 1] == output_.token_start[g];  // its logits are not finite
    const auto row = rows_.find(step.drafts[g].seq);
    if (has_failed_ || row == rows_.end()) continue;
    Sequence& text = *row->second.text;
    Guess drawn;
    confidence_.add(output_, static_cast<int32_t>(g), text.request->params.sampling.temperature > 0, -1, &drawn);
    kinds_[static_cast<size_t>(step.first_slot) + g] = drawn.kinds[0];
    text.output_tokens.at(static_cast<size_t>(step.drafts[g].index)) = drawn.tokens[0];
  }
  unseen_.pop_front();
}

void ModelDrafter::see_all() {
  while (!unseen_.empty()) see_oldest();
}

}  // namespace llmb
