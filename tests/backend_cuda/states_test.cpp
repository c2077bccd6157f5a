// Models with recurrent states on the CUDA backend: bits do not depend on the schedule, and what a plan asks of states.
#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <vector>

#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/supported.h"
#include "model/config_loader.h"
#include "tests/support/plan_builder.h"
#include "tests/support/scheduled_run.h"
#include "tests/support/scripted_proposer.h"
#include "tests/support/source_dir.h"
#include "tests/support/window_requests.h"
#include "tests/support/workload.h"

namespace llmb::test {
namespace {

std::string model_dir(const std::string& model) { return source_dir() + "/data/fixtures/models/" + model; }

LoadOptions options_of(const std::string& model, DType dtype) {
  LoadOptions o;
  o.model_dir = model_dir(model);
  o.block_size = 8;
  o.num_blocks_override = 100;
  o.max_num_seqs = 4;
  o.max_num_batched_tokens = 64;
  o.max_model_len = 64;
  o.num_threads = 1;
  o.dtype = dtype;
  o.cuda.deterministic = true;
  return o;
}

std::unique_ptr<Backend> load(const LoadOptions& o) {
  return loaded(make_cuda_backend(0), load_model_config(o.model_dir).value(), o);
}

SchedulerConfig config_for(const Backend& backend, int32_t max_num_batched_tokens) {
  SchedulerConfig config;
  config.max_num_seqs = 4;
  config.max_num_batched_tokens = max_num_batched_tokens;
  config.max_model_len = 64;
  config.num_state_slots = backend.info().num_state_slots;
  config.num_snapshots = backend.info().num_snapshots;
  return config;
}

TEST_CASE("deterministic: states leave the bits of a row alone, with choices, drafts and a small pool") {
  int64_t num_accepted = 0, num_rejected = 0, num_copies = 0;
  for (const char* model : {"qwen3_5", "granitemoehybrid", "lfm2"})
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      CAPTURE(model);
      CAPTURE(dtype_name(dtype));
      auto requests = window_requests({5, 37}, 20);
      requests.push_back(window_requests({26}, 12, 2)[0]);
      const LoadOptions whole = options_of(model, dtype);
      const auto plain = load(whole);
      CHECK(plain->info().num_state_slots == 2 * 4 + plain->info().num_snapshots);
      SchedulerConfig alone = config_for(*plain, 64);
      alone.max_num_seqs = 1;
      const auto expected = run_scheduled(*plain, alone, nullptr, requests).answers;
      // Prompts in pieces, beside answers, with plans ahead.
      CHECK(run_scheduled(*plain, config_for(*plain, 23), nullptr, requests).answers == expected);
      LoadOptions small = whole;
      small.num_blocks_override = 12;
      small.max_num_drafts = 12;
      small.max_drafts_per_group = 6;
      const auto drafted = load(small);
      CHECK(drafted->info().max_drafts_per_group == 6);
      CHECK_FALSE(drafted->info().verifies_trees);
      SchedulerConfig config = config_for(*drafted, 23);
      config.num_blocks = 12;
      config.max_num_drafts = 12;
      config.max_drafts_per_group = 6;
      const auto answer = tokens_of(requests, expected);
      ScriptedProposer proposer(answer, 60, {.propose_rate = 0.8, .right_rate = 0.7}, 2);
      const ScheduledRun run = run_scheduled(*drafted, config, &proposer, requests);
      CHECK(run.answers == expected);
      num_accepted += run.num_given - run.num_groups;
      num_rejected += run.num_drafts - (run.num_given - run.num_groups);
      num_copies += run.num_copies;
    }
  CHECK(num_accepted > 20);
  CHECK(num_rejected > 20);
  CHECK(num_copies > 0);
}

// Passes plans on and counts what they copy and compute.
class CountingBackend final : public Backend {
 public:
  explicit CountingBackend(std::unique_ptr<Backend> backend) : backend_(std::move(backend)) {}

  Status load(const ModelConfig& config, const LoadOptions& options) override { return backend_->load(config, options); }
  const BackendInfo& info() const override { return backend_->info(); }
  Status submit(const StepPlan& plan) override {
    num_copies += static_cast<int64_t>(plan.state_copies.size());
    num_tokens += plan.num_tokens();
    return backend_->submit(plan);
  }
  Status wait(StepOutput* output) override { return backend_->wait(output); }

  int64_t num_copies = 0, num_tokens = 0;

 private:
  const std::unique_ptr<Backend> backend_;
};

TEST_CASE("rows that share a prefix go on from a snapshot of its states, with the bits of rows that compute it") {
  std::vector<std::shared_ptr<const Request>> requests;
  for (int32_t i = 0; i < 5; ++i) {
    auto request = std::make_shared<Request>(*window_requests({40}, 4)[0]);
    for (int32_t at = 32; at < 40; ++at) request->prompt_tokens[at] = 3 + (5 * at + 11 * i) % 60;
    request->rng = {12, static_cast<uint64_t>(i)};
    requests.push_back(request);
  }
  for (const char* model : {"qwen3_next", "nemotron_h"}) {
    CAPTURE(model);
    CountingBackend backend(load(options_of(model, DType::kBF16)));
    SchedulerConfig config = config_for(backend, 64);
    config.enable_prefix_caching = false;
    const auto expected = run_scheduled(backend, config, nullptr, requests).answers;
    const int64_t num_alone = backend.num_tokens;
    backend.num_copies = backend.num_tokens = 0;
    config.enable_prefix_caching = true;
    CHECK(run_scheduled(backend, config, nullptr, requests).answers == expected);
    CHECK(backend.num_copies > 0);
    CHECK(backend.num_tokens <= num_alone - 4 * 32);
  }
}

TEST_CASE("random workloads on a model with recurrent states give each answer the tokens that it gets alone") {
  const std::string model = "qwen3_5";
  LoadOptions options = options_of(model, DType::kF32);
  const ModelConfig config = load_model_config(options.model_dir).value();
  options.max_num_batched_tokens = 512;
  options.max_model_len = 96;
  options.block_size = 16;
  int64_t num_saved = 0, num_ahead = 0;
  int num_run = 0;
  for (uint64_t seed = 1; num_run < 6; ++seed) {
    Workload workload = random_workload(seed, config.vocab_size);
    give_states(&workload);
    if (workload.config.block_size % 8 != 0 || workload.config.max_num_batched_tokens > 512) continue;
    ++num_run;
    LoadOptions o = options;
    o.block_size = workload.config.block_size;
    o.num_blocks_override = workload.config.num_blocks;
    o.max_num_seqs = workload.config.max_num_seqs;
    o.max_num_batched_tokens = workload.config.max_num_batched_tokens;
    o.max_num_drafts = workload.config.max_num_drafts;
    o.max_drafts_per_group = workload.config.max_drafts_per_group;
    const auto backend = load(o);
    workload.config.num_state_slots = backend->info().num_state_slots;
    const auto alone = load(options);
    const WorkloadOutcome outcome = run_workload(workload, *backend, [&](const Request& request, int32_t choice) {
      SchedulerConfig one = config_for(*alone, 512);
      one.max_num_seqs = 1;
      one.max_model_len = workload.config.max_model_len;
      for (const auto& shared : workload.requests)
        if (shared.get() == &request) {
          const ScheduledAnswer found = run_scheduled(*alone, one, nullptr, {shared}).answers[0].at(choice);
          return LedgerCompletion{found.out.tokens, *found.finish, found.stop_token};
        }
      return LedgerCompletion();
    });
    REQUIRE_MESSAGE(outcome.error.empty(), outcome.error);
    num_saved += outcome.num_saved;
    num_ahead += outcome.num_ahead;
  }
  MESSAGE(num_saved << " prompt tokens found behind snapshots, " << num_ahead << " steps planned ahead");
  CHECK(num_ahead > 0);
}

TEST_CASE("deterministic: weights, keys and values in int8 beside states") {
  LoadOptions o = options_of("qwen3_5_moe", DType::kBF16);
  o.cpu.quantization = Quantization::kInt8;
  o.kv_cache_dtype = DType::kI8;
  const auto backend = load(o);
  const auto requests = window_requests({9, 30}, 8);
  SchedulerConfig alone = config_for(*backend, 64);
  alone.max_num_seqs = 1;
  const auto expected = run_scheduled(*backend, alone, nullptr, requests).answers;
  CHECK(run_scheduled(*backend, config_for(*backend, 7), nullptr, requests).answers == expected);
}

TEST_CASE("states that the kernels have no room for are refused by name") {
  const auto refusal = [](const auto& change) {
    ModelConfig config = load_model_config(model_dir("qwen3_5")).value();
    change(config.state);
    const Status status = check_cuda_support(config, 64);
    CHECK(status.code() == StatusCode::kUnsupported);
    return status.message();
  };
  CHECK(refusal([](StateConfig& c) { c.conv_width = 9; }).find("more than 8 tokens") != std::string::npos);
  CHECK(refusal([](StateConfig& c) { c.key_dim = 257; }).find("more than 256 channels") != std::string::npos);
  CHECK(check_cuda_support(load_model_config(model_dir("qwen3_5")).value(), 64).ok());
}

TEST_CASE("more sequences than the device has memory for states are refused before the pool is made") {
  LoadOptions o = options_of("qwen3_5", DType::kF32);
  o.load_format = LoadFormat::kDummy;
  o.max_num_seqs = 1 << 20;
  o.max_num_batched_tokens = 64;
  ModelConfig config = load_model_config(o.model_dir).value();
  config.state.num_key_heads = config.state.num_value_heads = 16;  // megabytes a sequence: terabytes, on any device
  config.state.key_dim = config.state.value_dim = 256;
  const Status status = make_cuda_backend(0)->load(config, o);
  CHECK(status.code() == StatusCode::kResourceExhausted);
  CHECK(status.message().find("lower --max-num-seqs") != std::string::npos);
}

}  // namespace
}  // namespace llmb::test
