// Models that 2 and 4 ranks compute together answer as transformers does, whatever the ranks' timing.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/rank_part.h"
#include "model/config_loader.h"
#include "model/model_weights.h"
#include "tests/support/adapted_models.h"
#include "tests/support/compare.h"
#include "tests/support/delayed_calls.h"
#include "tests/support/golden.h"
#include "tests/support/narrow_room.h"
#include "tests/support/random_adapters.h"
#include "tests/support/source_dir.h"
#include "tests/support/temp_dir.h"
#include "tests/support/thread_ranks.h"
#include "tests/support/twice_the_tokens.h"
#include "tests/unit/golden_answers.h"

namespace llmb::test {
namespace {

const std::string kPlain = "/data/fixtures/models/llama-gqa";

// The first two tokens of answers to a model's longer golden lines, each asked `times`, in steps of max_tokens at most.
std::string bytes_in_steps(Backend& backend, const std::string& dir, const ModelConfig& config, int32_t max_tokens,
                           size_t times = 1, Quantization quantization = Quantization::kNone) {
  LoadOptions options = rank_golden_options(dir, config);
  options.max_num_batched_tokens = max_tokens;
  options.cpu.quantization = quantization;
  const Status status = backend.load(config, options);
  REQUIRE_MESSAGE(status.ok(), status.message());
  std::vector<GenerateRequest> requests;
  for (const auto& line : read_json_lines(dir + "/golden.jsonl")) {
    GenerateRequest request;
    request.prompt = line.at("prompt_token_ids").get<std::vector<TokenId>>();
    request.num_tokens = 2;
    request.sampling.num_logprobs = 5;
    if (request.prompt.size() >= 10 && request.prompt.size() <= 40) requests.push_back(request);
  }
  REQUIRE(requests.size() > 1);
  const std::vector<GenerateRequest> once = requests;
  for (size_t i = 1; i < times; ++i) requests.insert(requests.end(), once.begin(), once.end());
  auto answers = generate_at_random(backend, requests, max_tokens, 32, 1);
  for (size_t i = once.size(); i < answers.size(); ++i) CHECK((answers[i] == answers[i % once.size()]));
  answers.resize(once.size());
  return bytes_of(answers);
}

// Leaves ranks room for so few rows of hidden_size at a time.
PrepareRank with_room_for(int64_t rows, const ModelConfig& config) {
  return [bytes = rows * config.hidden_size * 4](RankContext& context) {
    context.tensor = std::make_unique<NarrowRoom>(std::move(context.tensor), bytes);
  };
}

}  // namespace

TEST_CASE("every golden model: the reference's tokens and log probabilities, or refused by name") {
  int num_divided = 0, num_refused = 0;
  for (const std::string& dir : golden_model_dirs()) {
    const auto config = load_model_config(dir);
    REQUIRE_MESSAGE(config.ok(), config.status().message());
    for (const int32_t size : {2, 4}) {
      CAPTURE(dir);
      CAPTURE(size);
      const auto backend = make_thread_ranks(size);
      const Status status = backend->load(*config, rank_golden_options(dir, *config));
      if (!status.ok()) {
        CHECK(status.code() == StatusCode::kUnsupported);
        MESSAGE(std::filesystem::path(dir).filename().string() << " over " << size << " ranks: " << status.message());
        ++num_refused;
        continue;
      }
      ++num_divided;
      const auto lines = read_json_lines(dir + "/golden.jsonl");
      const auto answers = answer(*backend, lines, "prompt_token_ids", "token_ids", config->vocab_size);
      for (size_t i = 0; i < lines.size(); ++i) {
        CAPTURE(i);
        CHECK(answers[i].tokens == lines[i].at("token_ids").get<std::vector<TokenId>>());
        CHECK(compare(answers[i].logprobs, lines[i].at("logprobs").get<std::vector<double>>(), 0, 5e-5) == "");
      }
    }
  }
  MESSAGE(num_divided << " divided, " << num_refused << " refused");
  CHECK(num_divided > 60);
}

TEST_CASE("two groups of Mamba-2 over four ranks: one rank's tokens and log probabilities, one set of bytes") {
  for (const std::string name : {"nemotron_h", "nemotron_h-experts", "granitemoehybrid"}) {
    CAPTURE(name);
    const TempDir dir;
    write_twice_the_tokens(name, dir);
    const auto config = load_model_config(dir.path());
    REQUIRE_MESSAGE(config.ok(), config.status().message());
    REQUIRE(config->state.num_norms == 2);
    const LoadOptions options = rank_golden_options(dir.path(), *config);
    const std::unique_ptr<Backend> alone = make_cpu_backend(), divided = make_thread_ranks(4);
    for (Backend* const backend : {alone.get(), divided.get()}) {
      const Status status = backend->load(*config, options);
      REQUIRE_MESSAGE(status.ok(), status.message());
    }
    const auto lines = read_json_lines(dir / "golden.jsonl");
    const auto expected = answer(*alone, lines, "prompt_token_ids", "token_ids", config->vocab_size);
    const auto answers = answer(*divided, lines, "prompt_token_ids", "token_ids", config->vocab_size);
    for (size_t i = 0; i < lines.size(); ++i) {
      CAPTURE(i);
      CHECK(answers[i].tokens == expected[i].tokens);
      CHECK(compare(answers[i].logprobs, expected[i].logprobs, 0, 5e-5) == "");
    }
    CHECK((bytes_in_steps(*make_thread_ranks(4), dir.path(), *config, 64) ==
           bytes_in_steps(*make_thread_ranks(4), dir.path(), *config, 7)));
  }
}

// Ranks divide the rows of steps that have enough of them: not of those of 7, or of 15 over four.
TEST_CASE("norms of a part of the rows on each rank: the bytes of norms of all rows on all of them") {
  int num_divided = 0;
  for (const std::string& dir : golden_model_dirs()) {
    const auto config = load_model_config(dir);
    REQUIRE(config.ok());
    if (!check_ranks(*config, 2, 1).ok()) continue;
    CAPTURE(dir);
    const std::string expected = bytes_in_steps(*make_thread_ranks(2), dir, *config, 7);
    CHECK((bytes_in_steps(*make_thread_ranks(2, 1, 0, with_room_for(20, *config)), dir, *config, 64) == expected));
    ++num_divided;
  }
  CHECK(num_divided > 60);
  const std::string dir = source_dir() + "/data/fixtures/models/llama-mha";
  const auto config = load_model_config(dir);
  REQUIRE(config.ok());
  for (const int32_t size : {2, 4}) {
    const std::string expected = bytes_in_steps(*make_thread_ranks(size), dir, *config, 4 * size - 1);
    for (const int64_t room : {100, 130, 1000}) {
      CAPTURE(room);
      const auto backend = make_thread_ranks(size, 1, 0, with_room_for(room, *config));
      CHECK((bytes_in_steps(*backend, dir, *config, 400, 6) == expected));
    }
  }
}

TEST_CASE("bytes are equal over 100 runs with random delays in every call") {
  const std::string dir = source_dir() + kPlain;
  const auto config = load_model_config(dir);
  REQUIRE(config.ok());
  const auto lines = read_json_lines(dir + "/golden.jsonl");
  std::string first;
  for (uint64_t run = 0; run < 100; ++run) {
    const auto backend = make_thread_ranks(2, 1, 0, [&](RankContext& context) {
      delay_calls(&context, run);
    });
    REQUIRE(backend->load(*config, rank_golden_options(dir, *config)).ok());
    const std::string bytes = bytes_of(answer(*backend, lines, "prompt_token_ids", "token_ids", 5));
    if (run == 0) first = bytes;
    CHECK((bytes == first));
  }
}

TEST_CASE("stages of layers give the bytes of one rank, two ranks to a stage those of two") {
  int num_divided = 0;
  for (const std::string& dir : golden_model_dirs()) {
    const auto config = load_model_config(dir);
    REQUIRE(config.ok());
    if (config->num_hidden_layers < 2) continue;
    CAPTURE(dir);
    REQUIRE(check_ranks(*config, 1, 2).ok());
    const auto lines = read_json_lines(dir + "/golden.jsonl");
    const auto bytes = [&](int32_t tensor_size, int32_t num_stages) {
      const auto backend = make_thread_ranks(tensor_size, num_stages);
      const Status status = backend->load(*config, rank_golden_options(dir, *config));
      REQUIRE_MESSAGE(status.ok(), status.message());
      return bytes_of(answer(*backend, lines, "prompt_token_ids", "token_ids", 5));
    };
    const auto whole = make_cpu_backend();
    REQUIRE(whole->load(*config, rank_golden_options(dir, *config)).ok());
    const std::string expected = bytes_of(answer(*whole, lines, "prompt_token_ids", "token_ids", 5));
    for (int32_t stages = 2; stages <= 4 && check_ranks(*config, 1, stages).ok(); ++stages)
      CHECK((bytes(1, stages) == expected));
    if (check_ranks(*config, 2, 2).ok()) CHECK((bytes(2, 2) == bytes(2, 1)));
    ++num_divided;
  }
  MESSAGE(num_divided << " divided");
  CHECK(num_divided > 60);
}

TEST_CASE("adapters: PEFT's tokens and log probabilities over ranks, and over stages the bytes of one rank") {
  for (const std::string& name : adapted_models()) {
    CAPTURE(name);
    const AdaptedModel model = adapted_model(name);
    const auto answers = [&](std::unique_ptr<Backend> backend) {
      return generate_at_random(*load_adapted(name, model, int64_t{1} << 20, std::move(backend)), model.requests, 40, 7,
                                1);
    };
    const std::string alone = bytes_of(answers(make_cpu_backend()));
    if (check_ranks(model.config, 1, 2).ok()) CHECK((bytes_of(answers(make_thread_ranks(1, 2))) == alone));
    for (const int32_t size : {2, 4}) {
      CAPTURE(size);
      if (!check_ranks(model.config, size, 1).ok()) continue;
      const auto divided = answers(make_thread_ranks(size));
      for (size_t i = 0; i < divided.size(); ++i) {
        if (model.lines[i].is_null()) continue;
        CAPTURE(model.library->name(model.requests[i].adapter));
        CHECK(divided[i].tokens == model.lines[i].at("token_ids").get<std::vector<TokenId>>());
        CHECK(largest_difference(divided[i], model.lines[i]) <= 2e-5);
      }
    }
  }
}

TEST_CASE("adapters of models with recurrent states and gated attention: one process's tokens, in any steps") {
  for (const std::string name : {"qwen3_5-text", "qwen3_next", "lfm2", "granitemoehybrid", "granitemoehybrid-dense"}) {
    CAPTURE(name);
    const TempDir dir;
    const AdaptedModel model = random_adapted_model(name, dir.path());
    const auto answers = [&](std::unique_ptr<Backend> backend, int32_t max_tokens) {
      return generate_at_random(*load_adapted(name, model, int64_t{1} << 20, std::move(backend)), model.requests,
                                max_tokens, 7, 1);
    };
    const auto alone = answers(make_cpu_backend(), 40), divided = answers(make_thread_ranks(2), 40);
    for (size_t i = 0; i < alone.size(); ++i) {
      CAPTURE(i);
      CHECK(divided[i].tokens == alone[i].tokens);
      CHECK(compare(divided[i].logprobs, alone[i].logprobs, 0, 3e-5) == "");
    }
    CHECK((bytes_of(divided) == bytes_of(answers(make_thread_ranks(2), 9))));
    CHECK((bytes_of(answers(make_thread_ranks(1, 2), 40)) == bytes_of(alone)));
    auto bare = model.requests;
    for (GenerateRequest& request : bare) request.adapter = -1;
    const auto without = generate_at_random(*load_adapted(name, model, 1 << 20, make_cpu_backend()), bare, 40, 7, 1);
    for (size_t i = 0; i < alone.size(); ++i)
      CHECK((without[i].logprobs == alone[i].logprobs) == (model.requests[i].adapter < 0));
  }
}

TEST_CASE("weights of few bits over ranks: one set of bytes, whatever the steps") {
  for (const std::string name : {"llama-gqa", "qwen3_moe", "deepseek_v3", "qwen3_next"})
    for (const Quantization quantization : {Quantization::kInt8, Quantization::kInt4, Quantization::kW4A8})
      for (const int32_t size : {2, 4}) {
        const std::string dir = source_dir() + "/data/fixtures/models/" + name;
        const auto config = load_model_config(dir);
        REQUIRE(config.ok());
        if (!check_ranks(*config, size, 1).ok()) continue;
        CAPTURE(dir);
        CAPTURE(static_cast<int>(quantization));
        CHECK((bytes_in_steps(*make_thread_ranks(size), dir, *config, 64, 1, quantization) ==
               bytes_in_steps(*make_thread_ranks(size), dir, *config, 7, 1, quantization)));
      }
}

// A stage of gemma4 has some columns of a table whose rows are rounded as a whole.
TEST_CASE("weights of few bits over stages: the bytes of one rank, two ranks to a stage those of two") {
  for (const std::string name : {"llama-gqa", "gemma4", "qwen3_moe"})
    for (const Quantization quantization : {Quantization::kInt8, Quantization::kInt4, Quantization::kW4A8}) {
      const std::string dir = source_dir() + "/data/fixtures/models/" + name;
      const auto config = load_model_config(dir);
      REQUIRE(config.ok());
      CAPTURE(dir);
      CAPTURE(static_cast<int>(quantization));
      const auto bytes = [&](std::unique_ptr<Backend> backend, int32_t max_tokens) {
        return bytes_in_steps(*backend, dir, *config, max_tokens, 1, quantization);
      };
      const std::string alone = bytes(make_cpu_backend(), 64), of_two = bytes(make_thread_ranks(2), 64);
      for (int32_t stages = 2; stages <= 3 && check_ranks(*config, 1, stages).ok(); ++stages)
        CHECK((bytes(make_thread_ranks(1, stages), stages == 2 ? 64 : 7) == alone));
      CHECK((bytes(make_thread_ranks(2, 2), 7) == of_two));
    }
}

TEST_CASE("each rank keeps its share of the weights and no more") {
  for (const char* name : {"smollm2-135m", "qwen2.5-0.5b", "llama-3.1-8b"}) {
    const std::string dir = source_dir() + "/data/shapes/" + name;
    const auto config = load_model_config(dir);
    REQUIRE_MESSAGE(config.ok(), config.status().message());
    const auto bytes_with = [&](int32_t rank, int32_t size) {
      return static_cast<double>(stored_weight_bytes(config_of(*config, share_of(*config, {rank, size, 1}))));
    };
    const double all = bytes_with(0, 1);
    for (const int32_t size : {2, 4})
      for (int32_t rank = check_ranks(*config, size, 1).ok() ? 0 : size; rank < size; ++rank)
         CHECK(bytes_with(rank, size) <= 1.1 * all / size);
  }
}

}  // namespace llmb::test
