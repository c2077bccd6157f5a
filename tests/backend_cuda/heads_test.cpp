// Medusa heads on the CUDA backend: the published definition's tokens, and drafts by them change no byte.
#include <doctest/doctest.h>

#include <string>

#include "backend/cuda/cuda_backend.h"
#include "model/config_loader.h"
#include "tests/support/medusa_golden.h"
#include "tests/support/model_drafters.h"

namespace llmb::test {
namespace {

std::string lines() {
  std::string text;
  for (int i = 0; i < 5; ++i)
    text += R"({"prompt_token_ids":[)" + std::to_string(3 + i) + ",9,17,5," + std::to_string(40 + 3 * i) +
            R"(],"max_tokens":10,"return_token_ids":true,"logprobs":1,"seed":)" + std::to_string(i) +
            (i % 2 == 0 ? R"(,"temperature":0})" : R"(,"temperature":0.9,"frequency_penalty":0.3})") + "\n";
  return text;
}

}  // namespace

TEST_CASE("heads give the published definition's best tokens and their probabilities") {
  const auto config = load_model_config(medusa_fixture_model());
  REQUIRE(config.ok());
  check_medusa_golden(*loaded(make_cuda_backend(0), *config, medusa_golden_options()), 1e-3);
}

TEST_CASE("drafts by heads change no byte") {
  EngineJobOptions o;
  o.make_backend = [] { return make_cuda_backend(0); };
  o.load.model_dir = medusa_fixture_model();
  o.load.num_threads = 1;
  o.load.dtype = DType::kBF16;
  o.load.cuda.deterministic = true;
  o.config = *load_model_config(o.load.model_dir);
  o.scheduler.max_model_len = 32;
  o.scheduler.max_num_seqs = 3;
  o.scheduler.max_num_batched_tokens = 16;
  o.scheduler.block_size = o.load.block_size = 8;
  o.scheduler.num_blocks = 12;
  o.scheduler.max_num_drafts = 12;
  const EngineJob plain(lines()), drafted(lines());
  REQUIRE(plain.run(o).status.ok());
  const SteadyClock clock;
  StepCost cost;
  o.scheduler.allows_trees = true;
  const auto speculator =
      make_speculator({.by = DraftBy::kMedusa, .heads = medusa_fixture(), .max_tokens = 6}, &o, cost, clock);
  o.proposer = speculator.get();
  o.step_cost = &cost;
  const EngineJobOutcome outcome = drafted.run(o);
  REQUIRE_MESSAGE(outcome.status.ok(), outcome.status.message());
  CHECK(drafted.output() == plain.output());
  CHECK(speculator->metrics().drafters.back().num_drafted > 20);
}

}  // namespace llmb::test
