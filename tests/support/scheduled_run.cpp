#include "tests/support/scheduled_run.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "base/check.h"
#include "core/plans_in_flight.h"
#include "tests/support/check_ok.h"

namespace llmb::test {

namespace {

void take(const StepOutput& o, const SequenceUpdate& update, ScheduledAnswer* answer) {
  if (update.has_no_choice) {
    answer->finish = update.finish;
    return;
  }
  LLMB_CHECK_MSG(!update.numeric_error, "logits are not finite");
  const int begin = o.top_start.at(update.given), end = o.top_start.at(update.given + 1);
  answer->out.tokens.push_back(update.token);
  answer->out.logprobs.push_back(o.logprobs.at(update.given));
  answer->out.top_tokens.emplace_back(o.top_tokens.begin() + begin, o.top_tokens.begin() + end);
  answer->out.top_logprobs.emplace_back(o.top_logprobs.begin() + begin, o.top_logprobs.begin() + end);
  answer->finish = update.finish;
  answer->stop_token = update.stop_token;
}

void count(const StepPlan& plan, ScheduledRun* run) {
  ++run->num_steps;
  run->num_copies += static_cast<int64_t>(plan.block_copies.size());
  run->num_swaps_out += static_cast<int64_t>(plan.swaps_out.size());
  run->num_swaps_in += static_cast<int64_t>(plan.swaps_in.size());
  run->num_rows += plan.num_tokens();
  run->num_groups += plan.num_groups();
  for (const SampleGroup& group : plan.groups) {
    run->num_drafts += group.num_rows() - 1;
    run->num_trees += is_tree(plan, group);
    run->num_shared_rows += group.seq != plan.entries[group.entry].seq;
  }
}

}  // namespace

ScheduledRun run_scheduled(Backend& backend, SchedulerConfig config, Proposer* proposer,
                           const std::vector<std::shared_ptr<const Request>>& requests) {
  const BackendInfo& info = backend.info();
  config.block_size = info.kv.block_size;
  config.num_blocks = info.kv.num_blocks;
  config.windows = info.kv.groups.windows;
  config.num_host_blocks = info.num_host_blocks;
  config.max_drafts_per_group = std::min(config.max_drafts_per_group, info.max_drafts_per_group);
  config.num_state_slots = info.num_state_slots;
  config.num_snapshots = info.num_snapshots;
  config.state_period = info.state_period;
  if (info.num_state_slots > 0) config.allows_trees = false;
  Scheduler scheduler(config, proposer);
  ScheduledRun run;
  std::map<SeqId, size_t> request_of;
  for (const auto& request : requests) {
    const auto added = scheduler.add(request, 0);
    LLMB_CHECK_MSG(std::holds_alternative<SeqId>(added), "a request that cannot run");
    const int32_t num_choices = request->params.sampling.num_choices;
    for (int32_t choice = 0; choice < num_choices; ++choice)
      request_of[std::get<SeqId>(added) + choice] = run.answers.size();
    run.answers.emplace_back(num_choices);
  }
  std::array<StepPlan, kMaxAlternatingPlans> plans;
  StepOutput output;
  std::vector<SequenceUpdate> updates;
  const int32_t max_in_flight = std::min(info.max_plans_in_flight, scheduler.max_plans_in_flight());
  int64_t num_submitted = 0, num_finished = 0;
  while (true) {
    while (num_submitted - num_finished < max_in_flight) {
      StepPlan& plan = plans[num_submitted % kMaxAlternatingPlans];
      if (!scheduler.schedule(0, false, &plan)) break;
      check_ok(backend.submit(plan));
      count(plan, &run);
      run.peak_kv_slots = std::max(run.peak_kv_slots, scheduler.kv_usage().allocated_slots);
      ++num_submitted;
    }
    if (num_submitted == num_finished) break;
    const StepPlan& plan = plans[num_finished++ % kMaxAlternatingPlans];
    check_ok(backend.wait(&output));
    run.num_given += static_cast<int64_t>(output.tokens.size());
    scheduler.apply(plan, output, &updates);
    check_ok(scheduler.check_integrity());
    for (const SequenceUpdate& update : updates)
      take(output, update, &run.answers[request_of.at(update.seq)][update.choice]);
  }
  LLMB_CHECK_MSG(!scheduler.has_work(), "nothing runs, but there is work");
  LLMB_CHECK(scheduler.num_free_blocks() == config.num_blocks);
  run.num_preemptions = scheduler.num_preemptions_total();
  return run;
}

std::shared_ptr<const Request> request_with_choices(int32_t num_prompt_tokens, int32_t num_choices,
                                                    int32_t max_tokens) {
  auto request = std::make_shared<Request>();
  for (int32_t i = 0; i < num_prompt_tokens; ++i) request->prompt_tokens.push_back((7 * i + num_prompt_tokens) % 96);
  request->rng = {11, static_cast<uint64_t>(num_prompt_tokens)};
  SamplingParams& sampling = request->params.sampling;
  sampling.temperature = 1;
  sampling.top_p = 0.95f;
  sampling.num_logprobs = 3;
  sampling.num_choices = num_choices;
  request->params.stop.max_tokens = max_tokens;
  request->params.stop.ignore_eos = true;
  return request;
}

ScheduledAnswers choices_alone(Backend& backend, const std::vector<std::shared_ptr<const Request>>& requests,
                               int32_t max_num_batched_tokens) {
  ScheduledAnswers answers;
  for (const auto& request : requests) {
    std::vector<GenerateRequest> choices;
    for (int32_t choice = 0; choice < request->params.sampling.num_choices; ++choice) {
      SampleRow row;
      row.choice = static_cast<uint32_t>(choice);
      row.rng = request->rng;
      row.temperature = request->params.sampling.temperature;
      row.top_p = request->params.sampling.top_p;
      row.num_logprobs = *request->params.sampling.num_logprobs;
      choices.push_back({request->prompt_tokens, *request->params.stop.max_tokens, row});
    }
    std::vector<ScheduledAnswer>& of_request = answers.emplace_back();
    for (Generated& generated : generate_one_by_one(backend, choices, max_num_batched_tokens))
      of_request.push_back({std::move(generated), FinishReason::kLength, std::nullopt});
  }
  return answers;
}

}  // namespace llmb::test
