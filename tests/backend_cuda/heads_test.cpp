// Medusa heads on the CUDA backend: the published definition's tokens, and drafts by them change no byte.
#include <doctest/doctest.h>

#include "backend/cuda/cuda_backend.h"
#include "model/config_loader.h"
#include "tests/backend_cuda/drafted_job.h"
#include "tests/support/medusa_golden.h"

namespace llmb::test {

TEST_CASE("heads give the published definition's best tokens and their probabilities") {
  const auto config = load_model_config(medusa_fixture_model());
  REQUIRE(config.ok());
  check_medusa_golden(*loaded(make_cuda_backend(0), *config, medusa_golden_options()), 1e-3);
}

TEST_CASE("drafts by heads change no byte") {
  const SpeculationMetrics metrics =
      check_same_bytes(deterministic_cuda_job(medusa_fixture_model()),
                       {.by = DraftBy::kMedusa, .heads = medusa_fixture(), .max_tokens = 6});
  CHECK(metrics.drafters.back().num_drafted > 20);
}

}  // namespace llmb::test
