// Rows with forms on the CUDA backend: while a step runs, other threads work out masks for the next one, also where all
// rows have forms; the answers are those of each request alone.
#include <doctest/doctest.h>

#include <atomic>
#include <memory>
#include <vector>

#include "backend/cuda/cuda_backend.h"
#include "engine/engine.h"
#include "tests/support/listed_requests.h"
#include "tests/support/plan_builder.h"
#include "tests/support/scheduled_run.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"
#include "tests/support/toy_constraint.h"

namespace llmb::test {
namespace {

struct Answered {
  std::vector<std::vector<TokenId>> tokens;  // [requests]
  int64_t num_masks_ahead = 0;
};

Answered answer(Backend& backend, const ModelConfig& model, const std::vector<std::shared_ptr<Request>>& requests,
                int num_threads) {
  SchedulerConfig scheduler;
  scheduler.max_num_seqs = 8;
  scheduler.max_num_batched_tokens = 64;
  scheduler.max_model_len = 64;
  scheduler.num_blocks = backend.info().kv.num_blocks;
  ListSource source(requests);
  ListSink sink;
  SteadyClock clock;
  const std::atomic<int> interrupted{0};
  Engine engine({.scheduler = scheduler, .model = model, .num_threads = num_threads}, backend, nullptr, clock, source,
                sink, interrupted, {});
  const Status status = engine.run();
  REQUIRE_MESSAGE(status.ok(), status.message());
  Answered answered{{}, engine.num_masks_ahead()};
  for (const auto& [ordinal, item] : sink.items) {
    REQUIRE(!item.completion.error);
    answered.tokens.push_back(item.completion.choices[0].token_ids);
  }
  return answered;
}

TEST_CASE("masks for the next step are worked out beside a step where all rows have forms; answers are as alone") {
  const ModelConfig config = tiny_config();
  const TempDir dir;
  write_model(dir.path(), config, random_tensors(config, 21));
  LoadOptions o;
  o.model_dir = dir.path();
  o.block_size = 16;
  o.num_blocks_override = 60;
  o.max_num_seqs = 8;
  o.max_num_batched_tokens = 64;
  o.max_model_len = 64;
  o.num_threads = 1;
  o.dtype = DType::kF32;
  o.cuda.deterministic = true;
  const auto backend = loaded(make_cuda_backend(0), config, o);
  std::vector<std::shared_ptr<Request>> requests;
  for (int i = 0; i < 12; ++i) {
    auto request = std::make_shared<Request>(*request_with_choices(5 + 3 * i, 1, 12));
    request->params.sampling.temperature = i % 2 == 0 ? 0 : 1;
    request->constraint = std::make_shared<ToyConstraint>(i / 2, config.vocab_size, 3, std::vector<TokenId>{3});
    requests.push_back(std::move(request));
  }
  std::vector<std::vector<TokenId>> alone;
  for (const auto& request : requests) alone.push_back(answer(*backend, config, {request}, 1).tokens[0]);
  for (const int num_threads : {1, 2, 4}) {
    const Answered answered = answer(*backend, config, requests, num_threads);
    CHECK(answered.tokens == alone);
    CHECK((answered.num_masks_ahead > 0) == (num_threads > 1));
  }
}

}  // namespace
}  // namespace llmb::test
