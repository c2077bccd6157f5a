// Attention over shared prefixes through the CUDA backend: which steps use it, and that no bit shows it. On the host
// layer only, whose small device finds it worth while for a tiny model.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "backend/cuda/cuda_backend.h"
#include "kernels/simt/settings.h"
#include "model/config_loader.h"
#include "tests/support/plan_builder.h"
#include "tests/support/scheduled_run.h"
#include "tests/support/scripted_proposer.h"
#include "tests/support/source_dir.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

namespace llmb::test {
namespace {

// Passes plans on with or without the prefixes that they name.
class Naming final : public Backend {
 public:
  Naming(Backend* backend, bool names) : backend_(*backend), names_(names) {}
  Status load(const ModelConfig&, const LoadOptions&) override { return {}; }
  const BackendInfo& info() const override { return backend_.info(); }
  Status submit(const StepPlan& plan) override {
    StepPlan& own = plans_[turn_++ % (kMaxPlansInFlight + 1)];
    own = plan;
    if (!names_) own.shared_prefixes.clear(), own.shared_entries.clear();
    const uint64_t calls_before = simt::num_calls();
    const Status status = backend_.submit(own);
    const uint64_t calls = simt::num_calls() - calls_before;
    if (own.num_tokens() > own.num_samples()) {
      calls_of_prompt = std::max(calls_of_prompt, calls);
    } else if (own.num_tokens() > own.num_entries() && own.block_copies.empty()) {
      ++num_verifying;
      calls_of_verifying = std::max(calls_of_verifying, calls);
    } else if (!own.block_copies.empty()) {
      ++num_copying_decodes;
      calls_of_copying_decode = std::max(calls_of_copying_decode, calls);
    }
    return status;
  }
  Status wait(StepOutput* output) override { return backend_.wait(output); }

  int64_t num_copying_decodes = 0;
  int64_t num_verifying = 0;  // steps of chains of drafts, and of other sequences' next tokens
  uint64_t calls_of_copying_decode = 0, calls_of_verifying = 0, calls_of_prompt = 0;  // of the runtime, most

 private:
  Backend& backend_;
  const bool names_;
  StepPlan plans_[kMaxPlansInFlight + 1];
  int turn_ = 0;
};

constexpr int32_t kMaxModelLen = 128, kMaxNumSeqs = 12;

LoadOptions options_for(const std::string& dir, DType dtype) {
  LoadOptions o;
  o.model_dir = dir;
  o.block_size = 8;
  o.num_blocks_override = 200;
  o.max_num_seqs = kMaxNumSeqs;
  o.max_num_batched_tokens = 96;
  o.max_num_drafts = 6;
  o.max_model_len = kMaxModelLen;
  o.num_threads = 1;
  o.dtype = dtype;
  o.cuda.deterministic = true;
  return o;
}

SchedulerConfig scheduling() {
  SchedulerConfig config;
  config.max_num_seqs = kMaxNumSeqs;
  config.max_num_batched_tokens = 96;
  config.max_model_len = kMaxModelLen;
  return config;
}

// Seven choices of a long prompt, three of another, and rows that begin like the first.
std::vector<std::shared_ptr<const Request>> sharing_requests() {
  std::vector<std::shared_ptr<const Request>> requests = {request_with_choices(75, 6, 20),
                                                          request_with_choices(99, 3, 9)};
  for (const int32_t more : {1, 7, 30}) {
    auto request = std::make_shared<Request>(*requests[0]);
    for (int32_t i = 0; i < more; ++i) request->prompt_tokens.push_back((7 * i + more) % 90);
    request->params.sampling.num_choices = 1;
    request->rng = {5, static_cast<uint64_t>(more)};
    requests.push_back(request);
  }
  return requests;
}

struct Runs {
  ScheduledRun run;
  uint64_t num_shared = 0;  // launches over shared prefixes
};

Runs run(Backend& backend, bool names, Proposer* proposer = nullptr) {
  Naming naming(&backend, names);
  const uint64_t before = simt::num_runs("shared_paged_attention_kernel");
  SchedulerConfig config = scheduling();
  if (proposer != nullptr) config.max_num_drafts = 6;
  Runs runs;
  runs.run = run_scheduled(naming, config, proposer, sharing_requests());
  runs.num_shared = simt::num_runs("shared_paged_attention_kernel") - before;
  return runs;
}

TEST_CASE("choices and rows that begin alike: the bits of row by row, recorded or not, with drafts and without") {
  simt::set_num_multiprocessors(1);
  ModelConfig config = tiny_config();
  config.dtype = DType::kBF16;
  const TempDir dir;
  write_model(dir.path(), config, random_tensors(config, 21));
  const auto backend = loaded(make_cuda_backend(0), config, options_for(dir.path(), DType::kBF16));
  const Runs plain = run(*backend, false), shared = run(*backend, true);
  CHECK(plain.num_shared == 0);
  CHECK(shared.num_shared > 0);
  CHECK(shared.num_shared % config.num_hidden_layers == 0);
  const bool is_same = shared.run.answers == plain.run.answers;
  CHECK(is_same);
  const auto requests = sharing_requests();
  const auto answer = [&](const Request& request, int32_t choice) {
    for (size_t i = 0; i < requests.size(); ++i)
      if (requests[i]->prompt_tokens == request.prompt_tokens)
        return plain.run.answers[i][choice].out.tokens;
    return std::vector<TokenId>();
  };
  ScriptedProposer proposer(answer, config.vocab_size, {.propose_rate = 0.7, .right_rate = 0.6}, 2);
  const Runs drafted = run(*backend, true, &proposer);
  CHECK(drafted.run.num_drafts > 0);
  CHECK(drafted.num_shared > 0);
  const bool is_same_drafted = drafted.run.answers == plain.run.answers;
  CHECK(is_same_drafted);
  simt::set_num_multiprocessors(4);
}

// Prefixes are cut into pieces, and units of many rows go to Hopper's kernel: other roundings than row by row.
TEST_CASE("not deterministic, on Hopper: log probabilities are those of row by row but for rounding") {
  simt::set_num_multiprocessors(2);
  ModelConfig config = tiny_config();
  config.dtype = DType::kBF16;
  config.num_attention_heads = 16, config.head_dim = 64;
  config.max_position_embeddings = 192;
  const TempDir dir;
  write_model(dir.path(), config, random_tensors(config, 21));
  LoadOptions options = options_for(dir.path(), DType::kF16);
  options.cuda.deterministic = false;
  options.max_model_len = 192;
  SchedulerConfig scheduler = scheduling();
  scheduler.max_model_len = 192;
  const auto backend = loaded(make_cuda_backend(0), config, options);
  const auto hopper_runs = [] { return simt::num_runs("wgmma_paged_attention_kernel"); };
  const auto requests = {request_with_choices(150, 12, 3)};
  Naming row_by_row(backend.get(), false), together(backend.get(), true);
  const ScheduledAnswers plain = run_scheduled(row_by_row, scheduler, nullptr, requests).answers;
  const uint64_t of_prompts = hopper_runs();  // and of loading
  const ScheduledAnswers shared = run_scheduled(together, scheduler, nullptr, requests).answers;
  CHECK(hopper_runs() > 2 * of_prompts);
  for (size_t choice = 0; choice < 12; ++choice) {
    CAPTURE(choice);
    const Generated &a = plain[0][choice].out, &b = shared[0][choice].out;
    REQUIRE(a.tokens.size() == b.tokens.size());
    for (size_t i = 0; i < a.tokens.size() && a.tokens[i] == b.tokens[i]; ++i)
      CHECK(std::abs(a.logprobs[i] - b.logprobs[i]) <= 0.03f);
    CHECK(a.tokens[1] == b.tokens[1]);
  }
  simt::set_num_multiprocessors(4);
}

TEST_CASE("steps that verify chains of drafts are replayed") {
  ModelConfig config = tiny_config();
  config.dtype = DType::kBF16;
  const TempDir dir;
  write_model(dir.path(), config, random_tensors(config, 21));
  const auto backend = loaded(make_cuda_backend(0), config, options_for(dir.path(), DType::kBF16));
  const std::vector<std::shared_ptr<const Request>> requests = {request_with_choices(20, 3, 30)};
  const ScheduledRun plain = run_scheduled(*backend, scheduling(), nullptr, requests);
  const auto answer = [&](const Request&, int32_t choice) { return plain.answers[0][choice].out.tokens; };
  ScriptedProposer proposer(answer, config.vocab_size, {.propose_rate = 0.9, .right_rate = 0.6}, 2);
  SchedulerConfig scheduler = scheduling();
  scheduler.max_num_drafts = 6;
  Naming naming(backend.get(), true);
  const ScheduledRun drafted = run_scheduled(naming, scheduler, &proposer, requests);
  const bool is_same = drafted.answers == plain.answers;
  CHECK(is_same);
  CHECK(drafted.num_drafts > 0);
  CHECK(naming.num_verifying > 5);
  CHECK(naming.calls_of_verifying < 12);
}

// A step's copies are queued ahead of the recorded step, which is replayed as any other: a handful of calls, where two
// layers op by op are some thirty.
TEST_CASE("a decode step that copies blocks is replayed") {
  ModelConfig config = tiny_config();
  config.dtype = DType::kBF16;
  const TempDir dir;
  write_model(dir.path(), config, random_tensors(config, 21));
  const auto backend = loaded(make_cuda_backend(0), config, options_for(dir.path(), DType::kBF16));
  Naming naming(backend.get(), true);
  const ScheduledRun run = run_scheduled(naming, scheduling(), nullptr, {request_with_choices(75, 6, 20)});
  CHECK(run.num_copies > 0);
  CHECK(naming.num_copying_decodes > 0);
  CHECK(naming.calls_of_copying_decode < 12);
  CHECK(naming.calls_of_prompt > 24);
}

// Launches over shared prefixes in a run of a fixture with other windows, whose answers have the bits of row by row.
uint64_t num_shared_with(const std::string& model, int32_t window, bool groups_layers,
                         const std::vector<std::shared_ptr<const Request>>& requests) {
  CAPTURE(model);
  CAPTURE(window);
  CAPTURE(groups_layers);
  const std::string dir = source_dir() + "/data/fixtures/models/" + model;
  ModelConfig config = load_model_config(dir).value();
  config.max_position_embeddings = 192;
  for (LayerConfig& layer : config.layers)
    if (layer.window > 0) layer.window = window;
  LoadOptions options = options_for(dir, DType::kBF16);
  options.groups_layers = groups_layers;
  options.max_model_len = 192;
  SchedulerConfig scheduler = scheduling();
  scheduler.max_model_len = 192;
  scheduler.enable_prefix_caching = true;
  const auto backend = loaded(make_cuda_backend(0), config, options);
  Naming row_by_row(backend.get(), false), together(backend.get(), true);
  const auto num_shared = [] { return simt::num_runs("shared_paged_attention_kernel"); };
  const uint64_t before = num_shared();
  const ScheduledAnswers plain = run_scheduled(row_by_row, scheduler, nullptr, requests).answers;
  CHECK(num_shared() == before);
  const bool is_same = run_scheduled(together, scheduler, nullptr, requests).answers == plain;
  CHECK(is_same);
  return num_shared() - before;
}

// The prompt is two tiles and more, of which the rows see nothing, the last tile or all.
TEST_CASE("models with windows: layers share what their windows reach, in layer groups and without, with sinks") {
  simt::set_num_multiprocessors(1);
  const std::vector<std::shared_ptr<const Request>> requests = {request_with_choices(133, 10, 4)};
  const auto all_layers_share = [&](const std::string& model, int32_t num_layers, int32_t window, bool groups_layers) {
    const uint64_t num_shared = num_shared_with(model, window, groups_layers, requests);
    return num_shared > 0 && num_shared % static_cast<uint64_t>(num_layers) == 0;
  };
  CHECK(num_shared_with("qwen2-window", 11, true, requests) == 4);  // steps: the one layer that sees everything
  CHECK(all_layers_share("qwen2-window", 3, 100, true));
  CHECK(all_layers_share("qwen2-window", 3, 128, false));
  CHECK(all_layers_share("gpt_oss", 2, 90, true));
  CHECK(num_shared_with("mistral-window", 11, true, requests) == 0);
  CHECK(all_layers_share("mistral-window", 3, 100, true));
  simt::set_num_multiprocessors(4);
}

TEST_CASE("fp32 has no such launch") {
  simt::set_num_multiprocessors(1);
  ModelConfig config = tiny_config();
  config.dtype = DType::kBF16;
  const TempDir dir;
  write_model(dir.path(), config, random_tensors(config, 21));
  CHECK(run(*loaded(make_cuda_backend(0), config, options_for(dir.path(), DType::kF32)), true).num_shared == 0);
  simt::set_num_multiprocessors(4);
}

}  // namespace
}  // namespace llmb::test
