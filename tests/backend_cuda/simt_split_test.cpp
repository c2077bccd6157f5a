// Steps in two parts, whose attention and products run side by side, have the bytes of steps in one: golden models of every
// kind, whatever the schedule and whichever of the two streams is ahead. On the host layer, which draws that.
#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <vector>

#include "backend/cuda/cuda_backend.h"
#include "kernels/simt/green_context.h"
#include "kernels/simt/settings.h"
#include "model/adapter_library.h"
#include "model/config_loader.h"
#include "tests/backend_cuda/stream_order.h"
#include "tests/support/all_schedules.h"
#include "tests/support/golden.h"
#include "tests/support/plan_builder.h"
#include "tests/support/scheduled_run.h"
#include "tests/support/scripted_proposer.h"
#include "tests/support/source_dir.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"
#include "tests/support/window_requests.h"

namespace llmb::test {
namespace {

uint64_t num_mixers_run() { return simt::num_runs("attention") + simt::num_runs("causal_conv"); }

LoadOptions options_of(const std::string& dir, const ModelConfig& config) {
  LoadOptions o;
  o.model_dir = dir;
  o.block_size = 8;
  o.num_blocks_override = 100;
  o.max_num_seqs = 6;
  o.max_num_batched_tokens = 48;
  o.max_model_len = std::min(config.max_position_embeddings, 64);
  o.num_threads = 1;
  o.dtype = DType::kBF16;
  o.cuda.deterministic = true;
  return o;
}

std::unique_ptr<Backend> load(SplitMode splits, const ModelConfig& config, const LoadOptions& o) {
  return loaded(make_cuda_backend(0, nullptr, splits), config, o);
}

std::vector<GenerateRequest> some_requests(const ModelConfig& config) {
  std::vector<GenerateRequest> requests;
  for (const int32_t length : {1, 9, 14, 3, 20}) {
    GenerateRequest& r = requests.emplace_back();
    for (int32_t i = 0; i < length; ++i) r.prompt.push_back(3 + (5 * i + length) % (config.vocab_size - 3));
    r.num_tokens = 5;
    r.sampling.temperature = length % 2 == 0 ? 0.8f : 0.0f;
    r.sampling.rng = {7, static_cast<uint64_t>(length)};
    r.sampling.num_logprobs = 2;
  }
  return requests;
}

// A model of each kind of layer; with LLMB_ALL_SCHEDULES=1 all that there are.
bool is_chosen(const std::string& dir) {
  const std::string name = dir.substr(dir.rfind('/') + 1);
  for (const char* chosen : {"llama-gqa", "mixtral", "gemma2", "gemma4", "deepseek_v3", "qwen3_next", "lfm2", "nemotron_h-experts",
                             "granitemoehybrid", "llama4", "gpt_oss", "bloom", "gpt2", "olmo2"})
    if (name == chosen) return true;
  return runs_all_schedules();
}

TEST_CASE("golden models of every kind, in random steps and in any order of streams: the bytes of each row alone in one part") {
  int num_models = 0;
  for (const std::string& dir : golden_model_dirs()) {
    if (!is_chosen(dir)) continue;
    CAPTURE(dir);
    const ModelConfig config = load_model_config(dir).value();
    const LoadOptions o = options_of(dir, config);
    auto whole = make_cuda_backend(0);
    const Status status = whole->load(config, o);
    if (status.code() == StatusCode::kUnsupported) continue;
    REQUIRE_MESSAGE(status.ok(), status.message());
    const auto requests = some_requests(config);
    const auto expected = generate_one_by_one(*whole, requests, 48);
    const uint64_t before = num_mixers_run();
    CHECK((generate_at_random(*whole, requests, 30, 6, 1) == expected));
    const uint64_t of_whole = num_mixers_run() - before;
    const auto split = load(SplitMode::kAlways, config, o);
    for (const uint64_t seed : {1, 2}) {
      const StreamOrder order(seed);
      CAPTURE(seed);
      const uint64_t begin = num_mixers_run();
      CHECK((generate_at_random(*split, requests, seed == 1 ? 30 : 9, 6, seed) == expected));
      if (seed == 1) CHECK(num_mixers_run() - begin > of_whole);  // the same steps
    }
    ++num_models;
  }
  CHECK(num_models >= 14);
}

// Choices of one prompt and rows that begin like it, drafts in chains and trees, a pool that preempts.
struct Load {
  ModelConfig config = tiny_config();
  TempDir dir;
  std::vector<std::shared_ptr<const Request>> requests;

  Load() {
    config.dtype = DType::kBF16;
    write_model(dir.path(), config, random_tensors(config, 21));
    requests = {request_with_choices(75, 6, 9), request_with_choices(40, 1, 6), request_with_choices(9, 2, 12)};
    for (const int32_t more : {1, 7}) {
      auto request = std::make_shared<Request>(*requests[0]);
      for (int32_t i = 0; i < more; ++i) request->prompt_tokens.push_back((7 * i + more) % 90);
      request->params.sampling.num_choices = 1;
      request->rng = {5, static_cast<uint64_t>(more)};
      requests.push_back(request);
    }
  }
  LoadOptions options(DType kv_dtype, int32_t num_blocks) const {
    LoadOptions o = options_of(dir.path(), config);
    o.max_model_len = 96;
    o.max_num_seqs = 10;
    o.max_num_batched_tokens = 96;
    o.num_blocks_override = num_blocks;
    o.max_num_drafts = 8;
    o.kv_cache_dtype = kv_dtype;
    return o;
  }
  ScheduledRun run(Backend& backend, int32_t max_num_batched_tokens, Proposer* proposer) const {
    SchedulerConfig scheduling;
    scheduling.max_num_seqs = 10;
    scheduling.max_num_batched_tokens = max_num_batched_tokens;
    scheduling.max_model_len = 96;
    scheduling.max_num_drafts = proposer != nullptr ? 8 : 0;
    scheduling.allows_trees = proposer != nullptr;
    return run_scheduled(backend, scheduling, proposer, requests);
  }
};

TEST_CASE("shared prefixes, drafts, recorded steps, int8 and fp8 keys, chunks and a small pool: the bytes of one part") {
  simt::set_num_multiprocessors(2);  // few enough for prefixes to be read once
  const Load load_of;
  int64_t num_trees = 0;
  uint64_t num_shared = 0;
  for (const DType kv_dtype : {DType::kBF16, DType::kI8, DType::kF8}) {
    CAPTURE(dtype_name(kv_dtype));
    const auto whole = load(SplitMode::kNever, load_of.config, load_of.options(kv_dtype, 100));
    const ScheduledAnswers expected = load_of.run(*whole, 96, nullptr).answers;
    const auto answer = tokens_of(load_of.requests, expected);
    for (const int32_t num_blocks : {100, 14}) {
      const auto split = load(SplitMode::kAlways, load_of.config, load_of.options(kv_dtype, num_blocks));
      for (const int32_t max_num_batched_tokens : {96, 17})
        for (const bool drafts : {false, true}) {
          if (kv_dtype != DType::kBF16 && (num_blocks == 14 || max_num_batched_tokens == 17)) continue;
          CAPTURE(num_blocks);
          CAPTURE(max_num_batched_tokens);
          CAPTURE(drafts);
          const StreamOrder order(static_cast<uint64_t>(num_blocks + max_num_batched_tokens + drafts));
          ScriptedProposer proposer(answer, load_of.config.vocab_size,
                                    {.propose_rate = 0.8, .right_rate = 0.7, .tree_rate = 0.4}, 2);
          const uint64_t before = simt::num_runs("shared_paged_attention_kernel");
          const ScheduledRun run = load_of.run(*split, max_num_batched_tokens, drafts ? &proposer : nullptr);
          const bool is_same = run.answers == expected;
          CHECK(is_same);
          num_trees += run.num_trees;
          num_shared += simt::num_runs("shared_paged_attention_kernel") - before;
        }
    }
  }
  CHECK(num_trees > 0);
  CHECK(num_shared > 0);
  simt::set_num_multiprocessors(4);
}

TEST_CASE("a long prompt is in both parts: the bytes of one") {
  ModelConfig config = tiny_config();
  config.dtype = DType::kBF16;
  const TempDir dir;
  write_model(dir.path(), config, random_tensors(config, 21));
  LoadOptions o = options_of(dir.path(), config);
  o.max_model_len = o.max_num_batched_tokens = 96;
  GenerateRequest request = some_requests(config)[4];
  for (int32_t i = 0; i < 70; ++i) request.prompt.push_back((11 * i + 1) % 90);
  const auto expected = generate_one_by_one(*load(SplitMode::kNever, config, o), {request}, 32);
  const auto split = load(SplitMode::kAlways, config, o);
  const uint64_t before = num_mixers_run();
  CHECK((generate_one_by_one(*split, {request}, 96) == expected));
  CHECK(num_mixers_run() - before >= static_cast<uint64_t>(config.num_hidden_layers * (2 + request.num_tokens - 1)));
}

TEST_CASE("drafts of models with recurrent states: the bytes of one part") {
  for (const char* model : {"qwen3_5", "lfm2"}) {
    CAPTURE(model);
    const std::string dir = source_dir() + "/data/fixtures/models/" + model;
    const ModelConfig config = load_model_config(dir).value();
    LoadOptions o = options_of(dir, config);
    o.max_num_drafts = 8, o.max_drafts_per_group = 4;
    auto requests = window_requests({5, 37, 12}, 9);
    requests.push_back(window_requests({26}, 9, 2)[0]);
    const auto run = [&](Backend& backend, Proposer* proposer) {
      SchedulerConfig scheduling;
      scheduling.max_num_seqs = 6;
      scheduling.max_num_batched_tokens = 40;
      scheduling.max_model_len = 64;
      scheduling.num_state_slots = backend.info().num_state_slots;
      scheduling.num_snapshots = backend.info().num_snapshots;
      scheduling.max_num_drafts = proposer != nullptr ? 8 : 0;
      scheduling.max_drafts_per_group = 4;
      return run_scheduled(backend, scheduling, proposer, requests);
    };
    const ScheduledAnswers expected = run(*load(SplitMode::kNever, config, o), nullptr).answers;
    const auto answer = tokens_of(requests, expected);
    const auto split = load(SplitMode::kAlways, config, o);
    for (const uint64_t seed : {1, 2}) {
      const StreamOrder order(seed);
      ScriptedProposer proposer(answer, 60, {.propose_rate = 0.8, .right_rate = 0.7}, seed);
      CHECK((run(*split, &proposer).answers == expected));
    }
  }
}

TEST_CASE("adapters: the bytes of one part") {
  const std::string fixtures = source_dir() + "/data/fixtures/", dir = fixtures + "models/llama-gqa";
  const ModelConfig config = load_model_config(dir).value();
  const auto library =
      std::make_shared<AdapterLibrary>(adapters_below(fixtures + "adapters/llama-gqa").value(), config, dir);
  auto requests = some_requests(config);
  for (int32_t id = 0; id < library->size(); ++id) {
    REQUIRE(library->prepare(id).ok());
    for (GenerateRequest with : some_requests(config)) {
      with.adapter = id;
      requests.push_back(with);
    }
  }
  LoadOptions o = options_of(dir, config);
  o.adapters = library;
  o.adapter_bytes = int64_t{16} << 20;
  const auto expected = generate_one_by_one(*load(SplitMode::kNever, config, o), requests, 48);
  const auto split = load(SplitMode::kAlways, config, o);
  for (const uint64_t seed : {1, 2, 3}) {
    const StreamOrder order(seed);
    CHECK((generate_at_random(*split, requests, 30, 6, seed) == expected));
  }
}

TEST_CASE("masks of both parts' rows forbid what they forbid in one") {
  ModelConfig config = tiny_config();
  const TempDir dir;
  write_model(dir.path(), config, random_tensors(config, 21));
  const LoadOptions o = options_of(dir.path(), config);
  StepPlan plan = PlanBuilder(8).add({3, 4, 5}, 0, 3, {0}, SampleRow()).add({9, 8}, 0, 2, {1}, SampleRow()).plan();
  plan.mask_words = (config.vocab_size + 31) / 32;
  for (int32_t row = 0; row < 2; ++row) {
    plan.sample_rows[row].mask = row;
    for (int32_t word = 0; word < plan.mask_words; ++word) plan.masks.push_back(row == 0 ? 0x11111111u : 0x42424242u);
  }
  StepOutput outputs[2];
  for (const bool splits : {false, true}) {
    const auto backend = load(splits ? SplitMode::kAlways : SplitMode::kNever, config, o);
    REQUIRE(backend->submit(plan).ok());
    REQUIRE(backend->wait(&outputs[splits]).ok());
  }
  CHECK(outputs[1].tokens == outputs[0].tokens);
  CHECK(outputs[0].tokens[0] % 4 == 0);
}

TEST_CASE("a layer that drafts behind the last one keeps all rows of it: steps stay whole") {
  const std::string dir = source_dir() + "/data/fixtures/mtp/glm4_moe";
  ModelConfig config = load_model_config(dir).value();
  config.mtp.is_used = true;
  const LoadOptions o = options_of(dir, config);
  const auto requests = some_requests(config);
  const auto expected = generate_one_by_one(*load(SplitMode::kNever, config, o), requests, 48);
  CHECK((generate_at_random(*load(SplitMode::kAlways, config, o), requests, 30, 6, 1) == expected));
}

TEST_CASE("a driver that divides no device: plain streams, and the same bytes") {
  const std::string dir = source_dir() + "/data/fixtures/models/llama-gqa";
  const ModelConfig config = load_model_config(dir).value();
  const LoadOptions o = options_of(dir, config);
  const auto requests = some_requests(config);
  const auto expected = generate_one_by_one(*load(SplitMode::kNever, config, o), requests, 48);
  simt::fail_green_context_call(0);
  const auto split = load(SplitMode::kAlways, config, o);
  simt::fail_green_context_call(-1);
  CHECK(simt::num_green_contexts() == 0);
  CHECK((generate_at_random(*split, requests, 30, 6, 1) == expected));
}

}  // namespace
}  // namespace llmb::test
