#include <doctest/doctest.h>

#include <memory>

#include "tests/scheduler/harness.h"
#include "tests/support/toy_constraint.h"

namespace llmb::test {

namespace {

std::shared_ptr<Request> constrained_request(int32_t max_tokens, uint32_t one_in = 1) {
  auto request = make_request(3, max_tokens);
  request->constraint = std::make_shared<ToyConstraint>(5, 40, one_in, std::vector<TokenId>());
  return request;
}

}  // namespace

TEST_CASE("a row with a constraint is sampled behind its own mask, others behind none") {
  Harness h(small_config());
  auto shared = constrained_request(5, 3);
  h.add(shared);
  h.add(3, 5);
  REQUIRE(h.schedule());
  REQUIRE(h.plan.num_samples() == 2);
  CHECK(h.plan.mask_words == 2);
  CHECK(h.plan.sample_rows[0].mask == 0);
  CHECK(h.plan.sample_rows[1].mask == -1);
  const auto state = shared->constraint->start();
  const auto holds = [&] {
    const auto expected = state->allowed();
    return std::equal(expected.begin(), expected.end(), h.plan.masks.begin(), h.plan.masks.end());
  };
  CHECK(holds());
  for (const TokenId token : {4, 9, 2}) {
    h.apply(token);
    state->advance(token);
    REQUIRE(h.schedule());
    CHECK(holds());
  }
}

TEST_CASE("a prompt that is computed in chunks needs a mask with its last chunk only") {
  SchedulerConfig config = small_config();
  config.max_num_batched_tokens = 2;
  Harness h(config);
  h.add(constrained_request(2));
  REQUIRE(h.schedule());
  CHECK(h.plan.num_masks() == 0);
  h.apply();
  REQUIRE(h.schedule());
  CHECK(h.plan.num_masks() == 1);
}

TEST_CASE("where fewer than half of the rows have constraints they alone sit out the plan ahead, else nobody has one") {
  for (const int32_t num_constrained : {0, 1, 2, 3, 4}) {
    CAPTURE(num_constrained);
    Harness h(small_config());
    for (int32_t i = 0; i < num_constrained; ++i) h.add(constrained_request(9));
    for (int32_t i = num_constrained; i < 4; ++i) h.add(3, 9);
    REQUIRE(h.schedule());
    CHECK(h.plan.num_entries() == 4);
    CHECK(h.schedule_ahead() == (num_constrained < 2));
    if (num_constrained < 2) CHECK(h.ahead.num_entries() == 4 - num_constrained);
    h.apply();
  }
}

TEST_CASE("nothing is left to choose: the answer ends in an error that says so") {
  Harness h(small_config());
  auto request = constrained_request(9);
  for (TokenId token = 0; token < 40; ++token)
    request->params.sampling.logit_bias.emplace_back(token, -std::numeric_limits<float>::infinity());
  h.add(request);
  h.add(constrained_request(9));
  REQUIRE(h.schedule());
  h.output.clear();
  give(std::vector<TokenId>{}, &h.output);
  give(std::vector<TokenId>{}, &h.output);
  h.output.is_finite = {0, 0};
  h.apply_output();
  REQUIRE(h.updates.size() == 2);
  CHECK((h.updates[0].numeric_error && h.updates[0].has_no_choice));
  CHECK((h.updates[1].numeric_error && !h.updates[1].has_no_choice));
  CHECK(h.updates[0].finish == FinishReason::kError);
}

}  // namespace llmb::test
