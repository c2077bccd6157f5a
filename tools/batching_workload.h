// The workload by which batching modes are compared: 1,000 requests of 512 prompt tokens, all there at the start, 64
// sequences at most, output lengths exponential with mean 128 and cut at a longest length.
//
// "Cut" means drawn again until it is not longer (a truncated distribution), not shortened to the longest. With
// shortened lengths and a longest of 32 most outputs would have 32 tokens, a static batch would hardly wait for anyone,
// and the ratio of steps would be 1.1; with drawn ones it is 2.0, and the other lengths match the published ratios as
// well.
//
// A step is a step of the engine. The token budget lets every request that joins compute its whole prompt in the step
// in which it joins, so that every step samples one token of every running sequence: engine steps are decode steps.
#pragma once

#include <cmath>
#include <cstdint>
#include <ctime>
#include <memory>
#include <string>
#include <vector>

#include "backend/ledger/ledger_backend.h"
#include "base/check.h"
#include "base/rng.h"
#include "planner/row_order.h"
#include "scheduler/scheduler.h"

namespace llmb {

struct BatchingWorkload {
  int32_t num_requests = 1000;
  int32_t num_prompt_tokens = 512;
  double mean_output_tokens = 128;
  int32_t longest_output_tokens = 1536;
  int32_t max_num_seqs = 64;
  int32_t max_model_len = 2048;  // also what a cache without paging reserves for a sequence
  int32_t block_size = 16;
  uint64_t seed = 0;
  Schedule schedule = Schedule::kFile;  // with all lengths known
};

struct BatchingResult {
  int64_t num_steps = 0;
  int64_t num_prompt_tokens = 0;
  int64_t num_output_tokens = 0;
  int64_t num_preemptions = 0;
  double cpu_s = 0;           // of the step loop, which has one thread: other work on the machine does not count
  uint64_t output_hash = 0;   // of all (request, token) in order of the request: the same for every mode
  double mean_running = 0;    // sequences in a step
  double paged_waste = 0;     // share of slots in allocated blocks that hold no token, mean over steps and sequences
  double reserved_waste = 0;  // the same where every running sequence had max_model_len slots
};

inline std::vector<int32_t> draw_output_lengths(const BatchingWorkload& workload) {
  std::vector<int32_t> lengths;
  for (int32_t i = 0; i < workload.num_requests; ++i) {
    double length = 0;
    uint32_t draw = 0;
    do {
      const float u = sampling_uniform({workload.seed, static_cast<uint64_t>(i)}, 0, draw++);
      length = std::ceil(-workload.mean_output_tokens * std::log1p(-double{u}));
    } while (length > workload.longest_output_tokens);
    lengths.push_back(length < 1 ? 1 : static_cast<int32_t>(length));
  }
  return lengths;
}

inline std::vector<std::shared_ptr<const Request>> make_batching_requests(const BatchingWorkload& workload,
                                                                          int32_t vocab_size) {
  std::vector<std::shared_ptr<const Request>> requests;
  for (const int32_t num_output_tokens : draw_output_lengths(workload)) {
    auto request = std::make_shared<Request>();
    for (int32_t i = 0; i < workload.num_prompt_tokens; ++i)
      request->prompt_tokens.push_back(static_cast<TokenId>((requests.size() * 7919 + i) % vocab_size));
    request->params.sampling.temperature = 0;
    request->params.stop.max_tokens = num_output_tokens;
    request->params.stop.ignore_eos = true;
    requests.push_back(std::move(request));
  }
  return requests;
}

inline BatchingResult run_batching_workload(BatchingMode mode, const BatchingWorkload& workload) {
  ModelConfig model;
  model.vocab_size = 32000;
  SchedulerConfig config;
  config.batching = mode;
  config.max_num_seqs = workload.max_num_seqs;
  config.max_num_batched_tokens = workload.max_num_seqs * workload.num_prompt_tokens;
  config.block_size = workload.block_size;
  config.max_model_len = workload.max_model_len;
  config.num_blocks =
      workload.max_num_seqs * static_cast<int32_t>(ceil_div(workload.max_model_len, workload.block_size));
  LoadOptions load;
  load.block_size = config.block_size;
  load.num_blocks_override = config.num_blocks;
  const std::unique_ptr<Backend> backend = make_ledger_backend({});
  const auto require = [](const Status& status) { LLMB_CHECK_MSG(status.ok(), status.message()); };
  require(backend->load(model, load));

  Scheduler scheduler(config);
  const auto requests = make_batching_requests(workload, model.vocab_size);
  std::vector<PlannedRow> rows;
  for (const auto& request : requests)
    rows.push_back({static_cast<int32_t>(rows.size()), {}, *request->params.stop.max_tokens});
  const std::vector<int32_t> order = order_rows(workload.schedule, rows, workload.max_num_seqs);
  for (const int32_t row : order) LLMB_CHECK(std::holds_alternative<SeqId>(scheduler.add(requests[row], 0)));
  BatchingResult result;
  std::vector<uint64_t> hashes(workload.num_requests);  // [requests]
  int64_t num_used = 0, num_allocated = 0, num_seqs = 0;
  StepPlan plan;
  StepOutput output;
  std::vector<SequenceUpdate> updates;
  const std::clock_t start = std::clock();
  while (scheduler.schedule(0, false, &plan)) {
    require(backend->submit(plan));
    require(backend->wait(&output));
    scheduler.apply(plan, output, &updates);
    for (const SequenceUpdate& update : updates)
      hashes[order[update.seq]] = LedgerModel::extend(hashes[order[update.seq]], update.token);
    ++result.num_steps;
    result.num_output_tokens += plan.num_samples();
    result.num_prompt_tokens += plan.num_tokens();
    for (int32_t e = 0; e < plan.num_entries(); ++e) num_used += plan.max_context_len(e);
    num_allocated += static_cast<int64_t>(plan.block_ids.size()) * plan.block_size;
    num_seqs += plan.num_entries();
  }
  result.cpu_s = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  LLMB_CHECK(!scheduler.has_work());
  result.num_prompt_tokens -= result.num_output_tokens - workload.num_requests;  // the last token is never computed
  result.num_preemptions = scheduler.num_preemptions_total();
  for (const uint64_t hash : hashes) result.output_hash = result.output_hash * 0x100000001B3u ^ hash;
  const auto share_unused = [&](double slots) { return 1.0 - static_cast<double>(num_used) / slots; };
  result.mean_running = static_cast<double>(num_seqs) / static_cast<double>(result.num_steps);
  result.paged_waste = share_unused(static_cast<double>(num_allocated));
  result.reserved_waste = share_unused(static_cast<double>(num_seqs) * workload.max_model_len);
  return result;
}

}  // namespace llmb
