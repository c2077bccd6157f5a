// Rows with forms on the CUDA backend: while a step runs, other threads work out masks for the next one, also where all
// rows have forms; tokens that a form leaves no choice of need no steps of their own; the answers are those of each
// request alone.
#include <doctest/doctest.h>

#include <atomic>
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "backend/cuda/cuda_backend.h"
#include "engine/engine.h"
#include "engine/token_rules.h"
#include "model/config_loader.h"
#include "tests/support/listed_requests.h"
#include "tests/support/plan_builder.h"
#include "tests/support/scheduled_run.h"
#include "tests/support/source_dir.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"
#include "tests/support/toy_constraint.h"

namespace llmb::test {
namespace {

struct Answered {
  std::vector<std::vector<TokenId>> tokens;  // [requests]
  int64_t num_masks_ahead = 0;
};

// The completions by their ordinals.
std::map<int64_t, FinishedItem> complete(Backend& backend, const ModelConfig& model,
                                         const std::vector<std::shared_ptr<Request>>& requests, int num_threads,
                                         int32_t max_num_drafts, int64_t* num_masks_ahead) {
  SchedulerConfig scheduler;
  scheduler.max_num_seqs = 8;
  scheduler.max_num_batched_tokens = 64;
  scheduler.max_model_len = 64;
  scheduler.max_num_drafts = max_num_drafts;
  scheduler.num_blocks = backend.info().kv.num_blocks;
  ListSource source(requests);
  ListSink sink;
  SteadyClock clock;
  const std::atomic<int> interrupted{0};
  Engine engine({.scheduler = scheduler, .model = model, .num_threads = num_threads}, backend, nullptr, clock, source,
                sink, interrupted, {});
  const Status status = engine.run();
  REQUIRE_MESSAGE(status.ok(), status.message());
  *num_masks_ahead = engine.num_masks_ahead();
  return std::move(sink.items);
}

Answered answer(Backend& backend, const ModelConfig& model, const std::vector<std::shared_ptr<Request>>& requests,
                int num_threads) {
  Answered answered;
  for (const auto& [ordinal, item] : complete(backend, model, requests, num_threads, 0, &answered.num_masks_ahead)) {
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

// Requests whose forms leave no choice of num_forced tokens of num_forced + 1.
std::vector<std::shared_ptr<const Request>> forced_requests(int32_t vocab_size, int64_t num_forced) {
  std::vector<std::shared_ptr<const Request>> requests;
  for (const int32_t length : {3, 15, 16, 17}) {
    auto request = std::make_shared<Request>(*request_with_choices(length, length == 15 ? 2 : 1, 40));
    for (TokenId& token : request->prompt_tokens) token %= vocab_size;
    request->params.sampling.temperature = length % 2 == 0 ? 0 : 1;
    if (length == 17) request->params.sampling.frequency_penalty = 0.5f;
    request->constraint = std::make_shared<ToyConstraint>(length, vocab_size, 2, std::vector<TokenId>(), num_forced);
    requests.push_back(request);
  }
  return requests;
}

struct ForcedModel {
  ModelConfig config;
  LoadOptions load;
};

ForcedModel forced_model(const std::string& dir, ModelConfig config) {
  ForcedModel model{std::move(config), {}};
  model.load.model_dir = dir;
  model.load.block_size = 16;
  model.load.num_blocks_override = 40;
  model.load.max_num_seqs = 6;
  model.load.max_num_batched_tokens = 64;
  model.load.max_model_len = 64;
  model.load.num_threads = 1;
  model.load.dtype = DType::kBF16;
  model.load.cuda.deterministic = true;
  return model;
}

SchedulerConfig forced_config(const ForcedModel& model) {
  SchedulerConfig config;
  config.max_num_seqs = model.load.max_num_seqs;
  config.max_num_batched_tokens = model.load.max_num_batched_tokens;
  config.max_model_len = model.load.max_model_len;
  config.max_num_drafts = model.load.max_num_drafts;
  return config;
}

TEST_CASE("deterministic: tokens without a choice need no steps of their own, and no bit depends on it") {
  const TempDir dir;
  ModelConfig tiny = tiny_config();
  tiny.dtype = DType::kBF16;
  write_model(dir.path(), tiny, random_tensors(tiny, 21));
  const std::string states_dir = source_dir() + "/data/fixtures/models/qwen3_5";
  ForcedModel models[] = {forced_model(dir.path(), tiny),
                          forced_model(states_dir, load_model_config(states_dir).value())};
  for (ForcedModel& model : models)
    for (const int64_t num_forced : {1, 4, 17}) {
      CAPTURE(model.config.model_type);
      CAPTURE(num_forced);
      const auto requests = forced_requests(model.config.vocab_size, num_forced);
      model.load.max_num_drafts = 0;
      const auto plain = loaded(make_cuda_backend(0), model.config, model.load);
      SchedulerConfig alone = forced_config(model);
      alone.max_num_seqs = 1;
      const ScheduledAnswers expected = run_scheduled(*plain, alone, nullptr, requests).answers;
      const ScheduledRun stepwise = run_scheduled(*plain, forced_config(model), nullptr, requests);
      CHECK(stepwise.answers == expected);
      // As a job without speculation loads it: nothing is guessed, so steps are recorded for so many rows as before.
      model.load.max_num_drafts = 64;
      model.load.max_drafts_per_group = 0;
      const auto backend = loaded(make_cuda_backend(0), model.config, model.load);
      CHECK(backend->info().max_drafts_per_group == 0);
      CHECK(backend->info().num_state_slots == plain->info().num_state_slots);
      const ScheduledRun run = run_scheduled(*backend, forced_config(model), nullptr, requests);
      CHECK(run.answers == expected);
      // 40 tokens: those that are chosen, and the last of each row of such tokens goes along with the next choice.
      const int64_t num_choices = 40 / (num_forced + 1) + 1;
      CHECK(stepwise.num_steps >= 40);
      CHECK(run.num_steps <= num_choices + 4);
      SchedulerConfig narrow = forced_config(model);
      narrow.max_num_batched_tokens = 11;
      narrow.max_num_drafts = 5;
      CHECK(run_scheduled(*backend, narrow, nullptr, requests).answers == expected);
    }
}

TEST_CASE("a number that is not finite behind a token without a choice ends the row, and no other") {
  constexpr TokenId kBad = 77;
  ModelConfig config = tiny_config();
  config.dtype = DType::kBF16;
  config.tie_word_embeddings = false;
  TestTensors tensors = random_tensors(config, 21);
  tensors["model.embed_tokens.weight"].values[kBad * config.hidden_size] = NAN;
  const TempDir dir;
  write_model(dir.path(), config, tensors);
  ForcedModel model = forced_model(dir.path(), config);
  model.load.max_num_drafts = 64;
  model.load.max_drafts_per_group = 0;
  const auto backend = loaded(make_cuda_backend(0), config, model.load);
  std::vector<std::shared_ptr<Request>> requests;
  for (const bool is_bad : {false, true, false}) {
    auto request = std::make_shared<Request>(*request_with_choices(5, 1, 12));
    request->constraint = with_token_rules(nullptr, std::vector<TokenId>{is_bad ? kBad : 9}, {}, config.vocab_size);
    requests.push_back(request);
  }
  int64_t ignored = 0;
  const auto items = complete(*backend, config, requests, 1, model.load.max_num_drafts, &ignored);
  REQUIRE(items.size() == 3);
  for (const int64_t good : {0, 2}) {
    REQUIRE(!items.at(good).completion.error);
    CHECK(items.at(good).completion.choices[0].token_ids == std::vector<TokenId>(12, 9));
  }
  REQUIRE(items.at(1).completion.error);
  CHECK(items.at(1).completion.error->code == "numeric_error");
}

}  // namespace
}  // namespace llmb::test
