// The ledger must notice what it is there to notice, and the scripted backend must fail as told.
#include "backend/ledger/ledger_backend.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <limits>
#include <thread>

#include "tests/scheduler/harness.h"
#include "tests/support/scripted_backend.h"

namespace llmb::test {

namespace {

ModelConfig small_model() {
  ModelConfig model;
  model.vocab_size = 100;
  model.eos_token_ids = {2};
  return model;
}

std::unique_ptr<Backend> loaded_ledger(const LedgerOptions& options = {}, int32_t block_size = 4,
                                       int32_t num_blocks = 64) {
  auto backend = make_ledger_backend(options);
  LoadOptions load;
  load.block_size = block_size;
  load.num_blocks_override = num_blocks;
  REQUIRE(backend->load(small_model(), load).ok());
  return backend;
}

// Appends a sequence that computes `tokens` from `first_position` on and samples; blocks of 4.
void append(StepPlan* plan, SeqId seq, int32_t first_position, const std::vector<TokenId>& tokens,
            const std::vector<BlockId>& blocks) {
  plan->block_size = 4;
  const int32_t index = plan->num_entries();
  plan->tokens.insert(plan->tokens.end(), tokens.begin(), tokens.end());
  StepEntry& entry = plan->entries.emplace_back();
  entry.seq = seq;
  entry.base = first_position;
  plan->query_start.push_back(plan->num_tokens());
  plan->block_ids.insert(plan->block_ids.end(), blocks.begin(), blocks.end());
  plan->block_start.push_back(static_cast<int32_t>(plan->block_ids.size()));
  plan->groups.push_back({seq, index, index, index + 1, SampleMode::kSample});
  SampleRow& row = plan->sample_rows.emplace_back();
  row.group = index;
  row.token_row = plan->num_tokens() - 1;
}

StepPlan single(int32_t first_position, const std::vector<TokenId>& tokens, const std::vector<BlockId>& blocks) {
  StepPlan plan;
  plan.clear();
  append(&plan, 0, first_position, tokens, blocks);
  return plan;
}

TokenId run(Backend* backend, const StepPlan& plan) {
  const Status status = backend->submit(plan);
  REQUIRE_MESSAGE(status.ok(), status.message());
  StepOutput output;
  REQUIRE(backend->wait(&output).ok());
  REQUIRE(output.tokens.size() == 1);
  REQUIRE(output.top_start.size() == 2);
  CHECK(output.is_finite[0] == 1);
  return output.tokens[0];
}

}  // namespace

TEST_CASE("the sampled token depends on every token of the prefix and on nothing else") {
  const std::vector<TokenId> prompt = {5, 6, 7, 8, 9, 10};
  auto whole = loaded_ledger(), chunked = loaded_ledger();
  const TokenId token = run(whole.get(), single(0, prompt, {3, 9}));
  StepPlan first = single(0, {5, 6, 7}, {1});
  first.groups.clear();
  first.sample_rows.clear();
  REQUIRE(chunked->submit(first).ok());
  StepOutput output;
  REQUIRE(chunked->wait(&output).ok());
  CHECK(output.tokens.empty());
  CHECK(run(chunked.get(), single(3, {8, 9, 10}, {1, 60})) == token);

  int num_different = 0;
  for (size_t i = 0; i < prompt.size(); ++i) {
    std::vector<TokenId> other = prompt;
    other[i] += 1;
    num_different += run(whole.get(), single(0, other, {3, 9})) != token;
  }
  CHECK(num_different >= 5);  // of 6; two of 100 tokens may be equal by chance
}

TEST_CASE("the reference gives the tokens of a sequence that runs alone") {
  auto request = make_request(6, 10);
  const LedgerCompletion expected = ledger_reference(make_ledger_model(small_model(), {}), *request, 64);
  REQUIRE(expected.tokens.size() == 10);
  CHECK(expected.finish == FinishReason::kLength);
  auto backend = loaded_ledger();
  std::vector<TokenId> pending = request->prompt_tokens;
  int32_t num_cached = 0;
  for (const TokenId token : expected.tokens) {
    CHECK(run(backend.get(), single(num_cached, pending, {0, 1, 2, 3})) == token);
    num_cached += static_cast<int32_t>(pending.size());
    pending = {token};
  }
}

TEST_CASE("the reference stops at an ending token after min_tokens, and at the context's end") {
  LedgerOptions options;
  options.eos_rate = 1.0;
  const LedgerModel model = make_ledger_model(small_model(), options);
  auto request = make_request(6, 10);
  request->eos_token_ids = {2};
  request->params.stop.ignore_eos = false;
  LedgerCompletion completion = ledger_reference(model, *request, 64);
  CHECK(completion.tokens == std::vector<TokenId>{2});
  CHECK(completion.finish == FinishReason::kStop);
  CHECK(completion.stop_token == 2);
  request->params.stop.min_tokens = 3;
  completion = ledger_reference(model, *request, 64);
  CHECK(completion.tokens.size() == 4);
  request->params.stop.ignore_eos = true;
  completion = ledger_reference(model, *request, 9);
  CHECK(completion.tokens.size() == 3);
  CHECK(completion.finish == FinishReason::kLength);
}

TEST_CASE("eos_rate is the share of steps that end") {
  LedgerOptions options;
  options.eos_rate = 0.25;
  LedgerModel model = make_ledger_model(small_model(), options);
  int num_eos = 0;
  for (uint64_t i = 0; i < 10000; ++i) num_eos += model.next_token(LedgerModel::extend(i, 1), {}, {}, {}) == 2;
  CHECK(num_eos > 2300);
  CHECK(num_eos < 2700);
  model.eos_rate = 0.0;
  for (uint64_t i = 0; i < 10000; ++i) CHECK(model.next_token(LedgerModel::extend(i, 1), {}, {}, {}) != 2);
}

TEST_CASE("bias of -infinity forbids tokens, down to the last one; with none left the row is not finite") {
  const float forbidden = -std::numeric_limits<float>::infinity();
  auto backend = loaded_ledger();
  StepPlan plan = single(0, {1, 2, 3}, {0});
  for (TokenId token = 0; token < 100; ++token)
    if (token != 42) plan.bias.push_back({token, forbidden});
  plan.bias.push_back({42, -100.0f});  // unlikely is not forbidden
  plan.sample_rows[0].bias_end = 100;
  CHECK(run(backend.get(), plan) == 42);
  plan.bias[99].bias = forbidden;
  REQUIRE(backend->submit(plan).ok());
  StepOutput output;
  REQUIRE(backend->wait(&output).ok());
  CHECK(output.is_finite[0] == 0);
}

TEST_CASE("with a temperature the random key and the position decide too") {
  const LedgerModel model = make_ledger_model(small_model(), {});
  SampleRow row;
  const auto greedy = model.next_token(1, row, {}, {});
  row.rng = {1, 2};
  CHECK(model.next_token(1, row, {}, {}) == greedy);
  row.temperature = 1.0f;
  int num_different = 0;
  const auto sampled = model.next_token(1, row, {}, {});
  for (uint32_t i = 1; i <= 10; ++i) {
    SampleRow other = row;
    other.position = i;
    num_different += model.next_token(1, other, {}, {}) != sampled;
    other = row;
    other.rng.seed += i;
    num_different += model.next_token(1, other, {}, {}) != sampled;
  }
  CHECK(num_different >= 16);
}

TEST_CASE("what penalties count decides the token: each count, in any order; unseen tokens count as what they are") {
  const LedgerModel model = make_ledger_model(small_model(), {});
  const auto next = [&](const std::vector<TokenPenalty>& penalty) { return model.next_token(1, {}, {}, penalty); };
  CHECK(next({{3, 1}, {4, 2}}) == next({{4, 2}, {3, 1}}));
  CHECK(next({{3, 1}, {4, 2}}) != next({{3, 2}, {4, 1}}));
  CHECK(next({{3, 1}}) != next({{3, 2}}));
  CHECK(next({{3, 0}}) != next({}));

  auto backend = loaded_ledger();
  const TokenId first = run(backend.get(), single(0, {1, 2, 3}, {0}));
  const auto second = [&](bool seen, const std::vector<TokenPenalty>& counts) {
    StepPlan plan = single(0, {1, 2, 3}, {0}), ahead = single(3, {seen ? first : unseen_token(0)}, {0});
    ahead.penalty = counts;
    if (!seen) ahead.penalty.push_back({unseen_token(0), 1});
    ahead.sample_rows[0].penalty_end = static_cast<int32_t>(ahead.penalty.size());
    StepOutput output;
    REQUIRE(backend->submit(plan).ok());
    if (seen) REQUIRE(backend->wait(&output).ok());
    REQUIRE(backend->submit(ahead).ok());
    if (!seen) REQUIRE(backend->wait(&output).ok());
    REQUIRE(backend->wait(&output).ok());
    return output.tokens.at(0);
  };
  const TokenId other = first == 9 ? 8 : 9;
  CHECK(second(false, {{other, 2}}) == second(true, {{other, 2}, {first, 1}}));
  CHECK(second(false, {{first, 4}, {other, 2}}) == second(true, {{first, 5}, {other, 2}}));
  CHECK(second(false, {}) == second(true, {{first, 1}}));
}

TEST_CASE("log-probabilities: none unless asked, else the chosen token first, falling") {
  auto backend = loaded_ledger();
  StepPlan plan = single(0, {1, 2, 3}, {0});
  StepOutput output;
  for (const int wanted : {-1, 0, 3, 200}) {
    plan.sample_rows[0].num_logprobs = wanted;
    REQUIRE(backend->submit(plan).ok());
    REQUIRE(backend->wait(&output).ok());
    CHECK((output.logprobs[0] < 0) == (wanted >= 0));
    const auto expected = static_cast<size_t>(std::clamp(wanted, 0, 100));
    REQUIRE(output.top_tokens.size() == expected);
    REQUIRE(output.top_start.back() == static_cast<int32_t>(expected));
    if (expected > 0) CHECK(output.top_tokens[0] == output.tokens[0]);
    if (expected > 0) CHECK(output.top_logprobs[0] == output.logprobs[0]);
    for (size_t i = 1; i < expected; ++i) CHECK(output.top_logprobs[i] < output.top_logprobs[i - 1]);
  }
}

TEST_CASE("reading slots that were never written, or that another sequence took, is refused") {
  auto backend = loaded_ledger();
  CHECK(backend->submit(single(5, {1}, {0, 1})).code() == StatusCode::kInternal);
  run(backend.get(), single(0, {1, 2, 3, 4, 5, 6}, {0, 1}));
  run(backend.get(), single(6, {7}, {0, 1}));
  CHECK(backend->submit(single(8, {9}, {0, 1, 2})).code() == StatusCode::kInternal);  // position 7 was left out
  CHECK(backend->submit(single(7, {9}, {1, 0})).code() == StatusCode::kInternal);     // blocks in another order
  CHECK(backend->submit(single(7, {9}, {2, 1})).code() == StatusCode::kInternal);     // another block
  run(backend.get(), single(0, {50, 51}, {0}));                                       // takes a block that is in use
  CHECK(backend->submit(single(7, {9}, {0, 1})).code() == StatusCode::kInternal);
}

TEST_CASE("with check_every_slot an overwritten prefix is found, however long it is") {
  for (size_t length = 1; length < 7; ++length) {
    LedgerOptions options;
    options.check_every_slot = true;
    auto backend = loaded_ledger(options);
    run(backend.get(), single(0, {1, 2, 3, 4, 5, 6, 7}, {0, 1}));
    std::vector<TokenId> thief = {99, 2, 3, 4, 5, 6, 7};
    thief.resize(length);
    run(backend.get(), single(0, thief, {0, 1}));
    CHECK(backend->submit(single(7, {8}, {0, 1})).code() == StatusCode::kInternal);
  }
}

TEST_CASE("a block taken by another sequence is found without check_every_slot, whichever it is and however full") {
  for (BlockId stolen = 0; stolen < 3; ++stolen)
    for (size_t length = 1; length <= 12; ++length) {
      auto backend = loaded_ledger();
      run(backend.get(), single(0, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, {0, 1, 2}));
      std::vector<TokenId> thief = {99, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
      thief.resize(length);
      std::vector<BlockId> blocks = {10, 11, 12};
      blocks[(length - 1) / 4] = stolen;
      run(backend.get(), single(0, thief, blocks));
      CHECK(backend->submit(single(12, {8}, {0, 1, 2, 3})).code() == StatusCode::kInternal);
    }
}

TEST_CASE("an invalid plan and another block size are refused") {
  auto backend = loaded_ledger();
  StepPlan plan = single(0, {1, 2, 3}, {0});
  plan.sample_rows[0].token_row = 3;
  CHECK(backend->submit(plan).code() == StatusCode::kInternal);
  plan = single(0, {1, 2, 3}, {64});
  CHECK(backend->submit(plan).code() == StatusCode::kInternal);
  auto other = loaded_ledger({}, 8, 64);
  CHECK(other->submit(single(0, {1, 2, 3}, {0})).code() == StatusCode::kInternal);
}

TEST_CASE("load() chooses the pool by override, bytes or need, and refuses what is not possible") {
  LoadOptions load;
  load.block_size = 16;
  load.max_num_seqs = 4;
  load.max_model_len = 100;
  auto backend = make_ledger_backend({});
  REQUIRE(backend->load(small_model(), load).ok());
  CHECK(backend->info().kv.num_blocks == 28);
  CHECK(backend->info().kind == DeviceKind::kLedger);
  CHECK(backend->info().device == "ledger");
  load.max_num_seqs = 1 << 30;
  REQUIRE(backend->load(small_model(), load).ok());
  CHECK(backend->info().kv.num_blocks == (1 << 16));
  ModelConfig model = small_model();
  model.num_hidden_layers = model.num_key_value_heads = model.head_dim = 1;
  load.kv_cache_bytes = 16 * 8 * 5 + 7;  // a token of this shape takes 8 bytes
  REQUIRE(backend->load(model, load).ok());
  CHECK(backend->info().kv.num_blocks == 5);
  load.kv_cache_bytes = 1;
  CHECK(backend->load(model, load).code() == StatusCode::kResourceExhausted);
  load.num_blocks_override = 3;
  REQUIRE(backend->load(model, load).ok());
  CHECK(backend->info().kv.num_blocks == 3);
  load.num_blocks_override = std::numeric_limits<int32_t>::max();
  CHECK(backend->load(model, load).code() == StatusCode::kResourceExhausted);
  load.block_size = 0;
  CHECK(backend->load(model, load).code() == StatusCode::kInvalidArgument);
  CHECK(backend->load(ModelConfig{}, {}).code() == StatusCode::kInvalidArgument);
}

TEST_CASE("a step costs its virtual time") {
  VirtualClock clock;
  LedgerOptions options;
  options.clock = &clock;
  options.step_ms = 2.5;
  auto backend = loaded_ledger(options);
  run(backend.get(), single(0, {1, 2, 3}, {0}));
  run(backend.get(), single(3, {4}, {0}));
  CHECK(clock.now_ms() == 5.0);
}

TEST_CASE("two plans in flight: unseen tokens are what the plan before sampled, and outputs come in order") {
  auto backend = loaded_ledger(), ahead = loaded_ledger();
  const TokenId first = run(backend.get(), single(0, {1, 2, 3}, {0}));
  const TokenId second = run(backend.get(), single(3, {first}, {0}));
  StepPlan prompt = single(0, {1, 2, 3}, {0}), next = single(3, {unseen_token(0)}, {0}), far = next;
  far.tokens[0] = unseen_token(1);
  StepOutput output;
  CHECK(ahead->info().max_plans_in_flight == 2);
  CHECK(ahead->submit(next).code() == StatusCode::kInternal);
  REQUIRE(ahead->submit(prompt).ok());
  CHECK(ahead->submit(far).code() == StatusCode::kInternal);
  REQUIRE(ahead->submit(next).ok());
  CHECK_THROWS_AS(ahead->submit(next), CheckFailure);
  REQUIRE(ahead->wait(&output).ok());
  CHECK(output.tokens == std::vector<TokenId>{first});
  REQUIRE(ahead->wait(&output).ok());
  CHECK(output.tokens == std::vector<TokenId>{second});
  CHECK_THROWS_AS(ahead->wait(&output), CheckFailure);
}

TEST_CASE("the scripted backend fails at the steps it was told and passes the others on") {
  BackendScript script;
  script.submit_errors[1] = device_error("launch failed");
  script.wait_errors[2] = device_error("lost");
  script.nan_groups = {{3, 0}};
  ScriptedBackend backend(make_ledger_backend({}), script);
  LoadOptions load;
  load.block_size = 4;
  load.num_blocks_override = 8;
  REQUIRE(backend.load(small_model(), load).ok());
  CHECK(backend.info().kv.num_blocks == 8);
  const StepPlan plan = single(0, {1, 2, 3}, {0});
  StepOutput output;
  run(&backend, plan);
  CHECK(backend.submit(plan).code() == StatusCode::kDeviceError);
  REQUIRE(backend.submit(plan).ok());
  CHECK(backend.wait(&output).code() == StatusCode::kDeviceError);
  REQUIRE(backend.submit(plan).ok());
  REQUIRE(backend.wait(&output).ok());
  CHECK(output.is_finite[0] == 0);
  CHECK(output.tokens.empty());
  run(&backend, plan);

  ScriptedBackend unloadable(make_ledger_backend({}), {.load_error = resource_exhausted("no memory")});
  CHECK(unloadable.load(small_model(), load).code() == StatusCode::kResourceExhausted);
}

TEST_CASE("a scripted stall blocks wait() until it is released") {
  ScriptedBackend backend(make_ledger_backend({}), {.stalls = {0}});
  LoadOptions load;
  load.block_size = 4;
  load.num_blocks_override = 8;
  REQUIRE(backend.load(small_model(), load).ok());
  std::thread releaser([&] {
    while (!backend.is_stalled()) std::this_thread::yield();
    backend.release_stalls();
  });
  run(&backend, single(0, {1, 2, 3}, {0}));
  CHECK_FALSE(backend.is_stalled());
  releaser.join();
}

}  // namespace llmb::test
