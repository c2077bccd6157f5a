// Lines of a file of beam searches (tools/golden/make_golden_beams.py) through an engine on any backend.
#pragma once

#include <doctest/doctest.h>

#include <atomic>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "engine/engine.h"
#include "tests/support/listed_requests.h"

namespace llmb::test {

inline EarlyStopping early_stopping_of(const nlohmann::json& value) {
  if (value == "never") return EarlyStopping::kNever;
  return value.get<bool>() ? EarlyStopping::kTrue : EarlyStopping::kFalse;
}

inline std::shared_ptr<Request> beam_request_of(const nlohmann::json& line, const ModelConfig& config) {
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

// All lines at once, so that searches mix in steps, in a pool where they crowd each other. The backend was loaded for
// 32 sequences, 64 tokens a step and blocks of 16 tokens.
inline void check_beam_lines(Backend& backend, const ModelConfig& config,
                             const std::vector<nlohmann::json>& lines) {
  SchedulerConfig scheduler;
  scheduler.max_num_seqs = 32;
  scheduler.max_num_batched_tokens = 64;
  scheduler.max_model_len = config.max_position_embeddings;
  scheduler.block_size = 16;
  scheduler.num_blocks = backend.info().kv.num_blocks;
  scheduler.enable_prefix_caching = true;
  std::vector<std::shared_ptr<Request>> requests;
  for (const nlohmann::json& line : lines) requests.push_back(beam_request_of(line, config));
  ListSource source(requests);
  ListSink sink;
  SteadyClock clock;
  const std::atomic<int> interrupted{0};
  Engine engine({.scheduler = scheduler, .model = config}, backend, nullptr, clock, source, sink, interrupted, {});
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

}  // namespace llmb::test
