// Planning ahead: what a step may hold while the one before it has not been seen.
#include <doctest/doctest.h>

#include "tests/scheduler/harness.h"

namespace llmb::test {

namespace {

constexpr TokenId kEos = 9;

std::shared_ptr<Request> request_with_eos(int32_t num_prompt_tokens, int32_t max_tokens) {
  auto request = make_request(num_prompt_tokens, max_tokens);
  request->eos_token_ids = {kEos};
  request->params.stop.ignore_eos = false;
  return request;
}

std::shared_ptr<Request> request_with_penalty(int32_t num_prompt_tokens, int32_t max_tokens) {
  auto request = make_request(num_prompt_tokens, max_tokens);
  request->params.sampling.frequency_penalty = 0.5f;
  return request;
}

}  // namespace

TEST_CASE("a sequence goes on with the token that the plan in flight samples, until max_tokens end it") {
  Harness h(small_config());
  const SeqId seq = h.add(5, 3);
  REQUIRE(h.schedule());
  REQUIRE(h.schedule_ahead());
  CHECK(h.ahead.step == 1);
  CHECK(h.ahead.tokens == std::vector<TokenId>{unseen_token(0)});
  CHECK(h.ahead.entries.at(0).base == 4);
  CHECK(h.ahead.entries.at(0).follows == 0);
  CHECK(h.ahead.entries.at(0).max_ahead == 1);
  CHECK(h.ahead.max_context_len(0) == 6);
  h.apply(21);
  REQUIRE(h.updates.size() == 1);
  CHECK(h.updates[0].token == 21);
  REQUIRE(h.schedule_ahead());
  CHECK(h.ahead.tokens == std::vector<TokenId>{unseen_token(0)});
  CHECK(h.ahead.max_context_len(0) == 7);
  CHECK(h.scheduler.num_running() == 0);  // what is in flight is its last token
  h.apply(22);
  CHECK(h.updates[0].token == 22);
  CHECK_FALSE(h.updates[0].finish.has_value());
  CHECK_FALSE(h.schedule_ahead());
  h.apply(23);
  CHECK(h.updates[0].token == 23);
  CHECK(h.updates[0].finish == FinishReason::kLength);
  CHECK_FALSE(h.scheduler.contains(seq));
  CHECK(h.scheduler.num_free_blocks() == 64);
}

TEST_CASE("unseen tokens are of groups of the plan in flight, wherever a sequence stands in it") {
  SchedulerConfig config = small_config();
  config.max_num_batched_tokens = 8;
  Harness h(config);
  h.add(3, 2);
  h.add(2, 9);
  h.add(10, 9);
  REQUIRE(h.schedule());
  CHECK(h.shape() == "0:3 1:2 2:3");
  REQUIRE(h.schedule_ahead());
  CHECK(h.ahead_shape() == "0:1 1:1 2:6");
  CHECK(h.ahead.tokens == std::vector<TokenId>{unseen_token(0), unseen_token(1), 4, 5, 6, 7, 8, 9});
  h.apply();
  REQUIRE(h.schedule_ahead());  // 0 ends with the plan in flight; 2 computes the last of its prompt
  CHECK(h.ahead_shape() == "1:1 2:1");
  CHECK(h.ahead.tokens == std::vector<TokenId>{unseen_token(1), 10});
  h.apply();
  CHECK_FALSE(h.scheduler.contains(0));
  REQUIRE(h.schedule_ahead());
  CHECK(h.ahead.tokens == std::vector<TokenId>{unseen_token(0), unseen_token(1)});
}

TEST_CASE("an end of sequence is noticed one step late: that step's row means nothing, the blocks are free at once") {
  SchedulerConfig config = small_config();
  config.num_blocks = 4;
  Harness h(config);
  h.add(request_with_eos(8, 5));
  REQUIRE(h.schedule());
  REQUIRE(h.schedule_ahead());
  h.add(15, 2);  // takes the whole pool
  h.apply(kEos);
  REQUIRE(h.updates.size() == 1);
  CHECK(h.updates[0].finish == FinishReason::kStop);
  CHECK(h.updates[0].stop_token == kEos);
  CHECK(h.scheduler.num_free_blocks() == 4);
  REQUIRE(h.schedule_ahead());  // into the blocks that the plan in flight still writes
  CHECK(h.ahead_shape() == "1:15");
  h.apply(kEos);
  CHECK(h.updates.empty());
  h.apply();
  REQUIRE(h.updates.size() == 1);
  CHECK(h.updates[0].seq == 1);
}

TEST_CASE("finish() with two plans in flight: neither gives the sequence another token") {
  Harness h(small_config());
  h.add(4, 9);
  h.add(4, 9);
  REQUIRE(h.schedule());
  REQUIRE(h.schedule_ahead());
  h.scheduler.finish(0);
  h.check();
  for (int i = 0; i < 2; ++i) {
    h.apply();
    REQUIRE(h.updates.size() == 1);
    CHECK(h.updates[0].seq == 1);
    CHECK(h.updates[0].given == 1);
  }
  REQUIRE(h.schedule());
  CHECK(h.shape() == "1:1");
  CHECK(h.plan.tokens == std::vector<TokenId>{7});
}

TEST_CASE("finish() of all sequences in flight leaves a plan that gives nothing") {
  Harness h(small_config());
  h.add(4, 2);
  REQUIRE(h.schedule());
  REQUIRE(h.schedule_ahead());
  h.scheduler.finish(0);  // counted as ending with the plan in flight
  h.check();
  CHECK(h.scheduler.num_running() == 0);
  CHECK_FALSE(h.scheduler.has_work());
  h.apply();
  h.apply();
  CHECK(h.updates.empty());
  CHECK(h.scheduler.num_free_blocks() == 64);
}

TEST_CASE("a row that is not finite ends its sequence, though it is in the plan in flight") {
  Harness h(small_config());
  h.add(4, 9);
  h.add(4, 9);
  REQUIRE(h.schedule());
  REQUIRE(h.schedule_ahead());
  h.output.clear();
  give(0, &h.output);
  give(7, &h.output);
  take_back(0, &h.output);
  h.apply_output();
  CHECK(h.updates[0].numeric_error);
  CHECK(h.updates[0].finish == FinishReason::kError);
  h.apply();
  REQUIRE(h.updates.size() == 1);
  CHECK(h.updates[0].seq == 1);
}

TEST_CASE("penalties count the token that the plan in flight samples, as one that is not seen yet") {
  Harness h(small_config());
  h.add(1, 9);
  h.add(request_with_penalty(1, 4));
  REQUIRE(h.schedule());
  CHECK(h.plan.penalty.empty());
  REQUIRE(h.schedule_ahead());
  CHECK(h.ahead_shape() == "0:1 1:1");
  REQUIRE(h.ahead.penalty.size() == 1);
  CHECK(h.ahead.penalty[0].token == unseen_token(1));
  CHECK(h.ahead.penalty[0].output_count == 1);
  h.apply(21);
  REQUIRE(h.schedule_ahead());
  REQUIRE(h.ahead.penalty.size() == 2);
  CHECK(h.ahead.penalty[0].token == 21);
  CHECK(h.ahead.penalty[0].output_count == 1);
  CHECK(h.ahead.penalty[1].token == unseen_token(1));
  h.apply(21);
  h.apply(22);
  REQUIRE(h.schedule());  // nothing in flight, all is seen
  REQUIRE(h.plan.penalty.size() == 2);
  CHECK(h.plan.penalty[0].output_count == 2);
  CHECK(h.plan.penalty[1].token == 22);
  REQUIRE(h.schedule_ahead());  // what is in flight is its last token
  CHECK(h.ahead_shape() == "0:1");
}

TEST_CASE("a prompt with penalties is computed ahead, chunk by chunk; a step that does not sample has no penalties") {
  SchedulerConfig config = small_config();
  config.max_num_batched_tokens = 4;
  Harness h(config);
  h.add(request_with_penalty(10, 9));
  REQUIRE(h.schedule());
  REQUIRE(h.schedule_ahead());
  CHECK(h.ahead.entries.at(0).base == 4);
  CHECK(h.ahead.num_tokens() == 4);
  h.apply();
  REQUIRE(h.schedule_ahead());
  CHECK(h.ahead.num_samples() == 1);
  CHECK(h.ahead.penalty.empty());
  h.apply();
  REQUIRE(h.schedule_ahead());
  CHECK(h.ahead.penalty.at(0).token == unseen_token(0));
}

TEST_CASE("min_tokens count unseen tokens, and their values are judged when they are seen") {
  Harness h(small_config());
  auto request = request_with_eos(4, 9);
  request->params.stop.min_tokens = 2;
  h.add(request);
  REQUIRE(h.schedule());
  CHECK(h.plan.bias.size() == 1);
  REQUIRE(h.schedule_ahead());
  CHECK(h.ahead.bias.size() == 1);  // samples the second token
  h.apply(kEos);
  CHECK_FALSE(h.updates.at(0).finish.has_value());
  REQUIRE(h.schedule_ahead());
  CHECK(h.ahead.bias.empty());
  h.apply(kEos);
  CHECK_FALSE(h.updates.at(0).finish.has_value());
  h.apply(kEos);
  CHECK(h.updates.at(0).finish == FinishReason::kStop);
}

}  // namespace llmb::test
