// A model whose steps' rows several GPUs share out, each rank a process on the host layer: the bytes of one GPU, with
// parts of layers and stages those of as many without it, whatever the model, the timing and the schedule.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "core/layer_groups.h"
#include "kernels/simt/settings.h"
#include "tests/backend_cuda/drafted_job.h"
#include "tests/backend_cuda/ranks_job.h"
#include "tests/support/all_schedules.h"
#include "tests/support/forked_ranks.h"
#include "tests/support/golden.h"
#include "tests/support/plan_builder.h"
#include "tests/support/scheduled_run.h"
#include "tests/support/short_adapted_requests.h"
#include "tests/support/window_requests.h"

namespace llmb::test {

// Prompts in one step and in chunks of 9 rows, of which a rank of four has one now and then.
TEST_CASE("every golden model is taken by two and four GPUs, and those of each kind give the bytes of one") {
  const std::set<std::string> kinds = {"llama-gqa",   "gemma2", "gpt_oss", "qwen2-window", "bloom", "opt",
                                       "deepseek_v3", "llama4", "mixtral", "phi3",         "lfm2",  "gemma4",
                                       "qwen3_next"};
  int num_loaded = 0, num_divided = 0;
  for (const std::string& dir : golden_model_dirs()) {
    const std::string name = std::filesystem::path(dir).filename().string();
    CAPTURE(name);
    const ModelConfig config = config_of_dir(dir);
    LoadOptions options = options_for(dir, config, DType::kBF16);
    if (!runs_all_schedules() && !kinds.contains(name)) {
      load_forked_ranks(row_ranks(2), config, options);
      ++num_loaded;
      continue;
    }
    const bool may_have_codes = !config.has_latent() && !config.heads_differ();
    if (may_have_codes) options.kv_cache_dtype = std::vector{DType::kBF16, DType::kI8, DType::kF8}[num_divided % 3];
    const auto requests = requests_for(config);
    std::vector<Generated> expected;
    for (const int32_t size : {2, 4}) {
      if (size == 4 && !runs_all_schedules() && num_divided % 4 != 1) continue;
      CAPTURE(size);
      const auto ranks = load_forked_ranks(row_ranks(size), config, options);
      if (expected.empty())
        expected = generate_at_random(*loaded(make_cuda_backend(0), config, options), requests, 40, 6, 1);
      for (const uint64_t seed : {1, 2}) {
        if (!runs_all_schedules() && seed % 2 != static_cast<uint64_t>(num_divided % 2)) continue;
        const uint64_t before = simt::num_nccl_calls();
        CHECK((generate_at_random(*ranks, requests, seed == 1 ? 40 : 9, 4, seed) == expected));
        CHECK(simt::num_nccl_calls() > before + 4);
      }
      ++num_divided;
    }
  }
  MESSAGE(num_divided << " divided, " << num_loaded << " loaded alone");
  CHECK(num_divided >= 12);
}

TEST_CASE("groups that come in another order than the rows that they sample, some of them the same") {
  const std::string dir = fixture("llama-gqa");
  const ModelConfig config = config_of_dir(dir);
  const LoadOptions options = options_for(dir, config, DType::kBF16);
  std::vector<TokenId> prompt;
  for (int32_t i = 0; i < 30; ++i) prompt.push_back(3 + 7 * i % 60);
  SampleRow greedy;
  greedy.num_logprobs = 3;
  PlanBuilder builder(8);
  for (const int32_t length : {3, 12, 7, 5})
    builder.add({prompt.begin() + length, prompt.begin() + 2 * length}, 0, length, {length, length + 20}, greedy);
  StepPlan plan = builder.plan();
  std::swap(plan.sample_rows[0], plan.sample_rows[2]);
  std::swap(plan.groups[0].entry, plan.groups[2].entry);
  std::swap(plan.groups[0].seq, plan.groups[2].seq);
  plan.sample_rows[0].group = 0, plan.sample_rows[2].group = 2;
  plan.groups.push_back({plan.groups[1].seq, plan.groups[1].entry, 4, 5});
  plan.sample_rows.push_back(plan.sample_rows[1]);
  plan.sample_rows[4].group = 4;
  const auto output_of = [&](Backend& backend) {
    StepOutput output;
    check_ok(backend.submit(plan));
    check_ok(backend.wait(&output));
    return output;
  };
  const StepOutput expected = output_of(*loaded(make_cuda_backend(0), config, options));
  CHECK(expected.tokens.size() == 5);
  for (const int32_t size : {2, 4}) {
    const StepOutput output = output_of(*load_forked_ranks(row_ranks(size), config, options));
    CHECK(output.tokens == expected.tokens);
    CHECK(output.logprobs == expected.logprobs);
    CHECK(output.top_logprobs == expected.top_logprobs);
  }
}

TEST_CASE("beside parts of layers and stages: the bytes of as many without it, whatever the timing of any call") {
  const std::string dir = fixture("llama-gqa");
  const ModelConfig config = config_of_dir(dir);
  for (const DType kv_dtype : {DType::kF32, DType::kI8}) {
    LoadOptions options = options_for(dir, config, DType::kF32);
    options.kv_cache_dtype = kv_dtype;
    const auto requests = requests_for(config);
    const auto of_two = generate_at_random(*load_forked_ranks(row_ranks(1, 2), config, options), requests, 40, 6, 1);
    const auto of_one = generate_at_random(*loaded(make_cuda_backend(0), config, options), requests, 40, 6, 1);
    const uint64_t num_runs = runs_all_schedules() ? 20 : 1;
    for (uint64_t seed = 1; seed <= num_runs; ++seed) {
      CHECK((generate_at_random(*load_forked_ranks(row_ranks(2, 2, 1, seed), config, options), requests, 23, 4, seed) ==
             of_two));
      CHECK((generate_at_random(*load_forked_ranks(row_ranks(2, 1, 2, seed), config, options), requests, 23, 4, seed) ==
             of_one));
    }
    CHECK((generate_at_random(*load_forked_ranks(row_ranks(2, 2, 2, 5), config, options), requests, 23, 4, 3) ==
           of_two));
  }
}

TEST_CASE("sequences that are swapped and computed again, in steps that are planned ahead: no bit changes") {
  for (const std::string model : {"llama-gqa", "qwen2-window"}) {
    CAPTURE(model);
    const std::string dir = fixture(model);
    const ModelConfig config = config_of_dir(dir);
    LoadOptions options = options_for(dir, config, DType::kBF16);
    const auto requests = window_requests({25, 30, 17}, 20);
    ScheduledRun expected;
    {
      const auto alone = loaded(make_cuda_backend(0), config, options);
      expected = run_scheduled(*alone, scheduler_for(4, 40), nullptr, requests);
      options.num_blocks_override =
          static_cast<int32_t>(max_live_blocks(alone->info().kv.groups.windows, 8, 17, 8)) + 2;
    }
    options.swap_space_gib = 1;
    const auto ranks = loaded(std::make_unique<RanksAtWork>(row_ranks(2, 1, 1, 5)), config, options);
    CHECK(ranks->info().num_host_blocks > ranks->info().kv.num_blocks);
    for (const PreemptionMode mode : {PreemptionMode::kSwap, PreemptionMode::kRecompute}) {
      SchedulerConfig scheduler = scheduler_for(4, 17);
      scheduler.preemption = mode;
      const ScheduledRun run = run_scheduled(*ranks, scheduler, nullptr, requests);
      CHECK((run.answers == expected.answers));
      if (model == "llama-gqa") CHECK(run.num_preemptions > 0);
    }
  }
}

TEST_CASE("choices, prompts that begin alike, and verified drafts in chains and trees: no bit changes") {
  const std::string dir = fixture("llama-gqa");
  const ModelConfig config = config_of_dir(dir);
  LoadOptions options = options_for(dir, config, DType::kBF16);
  options.max_num_drafts = 14;
  std::vector<std::shared_ptr<const Request>> requests;
  for (const int32_t length : {1, 8, 17, 17}) requests.push_back(request_with_choices(length, 2, 9));
  const ScheduledRun plain =
      run_scheduled(*loaded(make_cuda_backend(0), config, options), scheduler_for(6, 40), nullptr, requests);
  const auto ranks = loaded(std::make_unique<RanksAtWork>(row_ranks(2, 1, 1, 9)), config, options);
  CHECK((run_scheduled(*ranks, scheduler_for(6, 13), nullptr, requests).answers == plain.answers));
  check_verified_drafts(*ranks, scheduler_for(6, 40), requests, plain, 5);
}

TEST_CASE("drafts by a model and by the model's first layers change no byte") {
  EngineJobOptions o = deterministic_cuda_job(fixture("llama-gqa"));
  uint64_t seed = 0;
  o.make_backend = [&seed] { return std::make_unique<RanksAtWork>(row_ranks(2, 1, 1, seed++)); };
  for (const DraftBy by : {DraftBy::kModel, DraftBy::kLayers}) {
    CAPTURE(static_cast<int>(by));
    const SpeculationMetrics metrics = check_same_bytes(o, {.by = by,
                                                            .num_layers = 1,
                                                            .model = "/data/fixtures/models/llama-gqa",
                                                            .max_tokens = 3,
                                                            .max_model_len = 32,
                                                            .num_blocks = 12,
                                                            .max_num_batched_tokens = 16,
                                                            .looks_up = true});
    CHECK(metrics.drafters.back().num_drafted > 0);
  }
}

TEST_CASE("adapters, whose steps are not shared out, and weights of few bits: the bytes of one GPU") {
  const AdaptedModel model = short_adapted_requests("llama-gqa");
  const LoadOptions options = short_adapted_options("llama-gqa", model, DType::kBF16, kRoomForAdapters);
  const auto expected = generate_one_by_one(*loaded(make_cuda_backend(0), model.config, options), model.requests, 32);
  CHECK((generate_at_random(*load_forked_ranks(row_ranks(2), model.config, options), model.requests, 23, 5, 2) ==
         expected));
  const std::string dir = fixture("llama-gqa");
  const ModelConfig config = config_of_dir(dir);
  for (const Quantization quantization : {Quantization::kInt8, Quantization::kInt4}) {
    CAPTURE(quantization_name(quantization));
    LoadOptions few = options_for(dir, config, DType::kBF16);
    few.cpu.quantization = quantization;
    const auto requests = requests_for(config);
    const auto alone = generate_at_random(*loaded(make_cuda_backend(0), config, few), requests, 40, 6, 1);
    CHECK((generate_at_random(*load_forked_ranks(row_ranks(3), config, few), requests, 23, 4, 2) == alone));
  }
}

// Ranks' products may round otherwise than each other's there; all go on with the tokens of one of them.
TEST_CASE("without --deterministic: the reference's tokens, also over latents that are expanded") {
  for (const std::string name : {"llama-gqa", "deepseek_v3"}) {
    CAPTURE(name);
    const ModelConfig config = config_of_dir(fixture(name));
    LoadOptions options = options_for(fixture(name), config, DType::kF32);
    options.cuda.deterministic = false;
    std::vector<GenerateRequest> requests;
    std::vector<std::vector<TokenId>> expected;
    for (const auto& line : read_json_lines(fixture(name) + "/golden.jsonl")) {
      GenerateRequest r;
      r.prompt = line.at("prompt_token_ids").get<std::vector<TokenId>>();
      if (r.prompt.size() > 40) continue;
      expected.push_back(line.at("token_ids").get<std::vector<TokenId>>());
      if (expected.back().size() > 5) expected.back().resize(5);
      r.num_tokens = static_cast<int32_t>(expected.back().size());
      requests.push_back(r);
    }
    REQUIRE(requests.size() >= 3);
    const uint64_t before = simt::num_runs("expand");
    const auto answers = generate_at_random(*load_forked_ranks(row_ranks(2), config, options), requests, 40, 6, 1);
    if (name == "deepseek_v3") CHECK(simt::num_runs("expand") > before);
    for (size_t i = 0; i < answers.size(); ++i) CHECK(answers[i].tokens == expected[i]);
  }
}

TEST_CASE("steps of a row meet for its token, also where they are recorded, and where runs are deterministic not at all") {
  const ModelConfig config = config_of_dir(fixture("llama-gqa"));
  GenerateRequest request;
  request.prompt = {7};
  request.num_tokens = 6;
  for (const bool deterministic : {false, true}) {
    LoadOptions options = options_for(fixture("llama-gqa"), config, DType::kBF16);
    options.cuda.deterministic = deterministic;
    const auto ranks = load_forked_ranks(row_ranks(2), config, options);
    const uint64_t before = simt::num_nccl_calls();
    generate_one_by_one(*ranks, {request}, 40);
    CHECK(simt::num_nccl_calls() - before == (deterministic ? 0 : 6));
  }
}

TEST_CASE("a rank that is killed, and one that stops, end the step of all with a line that names it") {
  const std::string dir = fixture("llama-gqa");
  const ModelConfig config = config_of_dir(dir);
  for (const int signal : {SIGKILL, SIGSTOP}) {
    CAPTURE(signal);
    ForkedRanksOptions options = row_ranks(2, 1, 2);
    options.patience_ms = 3000;
    ForkedRanks ranks = make_forked_ranks(options);
    REQUIRE(ranks.backend->load(config, options_for(dir, config, DType::kBF16)).ok());
    const std::vector<TokenId> prompt(20, 7);
    const StepPlan plan = PlanBuilder(8).add(prompt, 0, 20, {0, 1, 2}, {}).plan();
    check_signal_is_named(ranks, plan, signal);
  }
}

}  // namespace llmb::test
