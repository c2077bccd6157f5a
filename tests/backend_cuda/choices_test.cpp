// n, best_of and beams through an engine on the CUDA backend: the answers of each request alone, and those of
// transformers.
#include <doctest/doctest.h>

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "backend/cuda/cuda_backend.h"
#include "engine/engine.h"
#include "model/config_loader.h"
#include "tests/support/beam_lines.h"
#include "tests/support/golden.h"
#include "tests/support/listed_requests.h"
#include "tests/support/plan_builder.h"
#include "tests/support/scheduled_run.h"
#include "tests/support/source_dir.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

namespace llmb::test {
namespace {

LoadOptions options_for(const std::string& dir, DType dtype, int32_t num_blocks) {
  LoadOptions o;
  o.model_dir = dir;
  o.block_size = 16;
  o.num_blocks_override = num_blocks;
  o.max_num_seqs = 32;
  o.max_num_batched_tokens = 64;
  o.max_model_len = 64;
  o.num_threads = 1;
  o.dtype = dtype;
  o.cuda.deterministic = true;
  return o;
}

using Answers = std::vector<std::vector<std::vector<TokenId>>>;  // [requests][choices]

Answers answer(Backend& backend, const ModelConfig& model, const std::vector<std::shared_ptr<Request>>& requests,
               bool shares) {
  SchedulerConfig scheduler;
  scheduler.max_num_seqs = 32;
  scheduler.max_num_batched_tokens = 64;
  scheduler.max_model_len = 64;
  scheduler.num_blocks = backend.info().kv.num_blocks;
  scheduler.enable_prefix_caching = shares;
  ListSource source(requests);
  ListSink sink;
  SteadyClock clock;
  const std::atomic<int> interrupted{0};
  Engine engine({.scheduler = scheduler, .model = model}, backend, nullptr, clock, source, sink, interrupted, {});
  const Status status = engine.run();
  REQUIRE_MESSAGE(status.ok(), status.message());
  Answers answers;
  for (const auto& [ordinal, item] : sink.items) {
    REQUIRE(!item.completion.error);
    auto& choices = answers.emplace_back();
    for (const Choice& choice : item.completion.choices) choices.push_back(choice.token_ids);
  }
  return answers;
}

std::shared_ptr<Request> request(int32_t length, int32_t n, std::optional<int32_t> best_of, float temperature) {
  auto made = std::make_shared<Request>(*request_with_choices(length, 1, 9));
  made->params.sampling.n = n;
  made->params.sampling.best_of = best_of;
  made->params.sampling.temperature = temperature;
  made->params.sampling.num_logprobs.reset();
  made->params.sampling.count_choices();
  return made;
}

std::shared_ptr<Request> beams(int32_t length, int32_t width) {
  auto made = request(length, width, std::nullopt, 0);
  made->params.sampling.beams = BeamParams{width, 0.7f, EarlyStopping::kFalse};
  made->params.sampling.count_choices();
  made->params.stop.ignore_eos = false;
  made->eos_token_ids = {3, 40};
  return made;
}

TEST_CASE("n, best_of, greedy answers and beams among each other: each as alone, whatever is shared") {
  ModelConfig config = tiny_config();
  config.dtype = DType::kBF16;
  const TempDir dir;
  write_model(dir.path(), config, random_tensors(config, 21));
  const auto wide = loaded(make_cuda_backend(0), config, options_for(dir.path(), DType::kBF16, 200));
  const auto small = loaded(make_cuda_backend(0), config, options_for(dir.path(), DType::kBF16, 28));
  const std::vector<std::shared_ptr<Request>> requests = {
      request(17, 5, std::nullopt, 1), request(33, 2, 6, 1),  beams(31, 4), request(16, 3, std::nullopt, 0),
      request(50, 4, 4, 0.7f),         request(1, 1, 1, 0.9f), beams(5, 3),  beams(20, 25)};
  Answers expected;
  for (const auto& one : requests) expected.push_back(answer(*wide, config, {one}, false)[0]);
  CHECK(expected[0].size() == 5);
  CHECK(expected[0][0] != expected[0][1]);
  CHECK(expected[1].size() == 2);
  CHECK((expected[3][0] == expected[3][1] && expected[3][0] == expected[3][2]));
  CHECK(expected[7].size() == 25);  // looks at 27 tokens after each of its beams
  for (Backend* backend : {wide.get(), small.get()})
    for (const bool shares : {true, false}) {
      const bool is_same = answer(*backend, config, requests, shares) == expected;
      CHECK(is_same);
    }
}

TEST_CASE("choice i is the same for every n above i; one beam is greedy") {
  ModelConfig config = tiny_config();
  config.dtype = DType::kBF16;
  const TempDir dir;
  write_model(dir.path(), config, random_tensors(config, 21));
  const auto backend = loaded(make_cuda_backend(0), config, options_for(dir.path(), DType::kBF16, 200));
  const Answers five = answer(*backend, config, {request(17, 5, std::nullopt, 1)}, true);
  for (const int32_t n : {1, 3}) {
    const Answers fewer = answer(*backend, config, {request(17, n, std::nullopt, 1)}, true);
    CHECK(std::equal(fewer[0].begin(), fewer[0].end(), five[0].begin()));
  }
  auto greedy = request(23, 1, std::nullopt, 0);
  greedy->params.stop.ignore_eos = false;
  greedy->eos_token_ids = {3, 40};
  CHECK(answer(*backend, config, {beams(23, 1)}, true) == answer(*backend, config, {greedy}, true));
}

TEST_CASE("beams are token for token those of transformers, in fp32") {
  const std::string fixtures = source_dir() + "/data/fixtures/";
  std::map<std::string, std::vector<nlohmann::json>> by_model;
  for (const auto& line : read_json_lines(fixtures + "beams-models.jsonl"))
    by_model[line.at("model").get<std::string>()].push_back(line);
  for (const std::string model : {"llama-gqa", "gpt2", "gemma2", "mistral-window", "qwen3_moe"}) {
    CAPTURE(model);
    const std::string dir = fixtures + "models/" + model;
    const ModelConfig config = load_model_config(dir).value();
    LoadOptions o = options_for(dir, DType::kF32, 200);
    o.max_model_len = config.max_position_embeddings;
    check_beam_lines(*loaded(make_cuda_backend(0), config, o), config, by_model.at(model));
  }
}

}  // namespace
}  // namespace llmb::test
