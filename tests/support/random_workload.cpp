#include <algorithm>
#include <memory>
#include <numeric>
#include <vector>

#include "core/kv_layout.h"
#include "core/layer_groups.h"
#include "core/state_layout.h"
#include "tests/support/random_policy.h"
#include "tests/support/workload.h"

namespace llmb::test {

std::shared_ptr<Request> make_request(int32_t num_prompt_tokens, int32_t max_tokens) {
  auto request = std::make_shared<Request>();
  request->prompt_tokens.resize(num_prompt_tokens);
  std::iota(request->prompt_tokens.begin(), request->prompt_tokens.end(), 1);
  request->params.sampling.temperature = 0;
  request->params.stop.max_tokens = max_tokens;
  request->params.stop.ignore_eos = true;
  return request;
}

namespace {

SchedulerConfig random_config(TestRng* rng) {
  SchedulerConfig config;
  config.batching = static_cast<BatchingMode>(rng->chance(0.5) ? 3 : rng->between(0, 3));
  config.max_num_seqs = rng->log_between(1, 16);
  config.max_num_batched_tokens = rng->log_between(1, 64);
  config.block_size = rng->log_between(1, 16);
  config.max_model_len = rng->log_between(2, 96);
  config.batch_window_ms = rng->between(0, 20);
  // Mostly a pool that a few sequences of full length crowd, where blocks run out.
  const int32_t full_length = static_cast<int32_t>(ceil_div(config.max_model_len, config.block_size));
  config.num_blocks = rng->chance(0.1) ? rng->log_between(1, 1000) : rng->between(1, 3 * full_length);
  return config;
}

// Layers in groups as backends make them, and a pool for so many groups.
void set_windows(const std::vector<int32_t>& layer_windows, Workload* workload) {
  SchedulerConfig& config = workload->config;
  ModelConfig& model = workload->model;
  model.num_hidden_layers = static_cast<int32_t>(layer_windows.size());
  for (const int32_t window : layer_windows) model.layers.emplace_back().window = window;
  config.windows = group_layers(model, config.max_model_len).windows;
  config.num_blocks *= static_cast<int32_t>(config.windows.size());
}

std::shared_ptr<const Request> random_request(const Workload& workload, int64_t index, TestRng* rng) {
  auto request = std::make_shared<Request>();
  const int32_t vocab_size = workload.model.vocab_size;
  // Mostly what fits the pool, sometimes anything, so that refusals happen but do not empty the workload.
  const int64_t pool = int64_t{workload.config.num_blocks} / static_cast<int64_t>(workload.config.windows.size()) *
                       workload.config.block_size;
  const auto longest = static_cast<int32_t>(std::min<int64_t>(workload.config.max_model_len, pool));
  const bool anything = rng->chance(0.1);
  request->prompt_tokens.resize(rng->log_between(1, anything ? 120 : std::max(1, longest / 2)));
  for (TokenId& token : request->prompt_tokens) token = rng->between(0, vocab_size - 1);
  request->eos_token_ids = workload.model.eos_token_ids;
  request->rng = {workload.seed, static_cast<uint64_t>(index)};
  SamplingParams& sampling = request->params.sampling;
  sampling.temperature = rng->chance(0.5) ? 0.0f : 1.0f;
  if (rng->chance(0.1)) sampling.repetition_penalty = 1.1f;
  if (rng->chance(0.1)) sampling.frequency_penalty = 0.5f;
  if (rng->chance(0.1)) sampling.num_logprobs = rng->between(0, 3);
  if (rng->chance(0.15)) sampling.num_choices = rng->between(2, 5);
  StopParams& stop = request->params.stop;
  const int32_t room = longest + 1 - static_cast<int32_t>(request->prompt_tokens.size());
  stop.max_tokens = rng->between(1, anything ? 120 : std::max(1, room));
  if (rng->chance(0.2)) stop.min_tokens = rng->between(0, *stop.max_tokens);
  if (rng->chance(0.2)) stop.stop_token_ids.push_back(rng->between(0, vocab_size - 1));
  stop.ignore_eos = rng->chance(0.6);
  return request;
}

// Prompts that begin as earlier ones, some as an earlier prompt with its answer behind it.
void share_beginnings(Workload* workload, TestRng* rng) {
  const LedgerOptions options{workload->seed, workload->eos_rate};
  const LedgerModel model = make_ledger_model(workload->model, options);
  for (size_t i = 1; i < workload->requests.size(); ++i) {
    if (!rng->chance(0.7)) continue;
    const Request& earlier = *workload->requests[rng->between(0, static_cast<int32_t>(i) - 1)];
    std::vector<TokenId> beginning = earlier.prompt_tokens;
    const int32_t max_model_len = workload->config.max_model_len;
    if (rng->chance(0.3) && static_cast<int32_t>(beginning.size()) < max_model_len) {
      const std::vector<TokenId> answer = ledger_reference(model, earlier, max_model_len).tokens;
      beginning.insert(beginning.end(), answer.begin(), answer.end());
    }
    auto request = std::make_shared<Request>(*workload->requests[i]);
    const size_t longest = std::min(beginning.size(), request->prompt_tokens.size());
    const auto length = rng->chance(0.5) ? longest : rng->between(0, static_cast<int32_t>(longest));
    std::copy_n(beginning.begin(), length, request->prompt_tokens.begin());
    workload->requests[i] = request;
  }
}

}  // namespace

std::vector<int32_t> random_layer_windows(uint64_t seed) {
  TestRng rng(seed ^ 0x77696e646f77);
  const int32_t window = rng.log_between(2, 60), other = rng.chance(0.2) ? rng.log_between(2, 60) : window;
  const double share_of_full = rng.chance(0.3) ? 0.0 : rng.chance(0.5) ? 0.5 : 0.2;
  std::vector<int32_t> windows(rng.between(1, 8));
  for (int32_t& size : windows) size = rng.chance(share_of_full) ? 0 : rng.chance(0.5) ? window : other;
  return windows;
}

void give_states(Workload* workload) {
  SchedulerConfig& config = workload->config;
  workload->model.state = {StateKind::kGatedDelta, 1, 1, 2, 2, 2};
  workload->model.layers.resize(std::max(workload->model.num_hidden_layers, 1));
  config.max_drafts_per_group = std::min({config.max_drafts_per_group, config.max_num_drafts, kMaxStateDrafts});
  config.num_host_blocks = 0;
  config.allows_trees = false;
  // Few, so that they give way to each other.
  TestRng rng(workload->seed ^ 0x7374617465);
  config.num_snapshots = rng.chance(0.1) ? 0 : rng.log_between(1, 20);
  config.num_state_slots = 2 * config.max_num_seqs + config.num_snapshots;  // no more than a GPU has
}

void give_open_groups(Workload* workload) {
  SchedulerConfig& config = workload->config;
  const int64_t num_slots = int64_t{config.num_blocks} * config.block_size;
  config.block_size = workload->seed % 3 == 0 ? 2 * kKvGroup : kKvGroup;
  config.num_blocks = static_cast<int32_t>(ceil_div(num_slots, config.block_size));
  config.state_period = kKvGroup;
  config.max_drafts_per_group = std::min({config.max_drafts_per_group, config.max_num_drafts, kKvGroup - 1});
  config.num_state_slots = 3 * config.max_num_seqs;
  config.allows_trees = false;
}

Workload random_workload(uint64_t seed, int32_t max_vocab_size, const std::vector<int32_t>& layer_windows) {
  TestRng rng(seed);
  Workload workload;
  workload.seed = seed;
  workload.config = random_config(&rng);
  if (!layer_windows.empty()) set_windows(layer_windows, &workload);
  workload.model.vocab_size = rng.log_between(4, max_vocab_size);
  for (int32_t i = rng.between(0, 2); i > 0; --i) workload.model.eos_token_ids.push_back(i);
  workload.eos_rate = rng.chance(0.5) ? 0.02 : 0.0;
  // A crowd of short prompts with long outputs on one-token blocks is what preempts the same request again and again.
  const bool crowd = rng.chance(0.02);
  if (crowd) workload.config.block_size = 1;
  if (crowd) workload.config.max_num_seqs = 32;
  const int32_t num_requests = crowd ? rng.between(20, 60) : rng.log_between(1, 12);
  const double mean_gap_ms = rng.chance(0.5) ? 0 : rng.log_between(1, 30);
  double now_ms = 0;
  for (int32_t i = 0; i < num_requests; ++i) {
    workload.requests.push_back(random_request(workload, i, &rng));
    workload.arrival_ms.push_back(now_ms);
    now_ms += mean_gap_ms * rng.between(0, 2);
  }
  if (rng.chance(0.2)) workload.finish_rate = 0.1;
  if (rng.chance(0.1)) workload.nan_rate = 0.05;
  if (rng.chance(0.7)) workload.ahead_rate = rng.chance(0.7) ? 1.0 : 0.5;
  if (rng.chance(0.5)) {
    workload.config.max_num_drafts = rng.log_between(1, 24);
    if (rng.chance(0.3)) workload.config.max_drafts_per_group = rng.between(1, 4);
    workload.config.allows_trees = rng.chance(0.5);
    workload.proposer = {rng.chance(0.5) ? 1.0 : 0.5, rng.chance(0.2) ? 1.0 : 0.7, 0.6, rng.chance(0.7) ? 0 : 0.3};
  }
  workload.config.policy = random_policy(seed);
  workload.config.enable_prefix_caching = rng.chance(0.7);
  if (rng.chance(0.3)) workload.config.max_idle_blocks = rng.between(1, 8);
  workload.config.copies_blocks = rng.chance(0.8);
  TestRng swap_rng(seed ^ 0x73776170);
  workload.config.preemption = static_cast<PreemptionMode>(swap_rng.between(0, 2));
  if (workload.config.preemption != PreemptionMode::kRecompute)
    workload.config.num_host_blocks = swap_rng.between(0, swap_rng.chance(0.5) ? 4 : 2 * workload.config.num_blocks);
  if (rng.chance(0.7)) share_beginnings(&workload, &rng);
  return workload;
}

}  // namespace llmb::test
