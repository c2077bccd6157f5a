// Drafts that go to the target on the device, by steps that nobody waits for (unseen_steps.h).
#include <algorithm>

#include "scheduler/plan_builder.h"
#include "speculation/model_drafter.h"

namespace llmb {

// Penalties and forms need to know the drafts before a token; trees the best others beside it.
bool ModelDrafter::is_fed(const Sequence& text) const {
  return unseen_ && !options_.guesses_trees && !text.penalty_counts && text.constraint == nullptr;
}

void ModelDrafter::feed(std::span<Job> jobs, const DraftLimits& limits) {
  while (catch_up(jobs)) {
  }
  unseen_->begin_guesses();
  while (feed_step(jobs, limits)) {
  }
  if (!unseen_->failure().ok()) give_up(unseen_->failure());
  for (Job& job : jobs) {
    UnseenSteps::end_chain(job.text);
    if (has_failed_) job.guess->clear();
  }
}

// A part of what the first step has no budget for; false: it has, or all is given up.
bool ModelDrafter::catch_up(std::span<Job> jobs) {
  int64_t num_pending = 0;
  for (const Job& job : jobs) num_pending += job.text->num_pending_tokens();
  if (num_pending <= options_.max_num_batched_tokens) return false;
  UnseenStep& step = unseen_->begin();
  step.catches_up = true;
  for (Job& job : jobs) {
    const int32_t budget = options_.max_num_batched_tokens - step.plan.num_tokens();
    const int32_t num_tokens = std::min(budget, job.text->num_pending_tokens() - 1);
    if (num_tokens == 0) continue;
    append_entry(*job.text, num_tokens, Drafts(), DraftStates(), &step.plan);
    job.text->num_computed_tokens += num_tokens;
  }
  return unseen_->submit();
}

// The next draft of the jobs that go on; false: none does.
bool ModelDrafter::feed_step(std::span<Job> jobs, const DraftLimits& limits) {
  UnseenStep& step = unseen_->begin();
  for (Job& job : jobs) {
    if (job.num_drawn == limits.max_tokens || job.probability < limits.min_probability) continue;
    if (!unseen_->has_slot()) break;
    const int32_t num_tokens = job.text->num_pending_tokens();
    step.catches_up |= num_tokens > 2;  // as in run_step()
    append_entry(*job.text, num_tokens, Drafts(), DraftStates(), &step.plan);
    unseen_->add_draft(job.acceptance, job.text, job.guess);
    job.probability *= job.acceptance;
    ++job.num_drawn;
  }
  return unseen_->submit();
}

Status ModelDrafter::see(const UnseenStep& step, const StepOutput& output) {
  if (step.catches_up) invested_ms_ += output.device_ms;
  else cost_.observe(step.plan.num_entries(), /*num_context_tokens=*/0, output.device_ms);
  for (size_t g = 0; g < step.drafts.size(); ++g) {
    if (output.token_start[g + 1] == output.token_start[g]) return internal_error("its logits are not finite");
    const auto row = rows_.find(step.drafts[g].seq);
    if (row == rows_.end()) continue;
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
