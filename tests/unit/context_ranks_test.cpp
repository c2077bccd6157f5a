// Context parallel: ranks that share out the rows of steps give the bytes of one rank, with parts of layers and stages
// those of as many without it.
#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/rank_part.h"
#include "model/config_loader.h"
#include "tests/support/delayed_calls.h"
#include "tests/support/golden.h"
#include "tests/support/source_dir.h"
#include "tests/support/thread_ranks.h"
#include "tests/unit/golden_answers.h"

namespace llmb::test {
namespace {

struct Grid {
  int32_t tensor_size = 1, num_stages = 1, context_size = 1;
};

std::string answers_of(Backend& backend, const std::string& dir, const ModelConfig& config, DType kv_dtype) {
  LoadOptions options = rank_golden_options(dir, config);
  options.kv_cache_dtype = kv_dtype;
  const Status status = backend.load(config, options);
  REQUIRE_MESSAGE(status.ok(), status.message());
  return bytes_of(answer(backend, read_json_lines(dir + "/golden.jsonl"), "prompt_token_ids", "token_ids", 5));
}

std::string answers_over(const Grid& grid, const std::string& dir, const ModelConfig& config, DType kv_dtype,
                         const PrepareRank& prepare = nullptr) {
  return answers_of(*make_thread_ranks(grid.tensor_size, grid.num_stages, 0, prepare, grid.context_size), dir, config,
                    kv_dtype);
}

}  // namespace

TEST_CASE("every golden model: the bytes of one rank, whatever keys and values are kept in") {
  int num_divided = 0, turn = 0;
  for (const std::string& dir : golden_model_dirs()) {
    const auto config = load_model_config(dir);
    REQUIRE(config.ok());
    CAPTURE(dir);
    REQUIRE(check_ranks(*config, 1, 1, 2).ok());
    const DType kv_dtype = config->has_latent() ? DType::kBF16
                                                : std::vector{DType::kF32, DType::kBF16, DType::kI8}[turn % 3];
    ++turn;
    const std::string alone = answers_of(*make_cpu_backend(), dir, *config, kv_dtype);
    CHECK((answers_over({1, 1, 2 + turn % 2}, dir, *config, kv_dtype) == alone));
    if (turn % 4 == 0 && check_ranks(*config, 1, 2, 2).ok() && config->num_hidden_layers >= 2)
      CHECK((answers_over({1, 2, 2}, dir, *config, kv_dtype) == alone));
    if (turn % 4 == 1 && check_ranks(*config, 2, 1, 2).ok())
      CHECK((answers_over({2, 1, 2}, dir, *config, kv_dtype) == answers_over({2, 1, 1}, dir, *config, kv_dtype)));
    ++num_divided;
  }
  MESSAGE(num_divided << " divided");
  CHECK(num_divided > 60);
}

TEST_CASE("bytes are equal over 30 runs with random delays in every call, and ranks do meet") {
  const std::string dir = source_dir() + "/data/fixtures/models/llama-gqa";
  const auto config = load_model_config(dir);
  REQUIRE(config.ok());
  const std::string alone = answers_of(*make_cpu_backend(), dir, *config, DType::kBF16);
  for (uint64_t run = 0; run < 30; ++run) {
    DelayedCalls* shared_rows = nullptr;  // of rank 0
    const auto backend = make_thread_ranks(1, 1, 0, [&](RankContext& context) {
      delay_calls(&context, run);
      if (context.part.rank == 0) shared_rows = static_cast<DelayedCalls*>(context.context.get());
    }, 2 + static_cast<int32_t>(run % 2));
    CHECK((answers_of(*backend, dir, *config, DType::kBF16) == alone));
    CHECK(shared_rows->num_calls() > 20);
  }
}

}  // namespace llmb::test
