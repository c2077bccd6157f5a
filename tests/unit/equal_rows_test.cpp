// Which rows get the answer of another, and what their records say.
#include "job/equal_rows.h"

#include <doctest/doctest.h>

#include <functional>

#include "tests/support/workload.h"

namespace llmb::test {

namespace {

constexpr size_t kRoom = 1 << 20;

std::shared_ptr<Request> row(int64_t index) {
  auto request = make_request(5, 10);
  request->line.index = index;
  request->line.source = "in.jsonl";
  request->id_json = std::to_string(index);
  request->rng = {7, static_cast<uint64_t>(index)};
  return request;
}

FinishedItem answer_to(int64_t ordinal, const Request& request) {
  FinishedItem item;
  item.ordinal = ordinal;
  item.completion.line = request.line;
  item.completion.id_json = request.id_json;
  item.completion.num_prompt_tokens = 5;
  item.completion.choices.emplace_back().text = "the answer";
  item.itl_ms = {1, 2};
  return item;
}

}  // namespace

TEST_CASE("equal rows get the first one's answer, each under its own line and id") {
  EqualRows rows(kRoom);
  CHECK_FALSE(rows.wait_for_equal(0, row(10)));
  CHECK(rows.wait_for_equal(1, row(11)));
  CHECK(rows.wait_for_equal(5, row(15)));
  CHECK(rows.num_found() == 2);
  const std::vector<FinishedItem> like = rows.answers_like(answer_to(0, *row(10)));
  REQUIRE(like.size() == 2);
  for (size_t i = 0; i < 2; ++i) {
    CHECK(like[i].ordinal == (i == 0 ? 1 : 5));
    CHECK(like[i].completion.line.index == (i == 0 ? 11 : 15));
    CHECK(like[i].completion.id_json == (i == 0 ? "11" : "15"));
    CHECK(like[i].completion.choices[0].text == "the answer");
    CHECK(like[i].completion.latency.num_cached_tokens == 5);
    CHECK(like[i].itl_ms.empty());
  }
}

TEST_CASE("a row that comes after the answer is computed again, and then answers others") {
  EqualRows rows(kRoom);
  CHECK_FALSE(rows.wait_for_equal(0, row(0)));
  CHECK(rows.answers_like(answer_to(0, *row(0))).empty());
  CHECK_FALSE(rows.wait_for_equal(1, row(1)));
  CHECK(rows.wait_for_equal(2, row(2)));
  CHECK(rows.answers_like(answer_to(0, *row(0))).empty());  // nobody's any more
  CHECK(rows.answers_like(answer_to(1, *row(1))).size() == 1);
}

TEST_CASE("rows that differ in anything that an answer depends on are not equal") {
  const std::vector<std::function<void(Request&)>> changes = {
      [](Request& r) { r.prompt_tokens.back() = 9; },
      [](Request& r) { r.prompt_tokens.push_back(9); },
      [](Request& r) { r.params.stop.max_tokens = 11; },
      [](Request& r) { r.params.stop.min_tokens = 1; },
      [](Request& r) { r.params.stop.stop = {"x"}; },
      [](Request& r) { r.params.sampling.repetition_penalty = 1.5f; },
      [](Request& r) { r.params.sampling.logit_bias = {{1, 1.0f}}; },
      [](Request& r) { r.params.sampling.num_logprobs = 1; },
      [](Request& r) { r.params.sampling.num_choices = 2; },
      [](Request& r) { r.params.output.return_token_ids = true; },
      [](Request& r) { r.form = ApiForm::kOpenAiChat; },
      [](Request& r) { r.eos_token_ids = {3}; },
      [](Request& r) { r.params.sampling.temperature = 1; },
  };
  EqualRows rows(kRoom);
  CHECK_FALSE(rows.wait_for_equal(0, row(0)));
  for (size_t i = 0; i < changes.size(); ++i) {
    CAPTURE(i);
    const auto other = row(1);
    changes[i](*other);
    CHECK_FALSE(rows.wait_for_equal(static_cast<int64_t>(i) + 1, other));
  }
  CHECK(rows.num_found() == 0);
}

TEST_CASE("what is drawn at random is equal only where both lines name the same seed") {
  const auto drawn = [](int64_t index, std::optional<uint64_t> seed) {
    const auto request = row(index);
    request->params.sampling.temperature = 1;
    request->params.sampling.seed = seed;
    if (seed) request->rng = {*seed, 0};
    return request;
  };
  EqualRows rows(kRoom);
  CHECK_FALSE(rows.wait_for_equal(0, drawn(0, {})));
  CHECK_FALSE(rows.wait_for_equal(1, drawn(1, {})));
  CHECK_FALSE(rows.wait_for_equal(2, drawn(2, 5)));
  CHECK(rows.wait_for_equal(3, drawn(3, 5)));
  CHECK_FALSE(rows.wait_for_equal(4, drawn(4, 6)));
}

TEST_CASE("where there is no room for those that wait, they are computed") {
  EqualRows rows(1000);
  int64_t num_waiting = 0;
  for (int64_t i = 0; i < 100; ++i) num_waiting += rows.wait_for_equal(i, row(i));
  CHECK(num_waiting > 0);
  CHECK(num_waiting < 10);
  CHECK(static_cast<int64_t>(rows.answers_like(answer_to(0, *row(0))).size()) == num_waiting);
}

}  // namespace llmb::test
