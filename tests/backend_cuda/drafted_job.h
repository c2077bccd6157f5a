// A small job on the CUDA backend, run with a speculator and without.
#pragma once

#include <doctest/doctest.h>

#include <string>

#include "backend/cuda/cuda_backend.h"
#include "model/config_loader.h"
#include "tests/support/model_drafters.h"

namespace llmb::test {

// Rows greedy and sampled, with a penalty and log probabilities.
inline std::string rows_to_draft_for() {
  std::string text;
  for (int i = 0; i < 5; ++i)
    text += R"({"prompt_token_ids":[)" + std::to_string(3 + i) + ",9,17,5," + std::to_string(40 + 3 * i) +
            R"(],"max_tokens":12,"return_token_ids":true,"logprobs":1,"seed":)" + std::to_string(i) +
            (i % 2 == 0 ? R"(,"temperature":0})" : R"(,"temperature":0.9,"frequency_penalty":0.3})") + "\n";
  return text;
}

inline EngineJobOptions deterministic_cuda_job(const std::string& model_dir) {
  EngineJobOptions o;
  o.make_backend = [] { return make_cuda_backend(0); };
  o.load.model_dir = model_dir;
  o.load.num_threads = 1;
  o.load.dtype = DType::kBF16;
  o.load.cuda.deterministic = true;
  o.config = *load_model_config(model_dir);
  o.scheduler.max_model_len = 32;
  o.scheduler.max_num_seqs = 3;
  o.scheduler.max_num_batched_tokens = 16;
  o.scheduler.block_size = o.load.block_size = 16;
  o.scheduler.num_blocks = 8;
  o.scheduler.max_num_drafts = 12;
  o.scheduler.allows_trees = true;
  return o;
}

// The job's bytes with a speculator that drafts as the setup says are those without.
inline SpeculationMetrics check_same_bytes(EngineJobOptions o, const DraftSetup& setup,
                                           const std::string& rows = rows_to_draft_for()) {
  const EngineJob plain(rows), drafted(rows);
  REQUIRE(plain.run(o).status.ok());
  o.config.mtp.is_used = setup.by == DraftBy::kLayers && setup.num_layers == 0;
  const SteadyClock clock;
  StepCost cost;
  const auto speculator = make_speculator(setup, &o, cost, clock);
  o.proposer = speculator.get();
  o.step_cost = &cost;
  const EngineJobOutcome outcome = drafted.run(o);
  REQUIRE_MESSAGE(outcome.status.ok(), outcome.status.message());
  CHECK(drafted.output() == plain.output());
  return speculator->metrics();
}

}  // namespace llmb::test
