// Drives a Scheduler by hand: every group gives the same token, integrity is checked after every call. `plan` is
// the oldest plan in flight, `ahead` the one behind it.
#pragma once

#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "scheduler/scheduler.h"
#include "tests/support/step_output.h"
#include "tests/support/workload.h"

namespace llmb::test {

// 8 sequences, 64 tokens a step, blocks of 4, 64 blocks, context 64.
inline SchedulerConfig small_config(BatchingMode mode = BatchingMode::kContinuous) {
  SchedulerConfig config;
  config.batching = mode;
  config.max_num_seqs = 8;
  config.max_num_batched_tokens = 64;
  config.block_size = 4;
  config.num_blocks = 64;
  config.max_model_len = 64;
  config.batch_window_ms = 10;
  return config;
}

struct Harness {
  explicit Harness(const SchedulerConfig& config, Proposer* proposer = nullptr) : scheduler(config, proposer) {}

  SeqId add(std::shared_ptr<const Request> request, double now_ms = 0) {
    auto added = scheduler.add(std::move(request), now_ms);
    REQUIRE(std::holds_alternative<SeqId>(added));
    return std::get<SeqId>(added);
  }
  SeqId add(int32_t num_prompt_tokens, int32_t max_tokens, double now_ms = 0) {
    return add(make_request(num_prompt_tokens, max_tokens), now_ms);
  }

  bool schedule(double now_ms = 0, bool more_may_arrive = false) {
    return schedule_into(&plan, nullptr, now_ms, more_may_arrive);
  }
  // REQUIRES: a plan is in flight, which apply() then makes the only one.
  bool schedule_ahead(double now_ms = 0, bool more_may_arrive = false) {
    return is_ahead = schedule_into(&ahead, &plan, now_ms, more_may_arrive);
  }

  void apply(TokenId token = 7) {
    output.clear();
    for (int32_t g = 0; g < plan.num_groups(); ++g) give(token, &output);
    apply_output();
  }
  // The tokens that each group gives.
  void apply_given(const std::vector<std::vector<TokenId>>& tokens) {
    REQUIRE(static_cast<int32_t>(tokens.size()) == plan.num_groups());
    output.clear();
    for (const auto& given : tokens) give(given, &output);
    apply_output();
  }
  void apply_output() {
    scheduler.apply(plan, output, &updates);
    check();
    if (is_ahead) std::swap(plan, ahead);
    is_ahead = false;
  }

  bool step(double now_ms = 0, bool more_may_arrive = false) {
    if (!schedule(now_ms, more_may_arrive)) return false;
    apply();
    return true;
  }

  // New tokens of each sequence in the plan, as "seq:count seq:count".
  std::string shape() const { return shape_of(plan); }
  std::string ahead_shape() const { return shape_of(ahead); }
  static std::string shape_of(const StepPlan& plan) {
    std::string text;
    for (int32_t e = 0; e < plan.num_entries(); ++e)
      text += (e ? " " : "") + std::to_string(plan.entries[e].seq) + ":" + std::to_string(plan.num_rows(e));
    return text;
  }

  void check() const {
    const Status status = scheduler.check_integrity();
    REQUIRE_MESSAGE(status.ok(), status.message());
  }

  bool schedule_into(StepPlan* into, const StepPlan* in_flight, double now_ms, bool more_may_arrive) {
    const bool scheduled = scheduler.schedule(now_ms, more_may_arrive, into);
    check();
    REQUIRE(scheduled == !into->empty());
    const Status valid = validate_step_plan(*into, scheduler.config().num_blocks, in_flight, scheduler.config().num_host_blocks);
    REQUIRE_MESSAGE(valid.ok(), valid.message());
    return scheduled;
  }

  Scheduler scheduler;
  StepPlan plan, ahead;
  bool is_ahead = false;
  StepOutput output;
  std::vector<SequenceUpdate> updates;
};

}  // namespace llmb::test
