// LoRA adapters over GPUs that compute a model together: each rank adds its part, and the answers are PEFT's.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "backend/cuda/packed_for_device.h"
#include "tests/support/adapted_models.h"
#include "tests/support/forked_ranks.h"

namespace llmb::test {
namespace {

constexpr int64_t kRoom = int64_t{16} << 20;

LoadOptions options_for(const std::string& name, const AdaptedModel& model, DType dtype, int64_t adapter_bytes) {
  LoadOptions options;
  options.model_dir = fixtures() + "models/" + name;
  options.block_size = 8;
  options.num_blocks_override = 64;
  options.max_num_seqs = 8;
  options.max_num_batched_tokens = 32;
  options.max_model_len = std::min(model.config.max_position_embeddings, 64);
  options.num_threads = 1;
  options.dtype = options.kv_cache_dtype = dtype;
  options.cuda.deterministic = true;
  options.adapters = model.library;
  options.adapter_bytes = adapter_bytes;
  return options;
}

// The beginnings of short answers.
AdaptedModel short_requests(const std::string& name) {
  AdaptedModel model = adapted_model(name);
  std::vector<GenerateRequest> kept;
  std::vector<nlohmann::json> lines;
  for (size_t i = 0; i < model.requests.size(); ++i) {
    GenerateRequest request = model.requests[i];
    if (request.prompt.size() > 7) continue;
    request.num_tokens = std::min(request.num_tokens, 4);
    request.sampling.num_logprobs = 3;
    kept.push_back(request);
    lines.push_back(model.lines[i]);
  }
  model.requests = kept;
  model.lines = lines;
  return model;
}

std::unique_ptr<Backend> load_ranks(int32_t size, const AdaptedModel& model, const LoadOptions& options,
                                    uint64_t delay_seed = 0) {
  ForkedRanksOptions ranks;
  ranks.tensor_size = size;
  ranks.delay_seed = delay_seed;
  return load_forked_ranks(ranks, model.config, options);
}

TEST_CASE("two and four GPUs: PEFT's tokens, and the CPU's log probabilities, adapters mixed with each other and none") {
  for (const auto& [name, size] :
       {std::pair{"llama-gqa", 2}, std::pair{"llama-gqa", 4}, std::pair{"phi3", 2}, std::pair{"gpt_neox", 2}}) {
    CAPTURE(name);
    CAPTURE(size);
    const AdaptedModel model = short_requests(name);
    const LoadOptions options = options_for(name, model, DType::kF32, kRoom);
    const auto expected = generate_one_by_one(*loaded(make_cpu_backend(), model.config, options), model.requests, 32);
    const auto answers = generate_at_random(*load_ranks(size, model, options), model.requests, 30, 6, 1);
    for (size_t i = 0; i < answers.size(); ++i) {
      CAPTURE(i);
      CHECK(answers[i].tokens == expected[i].tokens);
      for (size_t k = 0; k < answers[i].logprobs.size(); ++k)
        CHECK(std::fabs(answers[i].logprobs[k] - expected[i].logprobs[k]) <= 1e-4);
      if (model.lines[i].is_null()) continue;
      auto golden = model.lines[i].at("token_ids").get<std::vector<TokenId>>();
      golden.resize(answers[i].tokens.size());
      CHECK(answers[i].tokens == golden);
    }
  }
}

TEST_CASE("the bits of a row do not depend on what runs beside it, on timing, nor on how many adapters a GPU holds") {
  const AdaptedModel model = short_requests("llama-gqa");
  const auto bytes = [&](int64_t pages) {  // of two ranks
    return 2 * pages * adapter_page_bytes(model.config, DType::kBF16);
  };
  const LoadOptions roomy = options_for("llama-gqa", model, DType::kBF16, kRoom);
  const auto expected = generate_one_by_one(*load_ranks(2, model, roomy), model.requests, 32);
  for (const int64_t pages : {0, 3}) {
    CAPTURE(pages);
    const auto ranks = load_ranks(2, model, options_for("llama-gqa", model, DType::kBF16, bytes(pages)), 5);
    CHECK((expected == generate_at_random(*ranks, model.requests, 23, 5, 2)));
  }
}

}  // namespace
}  // namespace llmb::test
