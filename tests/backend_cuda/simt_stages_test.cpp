// A model whose layers several GPUs divide as stages of a pipeline, each rank a process on the host layer: the bytes of
// one GPU, whatever the model, the timing and the schedule.
#include <cuda_runtime.h>
#include <doctest/doctest.h>
#include <sys/mman.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/layer_groups.h"
#include "tests/backend_cuda/drafted_job.h"
#include "tests/backend_cuda/ranks_job.h"
#include "tests/support/all_schedules.h"
#include "tests/support/forked_ranks.h"
#include "tests/support/golden.h"
#include "tests/support/scheduled_run.h"
#include "tests/support/short_adapted_requests.h"
#include "tests/support/window_requests.h"

namespace llmb::test {
namespace {

ForkedRanksOptions grid(int32_t num_stages, int32_t tensor_size = 1, uint64_t delay_seed = 0) {
  ForkedRanksOptions ranks;
  ranks.tensor_size = tensor_size;
  ranks.num_stages = num_stages;
  ranks.delay_seed = delay_seed;
  return ranks;
}

}  // namespace

TEST_CASE("golden models of every kind over two and three stages: the bytes of one GPU, or refused by name") {
  const std::set<std::string> kinds = {"llama-gqa", "gemma2",      "gemma4",     "gpt_oss",  "qwen2-window",
                                       "bloom",     "deepseek_v3", "qwen3_next", "nemotron_h", "lfm2",
                                       "gpt2"};
  int num_divided = 0;
  for (const std::string& dir : golden_model_dirs()) {
    const std::string name = std::filesystem::path(dir).filename().string();
    if (!runs_all_schedules() && !kinds.contains(name)) continue;
    const ModelConfig config = config_of_dir(dir);
    const LoadOptions options = options_for(dir, config, DType::kBF16);
    const auto requests = requests_for(config, 4);
    std::vector<Generated> expected;
    for (int32_t stages = 2; stages <= std::min(3, config.num_hidden_layers); ++stages) {
      if (stages == 3 && !runs_all_schedules() && num_divided % 2 == 1 && name != "gemma4") continue;
      CAPTURE(name);
      CAPTURE(stages);
      const auto ranks = make_forked_ranks(grid(stages)).backend;
      if (const Status status = ranks->load(config, options); !status.ok()) {
        CHECK_MESSAGE(status.code() == StatusCode::kUnsupported, status.message());
        MESSAGE(name << " over " << stages << " stages: " << status.message());
        continue;
      }
      if (expected.empty())
        expected = generate_at_random(*loaded(make_cuda_backend(0), config, options), requests, 40, 6, 1);
      CHECK((generate_at_random(*ranks, requests, stages == 2 ? 40 : 9, 4, 2) == expected));
      ++num_divided;
    }
  }
  MESSAGE(num_divided << " divided");
  CHECK(num_divided >= 10);
}

// The layers of each stage have their columns of what layers take, and in theirs rows narrow.
TEST_CASE("Gemma 4 E2B's kind over stages: drafts, swaps, two GPUs to a stage") {
  const std::string dir = fixture("gemma4");
  const ModelConfig config = config_of_dir(dir);
  LoadOptions options = options_for(dir, config, DType::kBF16);
  const auto requests = window_requests({25, 30, 17}, 12);
  options.max_num_drafts = 14;
  ScheduledRun expected;
  {
    const auto alone = loaded(make_cuda_backend(0), config, options);
    expected = run_scheduled(*alone, scheduler_for(4, 40, 1), nullptr, requests);
    const auto ranks = loaded(std::make_unique<RanksAtWork>(grid(2, 1, 3)), config, options);
    check_verified_drafts(*ranks, scheduler_for(4, 40, 2), requests, expected, 10, config.vocab_size);
    options.num_blocks_override =
        static_cast<int32_t>(max_live_blocks(alone->info().kv.groups.windows, 8, 9, 8)) + 2;
  }
  options.swap_space_gib = 1;
  const auto ranks = loaded(std::make_unique<RanksAtWork>(grid(3, 1, 5)), config, options);
  SchedulerConfig scheduler = scheduler_for(4, 9, 3);
  scheduler.preemption = PreemptionMode::kSwap;
  CHECK((run_scheduled(*ranks, scheduler, nullptr, requests).answers == expected.answers));
  options.num_blocks_override = 0;
  const auto of_two = run_scheduled(*loaded(std::make_unique<RanksAtWork>(grid(1, 2)), config, options),
                                    scheduler_for(4, 40, 1), nullptr, requests);
  CHECK((run_scheduled(*loaded(std::make_unique<RanksAtWork>(grid(2, 2, 7)), config, options), scheduler_for(4, 40, 2),
                       nullptr, requests).answers == of_two.answers));
}

// A stage of gemma4 has some columns of a table whose rows are rounded as a whole.
TEST_CASE("weights of few bits over stages: the bytes of one GPU, two GPUs to a stage those of two") {
  for (const std::string name : {"gemma4", "llama-gqa"})
    for (const Quantization quantization :
         {Quantization::kInt8, Quantization::kInt4, Quantization::kW4A8, Quantization::kFp8}) {
      const bool is_int8 = quantization == Quantization::kInt8;
      if (name != "gemma4" && !runs_all_schedules() && quantization != Quantization::kInt4) continue;
      const ModelConfig config = config_of_dir(fixture(name));
      LoadOptions options = options_for(fixture(name), config, DType::kBF16);
      options.cpu.quantization = quantization;
      CAPTURE(name);
      CAPTURE(std::string(quantization_name(quantization)));
      const auto requests = requests_for(config, 4);
      const auto answers = [&](const ForkedRanksOptions& ranks, int32_t max_tokens) {
        return generate_at_random(*load_forked_ranks(ranks, config, options), requests, max_tokens, 4, 2);
      };
      const auto alone = generate_at_random(*loaded(make_cuda_backend(0), config, options), requests, 40, 6, 1);
      CHECK((answers(grid(2), 40) == alone));
      if (!is_int8) continue;
      CHECK((answers(grid(3), 9) == alone));
      CHECK((answers(grid(2, 2), 9) == answers(grid(1, 2), 40)));
    }
}

TEST_CASE("two GPUs to a stage: the bytes of two GPUs, whatever the timing of any call") {
  const std::string dir = fixture("llama-gqa");
  const ModelConfig config = config_of_dir(dir);
  for (const DType kv_dtype : {DType::kF32, DType::kI8}) {
    LoadOptions options = options_for(dir, config, DType::kF32);
    options.kv_cache_dtype = kv_dtype;
    const auto requests = requests_for(config, 4);
    const auto expected = generate_at_random(*load_forked_ranks(grid(1, 2), config, options), requests, 40, 6, 1);
    const uint64_t num_runs = runs_all_schedules() ? 20 : 2;
    for (uint64_t seed = 1; seed <= num_runs; ++seed)
      CHECK((generate_at_random(*load_forked_ranks(grid(2, 2, seed), config, options), requests, 9, 4, seed) ==
             expected));
  }
}

TEST_CASE("as many plans in flight as there are stages, of sequences that are swapped and computed again: no bit changes") {
  for (const std::string model : {"llama-gqa", "qwen2-window"}) {
    CAPTURE(model);
    const std::string dir = fixture(model);
    const ModelConfig config = config_of_dir(dir);
    LoadOptions options = options_for(dir, config, DType::kBF16);
    const auto requests = window_requests({25, 30, 17}, 20);
    ScheduledRun expected;
    {
      const auto alone = loaded(make_cuda_backend(0), config, options);
      expected = run_scheduled(*alone, scheduler_for(4, 40, 1), nullptr, requests);
      options.num_blocks_override =
          static_cast<int32_t>(max_live_blocks(alone->info().kv.groups.windows, 8, 9, 8)) + 2;
    }
    options.swap_space_gib = 1;
    for (const int32_t stages : {2, 3}) {
      if (stages > config.num_hidden_layers) continue;
      CAPTURE(stages);
      const auto ranks = loaded(std::make_unique<RanksAtWork>(grid(stages, 1, 5)), config, options);
      CHECK(ranks->info().max_plans_in_flight == stages);
      CHECK(ranks->info().num_host_blocks > ranks->info().kv.num_blocks);
      for (const PreemptionMode mode : {PreemptionMode::kSwap, PreemptionMode::kRecompute}) {
        SchedulerConfig scheduler = scheduler_for(4, 9, stages);
        scheduler.preemption = mode;
        const ScheduledRun run = run_scheduled(*ranks, scheduler, nullptr, requests);
        CHECK((run.answers == expected.answers));
        if (model == "llama-gqa") CHECK(run.num_preemptions > 0);
      }
    }
  }
}

TEST_CASE("recurrent states over stages, also of layers that have none: their slots suffice for all plans in flight") {
  for (const std::string model : {"qwen3_next", "nemotron_h", "lfm2"}) {
    CAPTURE(model);
    const std::string dir = fixture(model);
    const ModelConfig config = config_of_dir(dir);
    const LoadOptions options = options_for(dir, config, DType::kBF16);
    const auto requests = window_requests({9, 17, 30, 12, 5}, 10);
    const ScheduledRun expected = run_scheduled(*loaded(make_cuda_backend(0), config, options),
                                                scheduler_for(6, 40, 1), nullptr, requests);
    const auto ranks = loaded(std::make_unique<RanksAtWork>(grid(2)), config, options);
    CHECK((run_scheduled(*ranks, scheduler_for(6, 20, 2), nullptr, requests).answers == expected.answers));
  }
}

TEST_CASE("choices that share a prompt, and verified drafts in chains and trees: no bit changes") {
  const std::string dir = fixture("llama-gqa");
  const ModelConfig config = config_of_dir(dir);
  LoadOptions options = options_for(dir, config, DType::kBF16);
  options.max_num_drafts = 14;
  std::vector<std::shared_ptr<const Request>> requests;
  for (const int32_t length : {1, 8, 17}) requests.push_back(request_with_choices(length, 2, 16));
  const ScheduledRun plain =
      run_scheduled(*loaded(make_cuda_backend(0), config, options), scheduler_for(6, 40, 1), nullptr, requests);
  const auto ranks = loaded(std::make_unique<RanksAtWork>(grid(2, 1, 9)), config, options);
  check_verified_drafts(*ranks, scheduler_for(6, 40, 2), requests, plain, 10);
}

TEST_CASE("drafts by a model, by lookahead and by the model's first layers change no byte") {
  EngineJobOptions o = deterministic_cuda_job(fixture("llama-gqa"));
  o.scheduler.num_alternating = 2;
  uint64_t seed = 0;
  o.make_backend = [&seed] { return std::make_unique<RanksAtWork>(grid(2, 1, seed++)); };
  for (const DraftBy by : {DraftBy::kModel, DraftBy::kLookahead, DraftBy::kLayers}) {
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

TEST_CASE("adapters, and weights of few bits: the bytes of one GPU") {
  const AdaptedModel model = short_adapted_requests("llama-gqa");
  const LoadOptions options = short_adapted_options("llama-gqa", model, DType::kBF16, kRoomForAdapters);
  const auto expected = generate_one_by_one(*loaded(make_cuda_backend(0), model.config, options), model.requests, 32);
  CHECK((generate_at_random(*load_forked_ranks(grid(2), model.config, options), model.requests, 23, 5, 2) == expected));
  for (const std::string name : {"models/llama-gqa", "models/mixtral", "models/gpt_oss-mxfp4", "quantized/awq",
                                 "quantized/w8a16"}) {
    const std::string dir = source_dir() + "/data/fixtures/" + name;
    const ModelConfig config = config_of_dir(dir);
    LoadOptions few = options_for(dir, config, name == "quantized/awq" ? DType::kF16 : DType::kBF16);
    const bool quantises = name == "models/llama-gqa" || name == "models/mixtral";
    for (const Quantization quantization : {Quantization::kNone, Quantization::kInt8, Quantization::kInt4}) {
      if (quantises == (quantization == Quantization::kNone)) continue;
      CAPTURE(name);
      few.cpu.quantization = quantization;
      const auto requests = requests_for(config);
      const auto alone = generate_at_random(*loaded(make_cuda_backend(0), config, few), requests, 40, 6, 1);
      CHECK((generate_at_random(*load_forked_ranks(grid(2), config, few), requests, 9, 4, 2) == alone));
    }
  }
}

TEST_CASE("a rank's memory is at most 1.1 times its share of the weights, keys and values of one GPU") {
  const auto used_bytes = [] {
    size_t free = 0, total = 0;
    REQUIRE(cudaMemGetInfo(&free, &total) == cudaSuccess);
    return static_cast<double>(total - free);
  };
  constexpr double kWorkspace = 32 << 20;  // of matrix products, on every GPU, whatever it computes
  struct Divided {
    std::string model;
    int32_t num_stages, tensor_size;
  };
  for (const Divided& divided : {Divided{"qwen3", 3, 1}, Divided{"llama-gqa", 2, 1}, Divided{"llama-gqa", 2, 2},
                                Divided{"llama-gqa", 1, 2}, Divided{"llama-mha", 1, 4}}) {
    CAPTURE(divided.model);
    const std::string dir = fixture(divided.model);
    const ModelConfig config = config_of_dir(dir);
    LoadOptions options = options_for(dir, config, DType::kBF16);
    options.num_blocks_override = 100000;  // so that they take most of it, as in a large model
    double of_one = 0;
    {
      const double before = used_bytes();
      const auto alone = loaded(make_cuda_backend(0), config, options);
      of_one = used_bytes() - before - kWorkspace;
    }
    const int32_t num_ranks = divided.num_stages * divided.tensor_size;
    const double before = used_bytes();
    double* const of_ranks = static_cast<double*>(::mmap(nullptr, sizeof(double) * static_cast<size_t>(num_ranks),
                                                         PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    REQUIRE(of_ranks != MAP_FAILED);
    ForkedRanksOptions ranks = grid(divided.num_stages, divided.tensor_size);
    ranks.has_loaded = [&](int rank) { of_ranks[rank] = used_bytes() - before - kWorkspace; };
    const auto together = load_forked_ranks(ranks, config, options);
    of_ranks[0] = used_bytes() - before - kWorkspace;
    for (int32_t rank = 0; rank < num_ranks; ++rank) {
      CAPTURE(rank);
      CHECK(of_ranks[rank] > 0.5 * of_one / num_ranks);
      CHECK(of_ranks[rank] <= 1.1 * of_one / num_ranks);
      MESSAGE(divided.model << " rank " << rank << " of " << num_ranks << ": "
                            << of_ranks[rank] / (of_one / num_ranks) << " of its share");
    }
    ::munmap(of_ranks, sizeof(double) * static_cast<size_t>(num_ranks));
  }
}

TEST_CASE("ranks have their stages' share of the weights and of keys and values") {
  const std::string dir = fixture("llama-gqa");
  const ModelConfig config = config_of_dir(dir);
  const LoadOptions options = options_for(dir, config, DType::kBF16);
  const auto alone = loaded(make_cuda_backend(0), config, options);
  const auto stages = load_forked_ranks(grid(2), config, options);
  const int64_t table = config.tie_word_embeddings ? 2 * int64_t{config.vocab_size} * config.hidden_size : 0;
  CHECK(stages->info().weight_bytes <= alone->info().weight_bytes + table + 4 * config.hidden_size);
  CHECK(stages->info().kv.bytes_per_block() == alone->info().kv.bytes_per_block());
}

}  // namespace llmb::test
