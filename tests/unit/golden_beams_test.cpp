// Beam search token for token as in Hugging Face transformers (tools/golden/make_golden_beams.py), on the bundled model
// and on tiny ones of each shape.
#include <doctest/doctest.h>

#include <atomic>
#include <cmath>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "model/config_loader.h"
#include "tests/support/golden.h"
#include "tests/support/listed_requests.h"
#include "tests/support/source_dir.h"
#include "tests/unit/golden_answers.h"

namespace llmb::test {
namespace {

const std::string kFixtures = source_dir() + "/data/fixtures/";

EarlyStopping early_stopping_of(const nlohmann::json& value) {
  if (value == "never") return EarlyStopping::kNever;
  return value.get<bool>() ? EarlyStopping::kTrue : EarlyStopping::kFalse;
}

std::shared_ptr<Request> request_of(const nlohmann::json& line, const ModelConfig& config) {
  auto request = std::make_shared<Request>();
  request->prompt_tokens = line.at("prompt_token_ids").get<std::vector<TokenId>>();
  request->eos_token_ids = line.value("eos_token_ids", config.eos_token_ids);
  SamplingParams& sampling = request->params.sampling;
  sampling.temperature = 0;
  sampling.n = line.at("num_beams").get<int32_t>();
  sampling.beams =
      BeamParams{sampling.n, line.at("length_penalty").get<float>(), early_stopping_of(line.at("early_stopping"))};
  sampling.count_choices();
  request->params.stop.max_tokens = line.at("max_tokens").get<int32_t>();
  request->params.stop.min_tokens = line.at("min_tokens").get<int32_t>();
  return request;
}

// All lines at once, so that searches mix in steps, in a pool where they crowd each other.
void check_lines(const std::string& dir, const std::vector<nlohmann::json>& lines) {
  CAPTURE(dir);
  const Result<ModelConfig> config = load_model_config(dir);
  REQUIRE_MESSAGE(config.ok(), config.status().message());
  const auto backend = load_f32(dir, *config, 16);
  SchedulerConfig scheduler;
  scheduler.max_num_seqs = 32;
  scheduler.max_num_batched_tokens = 64;
  scheduler.max_model_len = config->max_position_embeddings;
  scheduler.block_size = 16;
  scheduler.num_blocks = backend->info().kv.num_blocks;
  scheduler.enable_prefix_caching = true;
  std::vector<std::shared_ptr<Request>> requests;
  for (const nlohmann::json& line : lines) requests.push_back(request_of(line, *config));
  ListSource source(requests);
  ListSink sink;
  SteadyClock clock;
  const std::atomic<int> interrupted{0};
  Engine engine({.scheduler = scheduler, .model = *config}, *backend, nullptr, clock, source, sink, interrupted, {});
  const Status status = engine.run();
  REQUIRE_MESSAGE(status.ok(), status.message());
  for (size_t i = 0; i < lines.size(); ++i) {
    CAPTURE(i);
    const Completion& completion = sink.items.at(static_cast<int64_t>(i)).completion;
    REQUIRE(!completion.error);
    const nlohmann::json& expected = lines[i].at("answers");
    REQUIRE(completion.choices.size() == expected.size());
    for (size_t j = 0; j < expected.size(); ++j)
      CHECK(completion.choices[j].token_ids == expected[j].at("token_ids").get<std::vector<TokenId>>());
  }
}

}  // namespace

TEST_CASE("the bundled model: at least 200 searches have transformers' answers, in its order") {
  const auto lines = read_json_lines(kFixtures + "beams-bundled.jsonl");
  CHECK(lines.size() >= 200);
  check_lines(source_dir() + "/data/model", lines);
}

TEST_CASE("models of each shape: searches have transformers' answers") {
  std::map<std::string, std::vector<nlohmann::json>> by_model;
  for (const auto& line : read_json_lines(kFixtures + "beams-models.jsonl"))
    by_model[line.at("model").get<std::string>()].push_back(line);
  CHECK(by_model.size() >= 40);
  for (const auto& [model, lines] : by_model) check_lines(kFixtures + "models/" + model, lines);
}

}  // namespace llmb::test
