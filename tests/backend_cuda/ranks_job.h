// Jobs of small models that several GPUs compute together, each rank a process on the host layer, and what is checked
// of them however the work is divided.
#pragma once

#include <doctest/doctest.h>
#include <signal.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "model/config_loader.h"
#include "tests/support/forked_ranks.h"
#include "tests/support/scheduled_run.h"
#include "tests/support/scripted_proposer.h"
#include "tests/support/source_dir.h"

namespace llmb::test {

inline std::string fixture(const std::string& name) { return source_dir() + "/data/fixtures/models/" + name; }

inline ModelConfig config_of_dir(const std::string& dir) {
  const Result<ModelConfig> config = load_model_config(dir);
  REQUIRE_MESSAGE(config.ok(), config.status().message());
  return *config;
}

// With keys and values in `dtype`, too.
inline LoadOptions options_for(const std::string& dir, const ModelConfig& config, DType dtype) {
  LoadOptions o;
  o.model_dir = dir;
  o.groups_layers = true;
  o.block_size = 8;
  o.num_blocks_override = 200;
  o.max_num_seqs = 6;
  o.max_num_batched_tokens = 40;
  o.max_model_len = std::min(config.max_position_embeddings, 64);
  o.num_threads = 1;
  o.dtype = o.kv_cache_dtype = dtype;
  o.cuda.deterministic = true;
  return o;
}

// Ranks that share out rows, of which those of a stage have parts of each layer; with delays by the seed.
inline ForkedRanksOptions row_ranks(int32_t context_size, int32_t tensor_size = 1, int32_t num_stages = 1,
                                    uint64_t seed = 0) {
  ForkedRanksOptions ranks;
  ranks.tensor_size = tensor_size;
  ranks.num_stages = num_stages;
  ranks.context_size = context_size;
  ranks.delay_seed = seed;
  return ranks;
}

// Greedy and sampled rows, of prompts with so many tokens.
inline std::vector<GenerateRequest> requests_for(const ModelConfig& config, int32_t num_tokens = 3,
                                                 const std::vector<int32_t>& lengths = {1, 7, 9, 21}) {
  std::vector<GenerateRequest> requests;
  for (const int32_t length : lengths) {
    GenerateRequest& r = requests.emplace_back();
    for (int32_t i = 0; i < length; ++i) r.prompt.push_back((11 * i + 3 * length) % config.vocab_size);
    r.num_tokens = num_tokens;
    r.sampling.num_logprobs = 4;
    r.sampling.rng = {3, static_cast<uint64_t>(length)};
    if (length % 4 == 1) r.sampling.temperature = 0.9f, r.sampling.top_p = 0.95f;
  }
  return requests;
}

inline SchedulerConfig scheduler_for(int32_t max_num_seqs, int32_t max_num_batched_tokens,
                                     int32_t num_alternating = 1) {
  SchedulerConfig config;
  config.max_num_seqs = max_num_seqs;
  config.max_num_batched_tokens = max_num_batched_tokens;
  config.max_model_len = 64;
  config.enable_prefix_caching = true;
  config.num_alternating = num_alternating;
  return config;
}

// Drafts in chains and in trees, of which some are right, change no bit of `plain`, and more than `least` are accepted.
// REQUIRES: the backend was loaded for 14 drafts
inline void check_verified_drafts(Backend& ranks, SchedulerConfig scheduler,
                                  const std::vector<std::shared_ptr<const Request>>& requests,
                                  const ScheduledRun& plain, int64_t least, int32_t vocab_size = 128) {
  for (const double tree_rate : {0.0, 0.9}) {
    ScriptedProposer proposer(tokens_of(requests, plain.answers), vocab_size,
                              {.propose_rate = 0.9, .right_rate = 0.6, .tree_rate = tree_rate}, 7);
    scheduler.max_num_drafts = 14;
    scheduler.max_drafts_per_group = 6;
    scheduler.allows_trees = tree_rate > 0;
    const ScheduledRun drafted = run_scheduled(ranks, scheduler, &proposer, requests);
    CHECK((drafted.answers == plain.answers));
    CHECK(drafted.num_given - drafted.num_groups > least);
    CHECK((drafted.num_trees > 0) == scheduler.allows_trees);
  }
}

// Rank 1 gets the signal, which stops it, behind a first step: the next one fails with a line that names the rank.
inline void check_signal_is_named(const ForkedRanks& ranks, const StepPlan& plan, int signal) {
  StepOutput output;
  REQUIRE(ranks.backend->submit(plan).ok());
  REQUIRE(ranks.backend->wait(&output).ok());
  ::kill(ranks.peers->pids()[0], signal);
  Status status = ranks.backend->submit(plan);
  if (status.ok()) status = ranks.backend->wait(&output);
  CHECK(status.code() == StatusCode::kDeviceError);
  CHECK_MESSAGE(status.message().find("rank 1 in step ") != std::string::npos, status.message());
}

}  // namespace llmb::test
