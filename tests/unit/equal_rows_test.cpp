// Which rows get the answer of another, and what their records say.
#include "job/equal_rows.h"

#include <doctest/doctest.h>

#include <functional>
#include <string>

namespace llmb::test {

namespace {

constexpr size_t kRoom = 1 << 20;

InputRequest line(int64_t index) {
  InputRequest input;
  input.line.index = index;
  input.line.source = "in.jsonl";
  input.id_json = std::to_string(index);
  input.prompt = "a prompt";
  input.params.sampling.temperature = 0;
  input.params.stop.max_tokens = 10;
  return input;
}

// As the coordinator goes about a line. True: it waits for an equal one.
bool waits(EqualRows& rows, int64_t ordinal, const InputRequest& input) {
  const EqualRows::Key key = EqualRows::key_of(input);
  if (const auto equal = rows.find_equal(key, ordinal, input)) {
    CHECK_FALSE(equal->answer);
    return true;
  }
  rows.compute(key, ordinal, {5, 0});
  return false;
}

std::shared_ptr<const AnswerForm> form(AnswerForm form) { return std::make_shared<AnswerForm>(std::move(form)); }

std::shared_ptr<const AnswerForm> calls(std::vector<CallFrame> frames) {
  AnswerForm form{AnswerForm::Kind::kCalls};
  form.calls = std::move(frames);
  return std::make_shared<AnswerForm>(std::move(form));
}

FinishedItem answer_to(int64_t ordinal, const InputRequest& input) {
  FinishedItem item;
  item.ordinal = ordinal;
  item.completion.line = input.line;
  item.completion.id_json = input.id_json;
  item.completion.num_prompt_tokens = 5;
  item.completion.num_truncated_tokens = 2;
  item.completion.choices.emplace_back().text = "the answer";
  item.itl_ms = {1, 2};
  return item;
}

}  // namespace

TEST_CASE("equal rows get the first one's answer, each under its own line and id") {
  EqualRows rows(kRoom);
  CHECK_FALSE(waits(rows, 0, line(10)));
  CHECK(waits(rows, 1, line(11)));
  CHECK(waits(rows, 5, line(15)));
  CHECK(rows.num_found() == 2);
  const std::vector<FinishedItem> like = rows.answers_like(answer_to(0, line(10)));
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
  CHECK_FALSE(waits(rows, 0, line(0)));
  for (int64_t i = 1; i <= 4; ++i) {
    InputRequest equal = line(i);
    equal.line = {i, i < 3 ? "in.jsonl" : "more.jsonl", 10 + i, 100 + i, static_cast<uint64_t>(1000 + i)};
    equal.id_json = i % 2 == 0 ? "" : "\"an id that is not short\"";
    equal.model_name = i == 3 ? "" : "m" + std::to_string(i);
    equal.input_json = "{\"n\":" + std::to_string(i) + "}";
    CHECK(waits(rows, i, equal));
  }
  const std::vector<FinishedItem> like = rows.answers_like(answer_to(0, line(0)));
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
    CHECK(c.num_truncated_tokens == 2);
  }
}

TEST_CASE("rows that others may wait for count as well, so that a file of any length takes bounded memory") {
  EqualRows rows(1000);
  for (int64_t i = 0; i < 100; ++i) {
    InputRequest other = line(i);
    other.prompt = "prompt " + std::to_string(i);
    CHECK_FALSE(waits(rows, i, other));
  }
  InputRequest last = line(100);
  last.prompt = "prompt 99";
  CHECK_FALSE(waits(rows, 100, last));  // its equal is not remembered
  for (int64_t i = 0; i < 4; ++i) CHECK(rows.answers_like(answer_to(i, line(i))).empty());
  CHECK_FALSE(waits(rows, 101, last));  // now it is
  CHECK(waits(rows, 102, last));
}

TEST_CASE("a row that comes after the answer gets it at once, under its own line and id") {
  EqualRows rows(kRoom);
  CHECK_FALSE(waits(rows, 0, line(0)));
  CHECK(rows.answers_like(answer_to(0, line(0))).empty());
  InputRequest later = line(7);
  later.line = {7, "more.jsonl", 8, 900, 77};
  later.model_name = "m";
  later.input_json = "{}";
  const auto equal = rows.find_equal(EqualRows::key_of(later), 3, later);
  REQUIRE(equal);
  REQUIRE(equal->answer);
  CHECK(equal->prompt.num_tokens == 5);
  CHECK(equal->answer->ordinal == 3);
  const Completion& c = equal->answer->completion;
  CHECK(c.line.source == "more.jsonl");
  CHECK(c.line.index == 7);
  CHECK(c.line.content_hash == 77);
  CHECK(c.id_json == "7");
  CHECK(c.model_name == "m");
  CHECK(c.input_json == "{}");
  CHECK(c.num_truncated_tokens == 2);
  CHECK(c.choices[0].text == "the answer");
  CHECK(c.latency.num_cached_tokens == 5);
  CHECK(c.latency.e2e_ms == 0);
  CHECK(rows.num_found() == 1);
  CHECK(rows.answers_like(answer_to(0, line(0))).empty());  // nobody's any more
}

TEST_CASE("a row that comes after an error is computed again") {
  EqualRows rows(kRoom);
  CHECK_FALSE(waits(rows, 0, line(0)));
  CHECK(waits(rows, 1, line(1)));
  FinishedItem failed = answer_to(0, line(0));
  failed.completion.error = RequestError{"numeric_error", "for the test", std::nullopt};
  CHECK(rows.answers_like(failed).size() == 1);
  CHECK_FALSE(waits(rows, 2, line(2)));
  CHECK(waits(rows, 3, line(3)));
}

TEST_CASE("where there is no room, the oldest answers are forgotten") {
  EqualRows rows(2000);
  const auto different = [](int64_t i) {
    InputRequest input = line(i);
    input.prompt = "prompt " + std::to_string(i);
    return input;
  };
  for (int64_t i = 0; i < 100; ++i) {
    CHECK_FALSE(waits(rows, i, different(i)));
    CHECK(rows.answers_like(answer_to(i, different(i))).empty());
  }
  const auto has_answer = [&](int64_t i) {
    return rows.find_equal(EqualRows::key_of(different(i)), 1000 + i, different(i)).has_value();
  };
  CHECK(has_answer(99));
  CHECK(has_answer(97));
  CHECK_FALSE(has_answer(50));
  CHECK_FALSE(has_answer(0));
}

TEST_CASE("rows that differ in anything that an answer depends on are not equal") {
  const std::vector<std::function<void(InputRequest&)>> changes = {
      [](InputRequest& r) { r.prompt = "another prompt"; },
      [](InputRequest& r) { r.prompt = std::vector<TokenId>{1}; },
      [](InputRequest& r) { r.prompt = std::vector<TokenId>{1, 2}; },
      [](InputRequest& r) { r.prompt = ChatMessages{"a prompt"}; },
      [](InputRequest& r) { r.prompt = ChatMessages{"a prompt", "[]"}; },
      [](InputRequest& r) { r.prompt = ChatMessages{"a prompt", "", "[]"}; },
      [](InputRequest& r) { r.prompt = ChatMessages{"a prompt", "[]", "", ToolChoice::kRequired}; },
      [](InputRequest& r) { r.prompt = ChatMessages{"a prompt", "[]", "", ToolChoice::kNamed, "f"}; },
      [](InputRequest& r) { r.prompt = ChatMessages{"a prompt", "[]", "", ToolChoice::kAuto, "", true}; },
      [](InputRequest& r) { r.prompt = ChatMessages{"a prompt", "", "", ToolChoice::kAuto, "", false, "low"}; },
      [](InputRequest& r) { r.prompt = ChatMessages{"a prompt", "", "", ToolChoice::kAuto, "", false, "", false}; },
      [](InputRequest& r) { r.prompt = ChatMessages{"a prompt", "", "", ToolChoice::kAuto, "", false, "", false, true}; },
      [](InputRequest& r) { r.params.stop.max_tokens = 11; },
      [](InputRequest& r) { r.params.stop.max_tokens.reset(); },
      [](InputRequest& r) { r.params.stop.min_tokens = 1; },
      [](InputRequest& r) { r.params.stop.stop = {"x"}; },
      [](InputRequest& r) { r.params.stop.repetition_tokens = 8; },
      [](InputRequest& r) { r.params.stop.thinking_budget = 8; },
      [](InputRequest& r) { r.params.sampling.repetition_penalty = 1.5f; },
      [](InputRequest& r) { r.params.sampling.logit_bias = {{1, 1.0f}}; },
      [](InputRequest& r) { r.params.sampling.num_logprobs = 1; },
      [](InputRequest& r) { r.params.sampling.n = 2; },
      [](InputRequest& r) { r.params.sampling.best_of = 2; },
      [](InputRequest& r) { r.params.sampling.beams = BeamParams{2}; },
      [](InputRequest& r) { r.params.sampling.temperature = 1; },
      [](InputRequest& r) { r.params.output.return_token_ids = true; },
      [](InputRequest& r) { r.params.output.echo = true; },
      [](InputRequest& r) { r.params.prompt.truncate = TruncateSide::kLeft; },
      [](InputRequest& r) { r.params.prompt.max_prompt_tokens = 4; },
      [](InputRequest& r) { r.params.token_rules.allowed = {1}; },
      [](InputRequest& r) { r.params.token_rules.bad_words = {"x"}; },
      [](InputRequest& r) { r.params.form = form({}); },
      [](InputRequest& r) { r.params.form = form({AnswerForm::Kind::kRegex, "a"}); },
      [](InputRequest& r) { r.params.form = form({AnswerForm::Kind::kRegex, "b"}); },
      [](InputRequest& r) { r.params.form = form({AnswerForm::Kind::kGrammar, "b"}); },
      [](InputRequest& r) { r.params.form = form({AnswerForm::Kind::kChoice, "", {"a", "b"}}); },
      [](InputRequest& r) { r.params.form = form({AnswerForm::Kind::kChoice, "", {"ab"}}); },
      [](InputRequest& r) { r.params.form = calls({{"a", "b", "c"}}); },
      [](InputRequest& r) { r.params.form = calls({{"a", "bc", ""}}); },
      [](InputRequest& r) { r.params.form = calls({{"a", "b", "c", true}}); },
      [](InputRequest& r) { r.params.form = calls({{"a", "b", "c"}, {"a", "b", "c"}}); },
      [](InputRequest& r) { r.form = ApiForm::kOpenAiChat; },
      [](InputRequest& r) { r.settings_json = "1"; },
  };
  EqualRows rows(kRoom);
  CHECK_FALSE(waits(rows, 0, line(0)));
  for (size_t i = 0; i < changes.size(); ++i) {
    CAPTURE(i);
    InputRequest other = line(1);
    changes[i](other);
    CHECK_FALSE(waits(rows, static_cast<int64_t>(i) + 1, other));
  }
  CHECK(rows.num_found() == 0);
  CHECK(waits(rows, 1000, line(1)));
}

TEST_CASE("what is drawn at random is equal only where both lines name the same seed") {
  const auto drawn = [](int64_t index, std::optional<uint64_t> seed) {
    InputRequest input = line(index);
    input.params.sampling.temperature = 1;
    input.params.sampling.seed = seed;
    return input;
  };
  EqualRows rows(kRoom);
  CHECK_FALSE(waits(rows, 0, drawn(0, {})));
  CHECK_FALSE(waits(rows, 1, drawn(1, {})));
  CHECK_FALSE(waits(rows, 2, drawn(2, 5)));
  CHECK(waits(rows, 3, drawn(3, 5)));
  CHECK_FALSE(waits(rows, 4, drawn(4, 6)));
}

TEST_CASE("where there is no room for those that wait, they are computed") {
  EqualRows rows(1000);
  int64_t num_waiting = 0;
  for (int64_t i = 0; i < 100; ++i) num_waiting += waits(rows, i, line(i));
  CHECK(num_waiting > 0);
  CHECK(num_waiting < 10);
  CHECK(static_cast<int64_t>(rows.answers_like(answer_to(0, line(0))).size()) == num_waiting);
}

}  // namespace llmb::test
