// Steps with more biases or penalties than the CUDA backend's tables hold: the same answers, and no new memory.
#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <variant>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "backend/cuda/cuda_backend.h"
#include "scheduler/scheduler.h"
#include "tests/support/plan_builder.h"
#include "tests/support/tiny_model.h"
#ifdef LLMB_SIMT
#include "kernels/simt/settings.h"
#endif

namespace llmb::test {
namespace {

// The size of the backend's tables, here as there; tables hold one row's most in any case.
constexpr int32_t kBiasesPerSeq = 64;
constexpr int32_t kMaxPenalties = 1 << 20;

// Pieces of memory handed out so far; on a device nobody counts.
uint64_t num_allocations() {
#ifdef LLMB_SIMT
  return simt::num_allocations();
#else
  return 0;
#endif
}

LoadOptions dummy_options(const ModelConfig& config, int32_t max_num_seqs) {
  LoadOptions options;
  options.load_format = LoadFormat::kDummy;
  options.max_num_seqs = max_num_seqs;
  options.max_num_batched_tokens = 24;
  options.max_model_len = config.max_position_embeddings;
  options.num_blocks_override = 40;
  options.num_threads = 1;
  options.dtype = DType::kF32;
  options.kv_cache_dtype = DType::kF32;
  options.cuda.deterministic = true;
  return options;
}

StepOutput run(Backend& backend, const StepPlan& plan) {
  StepOutput output;
  const Status status = backend.submit(plan);
  REQUIRE_MESSAGE(status.ok(), status.message());
  REQUIRE(backend.wait(&output).ok());
  return output;
}

// Row i has biases[i] biases and penalties[i] penalties, all of different tokens; the plan holds rows first … end - 1.
StepPlan plan_of_rows(const std::vector<int32_t>& biases, const std::vector<int32_t>& penalties, size_t first,
                      size_t end) {
  PlanBuilder builder(16);
  std::vector<TokenBias> bias;
  std::vector<TokenPenalty> penalty;
  for (size_t i = first; i < end; ++i) {
    std::mt19937 random(static_cast<uint32_t>(i));
    SampleRow row;
    row.rng = {3, i};
    row.temperature = i % 2 == 0 ? 1.0f : 0.0f;
    row.num_logprobs = static_cast<int32_t>(i % 3) - 1;
    row.repetition_penalty = 1.4f, row.frequency_penalty = 0.3f;
    row.bias_begin = static_cast<int32_t>(bias.size());
    for (int32_t b = 0; b < biases[i]; ++b) bias.push_back({b, static_cast<float>(random() % 64) / 4 - 8});
    row.bias_end = static_cast<int32_t>(bias.size());
    row.penalty_begin = static_cast<int32_t>(penalty.size());
    for (int32_t p = 0; p < penalties[i]; ++p) penalty.push_back({p, static_cast<int32_t>(random() % 4)});
    row.penalty_end = static_cast<int32_t>(penalty.size());
    builder.add({5, static_cast<TokenId>(6 + i)}, 0, 2, {static_cast<BlockId>(i)}, row);
  }
  StepPlan plan = builder.plan();
  plan.bias = bias;
  plan.penalty = penalty;
  return plan;
}

void check_row(const StepOutput& output, size_t i, const StepOutput& expected, size_t e) {
  CAPTURE(i);
  CHECK(output.tokens.at(i) == expected.tokens.at(e));
  CHECK(output.logprobs.at(i) == expected.logprobs.at(e));
  CHECK(output.is_finite.at(i) == 1);
  const auto top = [](const StepOutput& o, size_t row) {
    return std::vector<TokenId>(o.top_tokens.begin() + o.top_start.at(row),
                                o.top_tokens.begin() + o.top_start.at(row + 1));
  };
  CHECK(top(output, i) == top(expected, e));
}

// All rows in one step against steps of at most `rows_per_step`.
void check_step(Backend& backend, const std::vector<int32_t>& biases, const std::vector<int32_t>& penalties,
                size_t rows_per_step) {
  const StepOutput together = run(backend, plan_of_rows(biases, penalties, 0, biases.size()));
  for (size_t first = 0; first < biases.size(); first += rows_per_step) {
    const size_t end = std::min(first + rows_per_step, biases.size());
    const StepOutput apart = run(backend, plan_of_rows(biases, penalties, first, end));
    for (size_t i = first; i < end; ++i) check_row(together, i, apart, i - first);
  }
}

TEST_CASE("a step with more biases than its table holds gives what smaller steps give, and takes no memory") {
  const ModelConfig config = tiny_config();
  const int32_t vocab = config.vocab_size;
  const auto backend = loaded(make_cuda_backend(0), config, dummy_options(config, 5));
  const uint64_t allocations = num_allocations();
  const std::vector<int32_t> none(5, 0), few = {3, 0, 2, 96, 1};
  const std::vector<int32_t> steps[] = {
      {64, 64, 64, 64, 64},       // exactly what it holds
      {64, 64, 65, 64, 64},       // one more
      {vocab, 32, vocab, 96, 0},  // again exactly, the last row has none
      {vocab, 0, vocab, 0, vocab}, {vocab, vocab, 0, vocab, vocab}, {vocab, vocab, vocab, vocab, vocab},
      {0, 0, vocab, 0, 0}};
  static_assert(5 * kBiasesPerSeq == 320);
  REQUIRE(vocab == 96);
  for (const std::vector<int32_t>& biases : steps) {
    CAPTURE(biases[0]);
    CAPTURE(biases[2]);
    check_step(*backend, biases, none, 1);
    check_step(*backend, biases, few, 1);
  }
  CHECK(num_allocations() == allocations);
}

// Every second row has a mask of its own.
StepPlan masked_plan(const std::vector<int32_t>& biases, size_t first, size_t end, int32_t vocab) {
  StepPlan plan = plan_of_rows(biases, std::vector<int32_t>(biases.size(), 0), first, end);
  plan.mask_words = (vocab + 31) / 32;
  for (size_t i = first; i < end; ++i) {
    if (i % 2 == 0) continue;
    std::mt19937 random(static_cast<uint32_t>(i));
    plan.sample_rows[i - first].mask = plan.num_masks();
    for (int32_t w = 0; w < plan.mask_words; ++w) plan.masks.push_back(random() & random());
  }
  return plan;
}

TEST_CASE("rows with masks choose what these allow, also where biases make a step be sampled in parts") {
  const ModelConfig config = tiny_config();
  const int32_t vocab = config.vocab_size;
  const auto backend = loaded(make_cuda_backend(0), config, dummy_options(config, 5));
  const uint64_t allocations = num_allocations();
  for (const std::vector<int32_t>& biases :
       {std::vector<int32_t>{0, 0, 0, 0, 0}, std::vector<int32_t>{vocab, vocab, 0, vocab, vocab}}) {
    const StepPlan plan = masked_plan(biases, 0, 5, vocab);
    const StepOutput together = run(*backend, plan);
    for (size_t i = 0; i < 5; ++i) {
      check_row(together, i, run(*backend, masked_plan(biases, i, i + 1, vocab)), 0);
      CHECK(is_allowed(mask_of(plan.sample_rows[i], plan.masks, plan.mask_words), together.tokens[i]));
    }
  }
  CHECK(num_allocations() == allocations);
}

TEST_CASE("a table has room for the most that one row can have") {
  const ModelConfig config = tiny_config();
  LoadOptions options = dummy_options(config, 1);
  const auto cpu = loaded(make_cpu_backend(), config, options), gpu = loaded(make_cuda_backend(0), config, options);
  const uint64_t allocations = num_allocations();
  // The row's last penalty may be of a token that is not known yet, beside all that are.
  const StepPlan before = plan_of_rows({0}, {0}, 0, 1);
  StepPlan plan = plan_of_rows({config.vocab_size}, {config.vocab_size}, 0, 1);
  plan.penalty.push_back({unseen_token(0), 1});
  plan.sample_rows[0].penalty_end = config.vocab_size + 1;
  REQUIRE(config.vocab_size > kBiasesPerSeq);
  StepOutput ignored, output;
  REQUIRE(gpu->submit(before).ok());
  REQUIRE(gpu->submit(plan).ok());
  REQUIRE(gpu->wait(&ignored).ok());
  REQUIRE(gpu->wait(&output).ok());
  CHECK(num_allocations() == allocations);
  CHECK(run(*cpu, before).tokens == ignored.tokens);
  ++plan.penalty[ignored.tokens.at(0)].output_count;
  --plan.sample_rows[0].penalty_end;
  plan.penalty.pop_back();
  CHECK(run(*cpu, plan).tokens == output.tokens);
}

TEST_CASE("a step with more penalties than its table holds gives what smaller steps give, and takes no memory") {
  ModelConfig config = tiny_config();
  config.vocab_size = 300'000;
  config.max_position_embeddings = 300'001;
  config.hidden_size = config.intermediate_size = 8;
  config.num_hidden_layers = config.num_attention_heads = config.num_key_value_heads = 1;
  const auto backend = loaded(make_cuda_backend(0), config, dummy_options(config, 5));
  const uint64_t allocations = num_allocations();
  const std::vector<int32_t> biases = {0, 2, 0, 0, 3};
  constexpr int32_t kQuarter = kMaxPenalties / 4, kMost = 300'000;
  // Exactly what the table holds, and one more; only row 2 may differ.
  const StepOutput full = run(*backend, plan_of_rows(biases, {kQuarter, kQuarter, 0, kQuarter, kQuarter}, 0, 5));
  const StepOutput above = run(*backend, plan_of_rows(biases, {kQuarter, kQuarter, 1, kQuarter, kQuarter}, 0, 5));
  for (const size_t i : {0, 1, 3, 4}) check_row(above, i, full, i);
  check_step(*backend, biases, {kMost, 0, kMost, kMost, kMost}, 3);
  CHECK(num_allocations() == allocations);
}

std::shared_ptr<const Request> request(size_t i, int32_t num_biases, int32_t max_tokens) {
  auto request = std::make_shared<Request>();
  request->prompt_tokens.assign(1 + 3 * i, static_cast<TokenId>(4 + i));
  request->params.stop.max_tokens = max_tokens;
  request->params.stop.min_tokens = i == 1 ? 4 : 0;
  request->eos_token_ids = {2};
  request->rng = {11, i};
  SamplingParams& sampling = request->params.sampling;
  sampling.temperature = i % 2 == 0 ? 1.0f : 0.0f;
  sampling.repetition_penalty = i == 3 ? 1.0f : 1.3f;
  sampling.frequency_penalty = i == 3 ? 0.0f : 0.5f;
  sampling.num_logprobs = 2;
  for (TokenId token = 0; token < num_biases; ++token)
    sampling.logit_bias.emplace_back(token, static_cast<float>((token * 7 + static_cast<TokenId>(i)) % 16) / 4);
  return request;
}

struct Answer {
  std::vector<TokenId> tokens;
  std::vector<float> logprobs;
  bool operator==(const Answer&) const = default;
};

// Runs the requests as the engine does, the next step submitted while one runs.
std::vector<Answer> answers(Backend& backend, const LoadOptions& options,
                            const std::vector<std::shared_ptr<const Request>>& requests) {
  Scheduler scheduler({.max_num_seqs = options.max_num_seqs,
                       .max_num_batched_tokens = options.max_num_batched_tokens,
                       .block_size = options.block_size,
                       .num_blocks = options.num_blocks_override,
                       .max_model_len = options.max_model_len});
  std::vector<Answer> answers(requests.size());
  for (const auto& request : requests) REQUIRE(std::holds_alternative<SeqId>(scheduler.add(request, 0)));
  StepPlan plans[2];
  StepOutput output;
  std::vector<SequenceUpdate> updates;
  int64_t num_submitted = 0, num_finished = 0;
  while (true) {
    while (num_submitted - num_finished < 2 && scheduler.schedule(0, false, &plans[num_submitted % 2])) {
      const Status status = backend.submit(plans[num_submitted++ % 2]);
      REQUIRE_MESSAGE(status.ok(), status.message());
    }
    if (num_submitted == num_finished) return answers;
    REQUIRE(backend.wait(&output).ok());
    scheduler.apply(plans[num_finished++ % 2], output, &updates);
    for (const SequenceUpdate& update : updates) {
      answers[update.seq].tokens.push_back(update.token);
      answers[update.seq].logprobs.push_back(output.logprobs.at(update.given));
    }
  }
}

TEST_CASE("a run with more biases than the table holds, steps ahead and penalties: as one request after the other") {
  const ModelConfig config = tiny_config();
  std::vector<std::shared_ptr<const Request>> requests;
  const int32_t vocab = config.vocab_size;
  const int32_t num_biases[] = {vocab, vocab, vocab, 0, vocab, 33, vocab, vocab};
  for (size_t i = 0; i < std::size(num_biases); ++i)
    requests.push_back(request(i, num_biases[i], 5 + 3 * static_cast<int32_t>(i % 4)));
  std::vector<Answer> expected;
  for (const int32_t max_num_seqs : {1, 5}) {
    const LoadOptions options = dummy_options(config, max_num_seqs);
    const auto backend = loaded(make_cuda_backend(0), config, options);
    REQUIRE(backend->info().max_plans_in_flight == 2);
    const uint64_t allocations = num_allocations();
    const std::vector<Answer> actual = answers(*backend, options, requests);
    CHECK(num_allocations() == allocations);
    if (expected.empty()) expected = actual;
    for (size_t i = 0; i < requests.size(); ++i) {
      CAPTURE(i);
      CHECK(actual[i].tokens == expected[i].tokens);
      CHECK(actual[i].logprobs == expected[i].logprobs);
    }
  }
  CHECK(expected[1].tokens.size() >= 4);
}

}  // namespace
}  // namespace llmb::test
