// Which rows get the answer of another, and what their records say.
#include "job/equal_rows.h"

#include <doctest/doctest.h>

#include <functional>
#include <string>

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

TEST_CASE("records of equal rows say what their own lines say, from whatever file") {
  EqualRows rows(kRoom);
  CHECK_FALSE(rows.wait_for_equal(0, row(0)));
  for (int64_t i = 1; i <= 4; ++i) {
    const auto equal = row(i);
    equal->line = {i, i < 3 ? "in.jsonl" : "more.jsonl", 10 + i, 100 + i, static_cast<uint64_t>(1000 + i)};
    equal->id_json = i % 2 == 0 ? "" : "\"an id that is not short\"";
    equal->model_name = i == 3 ? "" : "m" + std::to_string(i);
    equal->input_json = "{\"n\":" + std::to_string(i) + "}";
    equal->num_truncated_tokens = static_cast<int32_t>(i);
    CHECK(rows.wait_for_equal(i, equal));
  }
  const std::vector<FinishedItem> like = rows.answers_like(answer_to(0, *row(0)));
  REQUIRE(like.size() == 4);
  for (size_t at = 0; at < 4; ++at) {
    const auto i = static_cast<int64_t>(at) + 1;
    const Completion& c = like[at].completion;
    CHECK(c.line.index == i);
    CHECK(c.line.source == (i < 3 ? "in.jsonl" : "more.jsonl"));
    CHECK(c.line.line_number == 10 + i);
    CHECK(c.line.byte_offset == 100 + i);
    CHECK(c.line.content_hash == static_cast<uint64_t>(1000 + i));
    CHECK(c.id_json == (i % 2 == 0 ? "" : "\"an id that is not short\""));
    CHECK(c.model_name == (i == 3 ? "" : "m" + std::to_string(i)));
    CHECK(c.input_json == "{\"n\":" + std::to_string(i) + "}");
    CHECK(c.num_truncated_tokens == i);
  }
}

TEST_CASE("rows that others may wait for count as well, so that a file of any length takes bounded memory") {
  EqualRows rows(1000);
  for (int64_t i = 0; i < 100; ++i) {
    const auto other = row(i);
    other->prompt_tokens[0] = static_cast<TokenId>(i + 1);
    CHECK_FALSE(rows.wait_for_equal(i, other));
  }
  const auto last = row(100);
  last->prompt_tokens[0] = 100;
  CHECK_FALSE(rows.wait_for_equal(100, last));  // its equal is not remembered
  for (int64_t i = 0; i < 4; ++i) CHECK(rows.answers_like(answer_to(i, *row(i))).empty());
  CHECK_FALSE(rows.wait_for_equal(101, last));  // now it is
  CHECK(rows.wait_for_equal(102, last));
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
      [](Request& r) { r.params.stop.repetition_tokens = 8; },
      [](Request& r) { r.params.stop.thinking_budget = 8; },
      [](Request& r) { r.params.output.echo = true; },
      [](Request& r) { r.echo_text = "x"; },
      [](Request& r) { r.split.formats.calls = ToolCallFormat::kHermes; },
      [](Request& r) { r.split.formats.reasoning = ReasoningFormat::kQwen3; },
      [](Request& r) { r.split.starts_in_reasoning = true; },
      [](Request& r) { r.split.tool_names = {"f"}; },
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
