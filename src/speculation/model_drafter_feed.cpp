// Drafts that go to the target on the device, by steps that nobody waits for (unseen_steps.h).
#include <algorithm>

#include "core/drafted_tokens.h"
#include "speculation/model_drafter.h"

namespace llmb {

namespace {

// The newest entry, whose only row follows a group, also computes the token before.
void add_row_before(StepPlan* plan) {
  StepEntry& entry = plan->entries.back();
  --entry.base;
  plan->tokens.insert(plan->tokens.end() - 1, token_before_unseen(entry.follows));
  ++plan->query_start.back();
  ++plan->sample_rows.back().token_row;
}

}  // namespace

// Penalties and forms need to know the drafts before a token; trees the best others beside it.
bool ModelDrafter::is_fed(const Sequence& text) const {
  return unseen_ && !options_.guesses_trees && !text.penalty_counts && text.constraint == nullptr;
}

// Its backend has places for as many groups as it samples rows.
bool ModelDrafter::is_group_known(const Sequence& sequence) const {
  const int32_t max_groups = std::min(options_.max_num_seqs, options_.max_num_batched_tokens);
  return sequence.num_in_flight == 0 || sequence.in_flight[0].group < max_groups;
}

// Rows that a chain's first step has, but for what it catches up with.
int32_t ModelDrafter::most_first_rows(const Sequence& sequence) { return sequence.max_unseen_tokens() > 1 ? 2 : 1; }

void ModelDrafter::feed(std::span<Job> jobs, const DraftLimits& limits) {
  unseen_->begin_guesses(limits.plan);
  while (catch_up(jobs)) {
  }
  for (Job& job : jobs)
    if (job.target != nullptr) job.text->add_group_in_flight(job.target->in_flight[0]);
  while (feed_step(jobs, limits)) {
  }
  if (!unseen_->failure().ok()) give_up(unseen_->failure());
  for (Job& job : jobs) {
    UnseenSteps::end_chain(job.text);
    if (job.num_drawn > 0) job.row->last_plan = limits.plan;
    if (job.target == nullptr) job.row->text_plan = limits.plan;
    else job.text->output_tokens = job.target->output_tokens, job.text->num_computed_tokens = job.text->num_known_tokens();
    if (has_failed_) job.guess->clear();
  }
}

// A part of what the first step has no budget for, and of known tokens that it leaves to others as it follows a plan in
// flight; false: it has, or all is given up.
bool ModelDrafter::catch_up(std::span<Job> jobs) {
  int64_t num_rows = 0, num_behind = 0;
  for (const Job& job : jobs) {
    const int32_t num_pending = job.text->num_pending_tokens();
    num_rows += job.target == nullptr ? num_pending : most_first_rows(*job.target);
    if (job.target != nullptr) num_behind += num_pending;
  }
  if (num_rows <= options_.max_num_batched_tokens && num_behind == 0) return false;
  UnseenStep& step = unseen_->begin();
  step.catches_up = true;
  for (Job& job : jobs) {
    prefixes_.share(job.text);
    const int32_t budget = options_.max_num_batched_tokens - step.plan.num_tokens();
    const int32_t num_tokens = std::min(budget, job.text->num_pending_tokens() - (job.target == nullptr ? 1 : 0));
    if (num_tokens == 0) continue;
    add_entry(job.text, num_tokens, &step.plan);
    job.text->num_computed_tokens += num_tokens;
  }
  step.plan.groups.clear(), step.plan.sample_rows.clear(), step.plan.bias.clear();  // nothing is drawn
  prefixes_.end_plan();
  return unseen_->submit();
}

// The next draft of the jobs that go on; false: none does.
bool ModelDrafter::feed_step(std::span<Job> jobs, const DraftLimits& limits) {
  const auto goes_on = [&](const Job& job) {
    return job.num_drawn < limits.max_tokens && job.probability >= limits.min_probability;
  };
  if (std::ranges::none_of(jobs, goes_on)) return false;
  UnseenStep& step = unseen_->begin();
  for (Job& job : jobs) {
    if (!goes_on(job)) continue;
    if (!unseen_->has_slot()) break;
    if (job.num_drawn == 0 && job.target == nullptr) prefixes_.share(job.text);
    const int32_t num_tokens = job.text->num_pending_tokens();
    step.catches_up |= num_tokens > 2;  // as in run_step()
    add_entry(job.text, num_tokens, &step.plan);
    if (job.num_drawn == 0 && job.target != nullptr && most_first_rows(*job.target) == 2) add_row_before(&step.plan);
    unseen_->add_draft(job.acceptance, job.text, job.guess);
    job.probability *= job.acceptance;
    ++job.num_drawn;
  }
  prefixes_.end_plan();
  return unseen_->submit();
}

Status ModelDrafter::see_unseen(const UnseenStep& step, const StepOutput& output) {
  if (step.catches_up) invested_ms_ += output.device_ms;
  else cost_.observe(step.plan.num_entries(), /*num_context_tokens=*/0, output.device_ms);
  for (size_t g = 0; g < step.drafts.size(); ++g) {
    if (output.token_start[g + 1] == output.token_start[g]) return internal_error("its logits are not finite");
    const auto row = rows_.find(step.drafts[g].seq);
    if (row == rows_.end() || row->second.text_plan != step.for_plan) continue;
    const auto index = static_cast<size_t>(step.drafts[g].index);
    row->second.text->output_tokens.at(index) = output.tokens[output.token_start[g]];
  }
  return {};
}

void ModelDrafter::see_all() {
  if (!unseen_) return;
  unseen_->see_all();
  if (!unseen_->failure().ok()) give_up(unseen_->failure());
}

}  // namespace llmb
