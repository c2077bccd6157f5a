// LoRA adapters over GPUs that compute a model together: each rank adds its part, and the answers are PEFT's.
#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <utility>

#include "backend/cuda/packed_for_device.h"
#include "tests/support/forked_ranks.h"
#include "tests/support/random_adapters.h"
#include "tests/support/short_adapted_requests.h"
#include "tests/support/temp_dir.h"

namespace llmb::test {
namespace {

std::unique_ptr<Backend> load_ranks(int32_t size, const AdaptedModel& model, const LoadOptions& options,
                                    uint64_t delay_seed = 0) {
  ForkedRanksOptions ranks;
  ranks.tensor_size = size;
  ranks.delay_seed = delay_seed;
  return load_forked_ranks(ranks, model.config, options);
}

TEST_CASE("two and four GPUs: PEFT's tokens, and the CPU's log probabilities, adapters mixed with each other and none") {
  for (const auto& [name, size] :
       {std::pair{"llama-gqa", 2}, std::pair{"llama-gqa", 4}, std::pair{"phi3", 2}, std::pair{"gpt_neox", 2},
        std::pair{"gemma4", 2}, std::pair{"gemma4-keys", 2}, std::pair{"qwen3_5-text", 2}, std::pair{"qwen3_next", 2},
        std::pair{"gpt_oss", 2}, std::pair{"lfm2", 2}, std::pair{"granitemoehybrid", 2}}) {
    CAPTURE(name);
    CAPTURE(size);
    const AdaptedModel model = short_adapted_requests(name);
    const LoadOptions options = short_adapted_options(name, model, DType::kF32, kRoomForAdapters);
    const auto expected = generate_one_by_one(*loaded(make_cpu_backend(), model.config, options), model.requests, 32);
    const auto answers = generate_at_random(*load_ranks(size, model, options), model.requests, 30, 6, 1);
    check_adapted_answers(model, answers, expected);
  }
}

TEST_CASE("models with recurrent states and gated attention over two GPUs: the CPU's answers") {
  for (const std::string name : {"qwen3_5-text", "lfm2"}) {
    CAPTURE(name);
    const TempDir dir;
    const AdaptedModel model = random_adapted_model(name, dir.path());
    const LoadOptions options = short_adapted_options(name, model, DType::kF32, kRoomForAdapters);
    const auto expected = generate_one_by_one(*loaded(make_cpu_backend(), model.config, options), model.requests, 32);
    const auto answers = generate_at_random(*load_ranks(2, model, options), model.requests, 30, 6, 1);
    check_adapted_answers(model, answers, expected);
    CHECK((generate_at_random(*load_ranks(2, model, options), model.requests, 11, 3, 2) == answers));
  }
}

TEST_CASE("the bits of a row do not depend on what runs beside it, on timing, nor on how many adapters a GPU holds") {
  const AdaptedModel model = short_adapted_requests("llama-gqa");
  const auto bytes = [&](int64_t pages) {  // of two ranks
    return 2 * pages * adapter_page_bytes(model.config, DType::kBF16);
  };
  const LoadOptions roomy = short_adapted_options("llama-gqa", model, DType::kBF16, kRoomForAdapters);
  const auto expected = generate_one_by_one(*load_ranks(2, model, roomy), model.requests, 32);
  for (const int64_t pages : {0, 3}) {
    CAPTURE(pages);
    const auto ranks = load_ranks(2, model, short_adapted_options("llama-gqa", model, DType::kBF16, bytes(pages)), 5);
    CHECK((expected == generate_at_random(*ranks, model.requests, 23, 5, 2)));
  }
}

}  // namespace
}  // namespace llmb::test
