// Hands on what a step gave to the requests that it was given for.
#include <memory>
#include <optional>
#include <utility>

#include "engine/active_request.h"
#include "engine/engine.h"
#include "engine/prompt_transfer.h"

namespace llmb {

namespace {

FinishedItem finished_item(ActiveRequest& active, Completion completion) {
  return {active.ordinal(), std::move(completion), active.take_itl_ms()};
}

}  // namespace

void Engine::process_output(const StepPlan& plan, double now_ms) {
  for (const SequenceUpdate& update : updates_) {
    const auto at = active_.find(update.seq);
    if (at == active_.end()) continue;  // a stop string ended it in this very step, before this token
    if (update.numeric_error) {
      fail_all(update);
      continue;
    }
    if (update.is_prompt) {
      at->second->add_prompt_logprobs(output_, update.given);
      continue;
    }
    if (update.num_best > 0) {
      advance_beams(update, now_ms);
      continue;
    }
    ActiveChoice& choice = at->second->choice(update.choice);
    if (const Task task = at->second->request().params.task; task == Task::kEmbed || task == Task::kClassify) {
      if (choice.take_vector(output_, update.given, now_ms)) complete(plan, update, *update.finish);
      else fail_all(update);
      continue;
    }
    const auto stopped = choice.add_token(output_, update.given, update.stop_token.has_value(), now_ms);
    // A later token of the step may have ended it for the scheduler.
    if (stopped && scheduler_.contains(update.seq)) scheduler_.finish(update.seq);
    // A stop string and the last token allowed may coincide: the stop string is the reason.
    if (stopped) complete(plan, update, *stopped);
    else if (update.finish) complete(plan, update, *update.finish);
  }
}

void Engine::advance_beams(const SequenceUpdate& update, double now_ms) {
  const std::shared_ptr<ActiveRequest> active = active_.at(update.seq);
  ActiveBeams& beams = *active->beams();
  if (update.choice == 0) active->set_cached_tokens(update.num_cached_tokens);
  if (!beams.add(update.choice, output_, update.given, update.given + update.num_best)) return;
  const SeqId first = update.seq - update.choice;
  if (beams.advance(now_ms)) return scheduler_.fork(first, beams.forks());
  int32_t num_preemptions = 0;
  for (SeqId seq = first; seq < first + active->request().params.sampling.num_choices; ++seq) {
    num_preemptions += scheduler_.num_preemptions(seq);
    scheduler_.finish(seq);
    forget(seq);
  }
  active->finish_beams(num_preemptions);
  Completion completion = active->take_completion();
  sink_.put(finished_item(*active, std::move(completion)));
}

void Engine::complete(const StepPlan& plan, const SequenceUpdate& update, FinishReason reason) {
  const auto at = active_.find(update.seq);
  ActiveRequest& active = *at->second;
  if (update.choice == 0 || !active.request().parts.empty()) active.add_cached_tokens(update.num_cached_tokens);
  for (int32_t i = 0; i < kMaxDrafters; ++i)
    if (const DraftCounts& c = update.drafted[i]; c.num_steps > 0)
      active.add_drafted({options_.proposer->drafter_name(i), c.num_steps, c.num_drafted, c.num_accepted});
  if (active.finish_choice(update.choice, reason, update.stop_token, update.num_preemptions)) {
    FinishedItem item = finished_item(active, active.take_completion());
    if (options_.gives_blocks) item.blocks = blocks_of(plan, update, active);
    sink_.put(std::move(item));
    const SeqId first = update.seq - update.choice;
    for (SeqId seq = first; seq < first + active.request().params.sampling.num_choices; ++seq) work_.remove(seq);
  }
  active_.erase(at);
}

std::shared_ptr<const PromptBlocks> Engine::blocks_of(const StepPlan& plan, const SequenceUpdate& update,
                                                      const ActiveRequest& active) {
  std::optional<PromptBlocks> blocks = read_prompt(plan, update.seq, backend_);
  if (!blocks) return nullptr;
  blocks->scheduled_ms = active.scheduled_ms();
  blocks->num_cached_tokens = update.num_cached_tokens;
  return std::make_shared<const PromptBlocks>(*std::move(blocks));
}

bool Engine::forget(SeqId seq) {
  work_.remove(seq);
  return active_.erase(seq) > 0;
}

// One choice's error is the request's.
void Engine::fail_all(const SequenceUpdate& update) {
  const std::shared_ptr<ActiveRequest> active = active_.at(update.seq);
  if (update.has_no_choice)
    put_error(active->ordinal(), active->request(),
              {"no_token_allowed",
               "the answer cannot go on: its form, min_tokens and logit_bias leave no token of the vocabulary",
               std::nullopt});
  else
    put_error(active->ordinal(), active->request(),
              {"numeric_error", "the model's logits held NaN or infinity", std::nullopt});
  const SeqId first = update.seq - update.choice;
  for (SeqId seq = first; seq < first + active->request().params.sampling.num_choices; ++seq)
    if (forget(seq) && scheduler_.contains(seq)) scheduler_.finish(seq);
}

void Engine::put_error(int64_t ordinal, const Request& request, RequestError error) {
  Completion completion = completion_for(request);
  completion.error = std::move(error);
  sink_.put({ordinal, std::move(completion), {}});
}

}  // namespace llmb
