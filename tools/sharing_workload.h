// Made files whose rows share most of their prompts, and how many prompt tokens a scheduler computes for them on the
// ledger backend.
//
//   documents   300 documents of 500 to 1,000 tokens, 10 questions behind each
//   few_shot    8 prompts of 1,000 tokens with examples, 375 questions behind each
//   tree        200 leaves: 400 tokens for all, 10 branches of 300 tokens, 20 twigs of 400 tokens on each; 15 questions
//               behind each
//
// Questions are 20 to 60 tokens of their own, answers 16 tokens.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "backend/ledger/ledger_backend.h"
#include "base/check.h"
#include "base/rng.h"
#include "planner/prefix_index.h"
#include "planner/row_order.h"
#include "scheduler/scheduler.h"

namespace llmb {

using Requests = std::vector<std::shared_ptr<const Request>>;

// Numbers that follow from a seed alone.
class WorkloadRng {
 public:
  explicit WorkloadRng(uint64_t seed) : seed_(seed) {}
  // Uniform, both ends included.
  int32_t between(int32_t low, int32_t high) {
    const auto bits = philox4x32({num_draws_++, 0, 0, 0}, {static_cast<uint32_t>(seed_), 0})[0];
    return low + static_cast<int32_t>(uint64_t{bits} * static_cast<uint64_t>(high - low + 1) >> 32);
  }

 private:
  const uint64_t seed_;
  uint32_t num_draws_ = 0;
};

// As the planner orders them, all of them known, for so many at one time.
inline Requests planned(const Requests& requests, Schedule schedule, int32_t num_slots) {
  PrefixIndex index(size_t{1} << 30);
  std::vector<PlannedRow> rows;
  for (const auto& request : requests) {
    const PrefixIndex::Shared shared = index.add(request->prompt_tokens);
    rows.push_back({index.num_prompts() - 1, shared, *request->params.stop.max_tokens});
  }
  Requests ordered;
  for (const int32_t row : order_rows(schedule, rows, num_slots)) ordered.push_back(requests[row]);
  return ordered;
}

class SharingWorkload {
 public:
  static constexpr int32_t kVocabSize = 32000, kNumSlots = 64;

  // In groups: the rows of one beginning follow each other.
  static Requests documents() {
    SharingWorkload w;
    for (int i = 0; i < 300; ++i) w.add_questions(w.tokens(w.rng_.between(500, 1000)), 10);
    return std::move(w.requests_);
  }
  static Requests few_shot() {
    SharingWorkload w;
    for (int i = 0; i < 8; ++i) w.add_questions(w.tokens(1000), 375);
    return std::move(w.requests_);
  }
  static Requests tree() {
    SharingWorkload w;
    const std::vector<TokenId> root = w.tokens(400);
    for (int i = 0; i < 10; ++i) {
      const std::vector<TokenId> branch = joined(root, w.tokens(300));
      for (int k = 0; k < 20; ++k) w.add_questions(joined(branch, w.tokens(400)), 15);
    }
    return std::move(w.requests_);
  }
  static Requests shuffled(Requests requests) {
    WorkloadRng rng(1);
    for (size_t i = requests.size(); i > 1; --i)
      std::swap(requests[i - 1], requests[rng.between(0, static_cast<int32_t>(i) - 1)]);
    return requests;
  }

 private:
  std::vector<TokenId> tokens(int32_t count) {
    std::vector<TokenId> tokens(count);
    for (TokenId& token : tokens) token = rng_.between(0, kVocabSize - 1);
    return tokens;
  }
  static std::vector<TokenId> joined(std::vector<TokenId> a, const std::vector<TokenId>& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
  }
  void add_questions(const std::vector<TokenId>& beginning, int32_t count) {
    for (int32_t i = 0; i < count; ++i) {
      auto request = std::make_shared<Request>();
      request->prompt_tokens = joined(beginning, tokens(rng_.between(20, 60)));
      request->params.sampling.temperature = 0;
      request->params.stop.max_tokens = 16;
      request->params.stop.ignore_eos = true;
      requests_.push_back(std::move(request));
    }
  }

  WorkloadRng rng_{0};
  Requests requests_;
};

struct SharingResult {
  int64_t num_steps = 0;
  PromptTokens prompt_tokens;
  int64_t num_evictions = 0, num_copies = 0, num_preemptions = 0;
  int64_t num_possible = 0;  // prompt tokens that a row before has, one token less where it has all
  // The share that is saved of all that sharing can save; rows that preempted sequences recompute count against it.
  double share_saved() const {
    return static_cast<double>(prompt_tokens.num_asked - prompt_tokens.num_computed) /
           static_cast<double>(num_possible);
  }
};

// All rows arrive at once, in this order; `num_slots` run at a time at most, 1,024 tokens a step.
inline SharingResult run_sharing_workload(const Requests& requests, int32_t pool_tokens,
                                          int32_t num_slots = SharingWorkload::kNumSlots) {
  ModelConfig model;
  model.vocab_size = SharingWorkload::kVocabSize;
  SchedulerConfig config;
  config.max_num_seqs = num_slots;
  config.max_num_batched_tokens = 1024;
  config.block_size = 16;
  config.num_blocks = pool_tokens / config.block_size;
  config.enable_prefix_caching = true;
  LoadOptions load;
  load.block_size = config.block_size;
  load.num_blocks_override = config.num_blocks;
  const std::unique_ptr<Backend> backend = make_ledger_backend({});
  const auto require = [](const Status& status) { LLMB_CHECK_MSG(status.ok(), status.message()); };
  require(backend->load(model, load));
  Scheduler scheduler(config);
  PrefixIndex index(size_t{1} << 30);
  SharingResult result;
  for (const auto& request : requests) {
    const auto longest = static_cast<int32_t>(request->prompt_tokens.size()) - 1;
    result.num_possible += std::min(index.add(request->prompt_tokens).num_tokens, longest);
    LLMB_CHECK(std::holds_alternative<SeqId>(scheduler.add(request, 0)));
  }
  StepPlan plan;
  StepOutput output;
  std::vector<SequenceUpdate> updates;
  while (scheduler.schedule(0, false, &plan)) {
    require(backend->submit(plan));
    require(backend->wait(&output));
    scheduler.apply(plan, output, &updates);
    ++result.num_steps;
    result.num_copies += static_cast<int64_t>(plan.block_copies.size());
  }
  LLMB_CHECK(!scheduler.has_work());
  result.prompt_tokens = scheduler.prompt_tokens();
  result.num_evictions = scheduler.num_evictions();
  result.num_preemptions = scheduler.num_preemptions_total();
  return result;
}

}  // namespace llmb
