// The sampler's part of a plan, and the ends of sequences.
#include <doctest/doctest.h>

#include <algorithm>
#include <limits>

#include "tests/scheduler/harness.h"

namespace llmb::test {

namespace {

constexpr float kForbidden = -std::numeric_limits<float>::infinity();
using Bias = std::vector<std::pair<TokenId, float>>;

Bias bias_of(const StepPlan& plan, size_t row = 0) {
  Bias bias;
  for (int32_t i = plan.sample_rows[row].bias_begin; i < plan.sample_rows[row].bias_end; ++i)
    bias.emplace_back(plan.bias[i].token, plan.bias[i].bias);
  return bias;
}

// (token, output count), in order of the token.
std::vector<std::pair<TokenId, int32_t>> penalty_of(const StepPlan& plan, size_t row = 0) {
  std::vector<std::pair<TokenId, int32_t>> penalty;
  for (int32_t i = plan.sample_rows[row].penalty_begin; i < plan.sample_rows[row].penalty_end; ++i)
    penalty.emplace_back(plan.penalty[i].token, plan.penalty[i].output_count);
  std::sort(penalty.begin(), penalty.end());
  return penalty;
}

using Counts = std::vector<std::pair<TokenId, int32_t>>;

}  // namespace

TEST_CASE("a sample row carries the request's parameters, its random key and the position of the next token") {
  auto request = make_request(3, 5);
  request->rng = {11, 22};
  SamplingParams& sampling = request->params.sampling;
  sampling.temperature = 0.5f;
  sampling.top_p = 0.9f;
  sampling.top_k = 40;
  sampling.min_p = 0.1f;
  sampling.num_logprobs = 2;
  Harness h(small_config());
  h.add(request);
  for (int32_t position = 3; position < 8; ++position) {
    REQUIRE(h.schedule());
    REQUIRE(h.plan.num_samples() == 1);
    const SampleRow& row = h.plan.sample_rows[0];
    CHECK(h.plan.max_context_len(0) == position);
    CHECK(row.rng.seed == 11);
    CHECK(row.rng.request == 22);
    CHECK(row.temperature == 0.5f);
    CHECK(row.top_p == 0.9f);
    CHECK(row.top_k == 40);
    CHECK(row.min_p == 0.1f);
    CHECK(row.num_logprobs == 2);
    CHECK(row.repetition_penalty == 1.0f);
    CHECK(bias_of(h.plan).empty());
    CHECK(penalty_of(h.plan).empty());
    h.apply();
  }
}

TEST_CASE("without a wish for log-probabilities a row says -1, with a wish for none but its own 0") {
  auto own = make_request(1, 1);
  own->params.sampling.num_logprobs = 0;
  Harness h(small_config());
  h.add(1, 1);
  h.add(own);
  REQUIRE(h.schedule());
  CHECK(h.plan.sample_rows[0].num_logprobs == -1);
  CHECK(h.plan.sample_rows[1].num_logprobs == 0);
}

TEST_CASE("logit_bias of each row is its own slice") {
  auto first = make_request(2, 3), second = make_request(2, 3);
  first->params.sampling.logit_bias = {{4, -1.5f}, {9, 2.0f}};
  second->params.sampling.logit_bias = {{5, 100.0f}};
  Harness h(small_config());
  h.add(first);
  h.add(2, 3);
  h.add(second);
  REQUIRE(h.schedule());
  CHECK(bias_of(h.plan, 0) == Bias{{4, -1.5f}, {9, 2.0f}});
  CHECK(bias_of(h.plan, 1).empty());
  CHECK(bias_of(h.plan, 2) == Bias{{5, 100.0f}});
}

TEST_CASE("min_tokens forbids every ending token until it is reached, each token once, and keeps other bias") {
  auto request = make_request(2, 5);
  request->eos_token_ids = {2, 3};
  request->params.stop.ignore_eos = false;
  request->params.stop.stop_token_ids = {40, 2};
  request->params.stop.min_tokens = 2;
  request->params.sampling.logit_bias = {{2, 50.0f}, {30, 1.0f}};
  Harness h(small_config());
  h.add(request);
  for (int step = 0; step < 2; ++step) {
    REQUIRE(h.schedule());
    CHECK(bias_of(h.plan) == Bias{{2, kForbidden}, {3, kForbidden}, {30, 1.0f}, {40, kForbidden}});
    h.apply();
  }
  REQUIRE(h.schedule());
  CHECK(bias_of(h.plan) == Bias{{2, 50.0f}, {30, 1.0f}});
  h.apply(3);
  CHECK(h.updates[0].finish == FinishReason::kStop);
}

TEST_CASE("a ban by min_tokens wins over any bias of the same token, in a long list too") {
  auto request = make_request(2, 5);
  request->params.stop.min_tokens = 1;
  for (TokenId token = 0; token < 100; ++token) {
    request->params.sampling.logit_bias.emplace_back(token, 100.0f);
    if (token % 2 == 0) request->params.stop.stop_token_ids.push_back(token);
  }
  Harness h(small_config());
  h.add(request);
  REQUIRE(h.schedule());
  const Bias bias = bias_of(h.plan);
  REQUIRE(bias.size() == 100);
  for (TokenId token = 0; token < 100; ++token) CHECK(bias[token].second == (token % 2 == 0 ? kForbidden : 100.0f));
}

TEST_CASE("min_tokens with ignore_eos forbids stop_token_ids only") {
  auto request = make_request(2, 5);
  request->eos_token_ids = {2};
  request->params.stop.stop_token_ids = {40};
  request->params.stop.min_tokens = 1;
  Harness h(small_config());
  h.add(request);
  REQUIRE(h.schedule());
  CHECK(bias_of(h.plan) == Bias{{40, kForbidden}});
}

TEST_CASE("an ending token before min_tokens does not end a sequence") {
  auto request = make_request(2, 5);
  request->params.stop.stop_token_ids = {40};
  request->params.stop.min_tokens = 1;
  Harness h(small_config());
  h.add(request);
  REQUIRE(h.schedule());
  h.apply(40);
  CHECK_FALSE(h.updates[0].finish.has_value());
  REQUIRE(h.schedule());
  h.apply(40);
  CHECK(h.updates[0].finish == FinishReason::kStop);
}

TEST_CASE("penalty slices: the output's counts; the prompt's tokens only for the repetition penalty") {
  auto repetition = make_request(3, 5), frequency = make_request(3, 5);
  repetition->params.sampling.repetition_penalty = 1.2f;
  frequency->params.sampling.frequency_penalty = 0.5f;
  frequency->params.sampling.presence_penalty = -0.5f;
  Harness h(small_config());
  h.add(repetition);
  h.add(3, 5);
  h.add(frequency);
  REQUIRE(h.schedule());
  CHECK(h.plan.sample_rows[0].repetition_penalty == 1.2f);
  CHECK(h.plan.sample_rows[2].frequency_penalty == 0.5f);
  CHECK(h.plan.sample_rows[2].presence_penalty == -0.5f);
  CHECK(penalty_of(h.plan, 0) == Counts{{1, 0}, {2, 0}, {3, 0}});
  CHECK(penalty_of(h.plan, 2).empty());
  h.apply(2);
  REQUIRE(h.schedule());
  h.apply(9);
  REQUIRE(h.schedule());
  h.apply(2);
  REQUIRE(h.schedule());
  CHECK(penalty_of(h.plan, 0) == Counts{{1, 0}, {2, 2}, {3, 0}, {9, 1}});
  CHECK(penalty_of(h.plan, 1).empty());
  CHECK(penalty_of(h.plan, 2) == Counts{{2, 2}, {9, 1}});
}

TEST_CASE("penalty counts survive preemption unchanged") {
  SchedulerConfig config = small_config();
  config.block_size = 1;
  config.num_blocks = 6;
  Harness h(config);
  auto request = make_request(1, 6);
  request->params.sampling.frequency_penalty = 1.0f;
  h.add(1, 6);
  h.add(request);
  std::vector<size_t> num_counted;  // output tokens counted, at each sample of sequence 1
  bool preempted = false;
  while (h.schedule()) {
    for (const SampleRow& row : h.plan.sample_rows) {
      if (h.plan.groups[row.group].seq != 1) continue;
      size_t sum = 0;
      for (int32_t i = row.penalty_begin; i < row.penalty_end; ++i) sum += h.plan.penalty[i].output_count;
      num_counted.push_back(sum);
      preempted |= h.scheduler.num_preemptions(1) > 0;
    }
    h.apply();
  }
  CHECK(preempted);
  CHECK(num_counted == std::vector<size_t>{0, 1, 2, 3, 4, 5});
}

TEST_CASE("end-of-sequence ends unless ignored; stop_token_ids end always; both are named") {
  for (const bool ignore_eos : {false, true}) {
    auto request = make_request(2, 3);
    request->eos_token_ids = {2, 3};
    request->params.stop.ignore_eos = ignore_eos;
    Harness h(small_config());
    h.add(request);
    REQUIRE(h.schedule());
    h.apply(3);
    REQUIRE(h.updates.size() == 1);
    CHECK(h.updates[0].finish.has_value() == !ignore_eos);
    if (!ignore_eos) CHECK(h.updates[0].finish == FinishReason::kStop);
    if (!ignore_eos) CHECK(h.updates[0].stop_token == 3);
  }
  auto request = make_request(2, 3);
  request->eos_token_ids = {2};
  request->params.stop.stop_token_ids = {2};  // ignore_eos, but asked for by name
  Harness h(small_config());
  h.add(request);
  REQUIRE(h.schedule());
  h.apply(2);
  CHECK(h.updates[0].finish == FinishReason::kStop);
  CHECK(h.updates[0].stop_token == 2);
}

TEST_CASE("an ending token as the last allowed token is a stop, not a length") {
  auto request = make_request(2, 1);
  request->params.stop.stop_token_ids = {7};
  Harness h(small_config());
  h.add(request);
  REQUIRE(h.step());
  CHECK(h.updates[0].finish == FinishReason::kStop);
}

TEST_CASE("a row that is not finite ends its sequence with numeric_error and leaves the others alone") {
  Harness h(small_config());
  for (int i = 0; i < 3; ++i) h.add(2, 2);
  REQUIRE(h.schedule());
  h.output.clear();
  for (const TokenId token : {5, 6, 7}) give(token, &h.output);
  take_back(1, &h.output);
  h.apply_output();
  REQUIRE(h.updates.size() == 3);
  CHECK_FALSE(h.updates[0].finish.has_value());
  CHECK(h.updates[1].numeric_error);
  CHECK(h.updates[1].finish == FinishReason::kError);
  CHECK_FALSE(h.scheduler.contains(1));
  REQUIRE(h.schedule());
  CHECK(h.shape() == "0:1 2:1");
  CHECK(h.plan.tokens == std::vector<TokenId>{5, 7});
}

}  // namespace llmb::test
