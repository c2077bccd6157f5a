// Answers that are kept for rows that ask for the same; lines and answers on their way between processes.
#include "job/packed_answer.h"

#include <doctest/doctest.h>

#include "io/result_writer.h"
#include "job/equal_rows.h"
#include "job/packed_request.h"
#include "job/worker_messages.h"
#include "tests/support/workload.h"
#include "tests/unit/parsed_line.h"

namespace llmb::test {

namespace {

// Something in every member.
Completion full_completion() {
  Completion c;
  c.line = {5, "in.jsonl", 6, 700, 8};
  c.form = ApiForm::kOpenAiChat;
  c.id_json = "\"a\"";
  c.settings_json = "\"x\":1";
  c.is_chat = true;
  c.return_token_ids = true;
  c.num_prompt_tokens = 9;
  c.num_truncated_tokens = 2;
  c.num_unreturned_tokens = 4;
  Choice& one = c.choices.emplace_back();
  one.text = "an \xc3\xa4nswer";
  one.continues_character = true;
  one.num_output_tokens = 2;
  one.token_ids = {7, 8};
  one.logprobs = {{{7, -0.5f}, {{7, -0.5f}, {9, -1.5f}}}, {{8, -0.25f}, {}}};
  one.logprob_texts = {"an", "an", "x", " \xc3\xa4nswer"};
  one.finish_reason = FinishReason::kLength;
  one.stop_string = "end";
  one.stop_token = 3;
  one.parts = AnswerParts{"content", true, "reasons", {{"f", "{\"x\":1}"}}, true};
  one.num_reasoning_tokens = 1;
  c.choices.emplace_back().text = "another";
  return c;
}

std::string record(Completion completion) {
  completion.line = {};
  completion.id_json.clear();
  ResultFormat format;
  format.metrics = false;
  ResultFormatter formatter(format);
  return formatter.format(completion);
}

}  // namespace

TEST_CASE("an answer is the same after packing: every member that a record shows") {
  for (const ApiForm form : {ApiForm::kNative, ApiForm::kOpenAiChat, ApiForm::kOpenAiCompletion}) {
    Completion completion = full_completion();
    completion.form = form;
    completion.is_chat = form == ApiForm::kOpenAiChat;
    const Completion unpacked = unpack_answer(pack_answer(completion));
    CHECK(record(unpacked) == record(completion));
    CHECK(unpacked.num_output_tokens() == completion.num_output_tokens());
    CHECK(unpacked.num_truncated_tokens == 2);
    REQUIRE(unpacked.choices.size() == 2);
    CHECK(unpacked.choices[0].token_ids == completion.choices[0].token_ids);
    CHECK(unpacked.choices[0].parts == completion.choices[0].parts);
    CHECK(unpacked.choices[0].stop_token == 3);
    CHECK(unpacked.choices[0].stop_string == "end");
    CHECK(unpacked.choices[0].num_reasoning_tokens == 1);
    CHECK_FALSE(unpacked.choices[1].parts);
    CHECK(unpacked.line.source.empty());
    CHECK(unpacked.id_json.empty());
  }
}

TEST_CASE("tokens that no record shows take no room") {
  Completion completion = full_completion();
  completion.return_token_ids = false;
  completion.choices[0].logprobs.clear();
  completion.choices[0].logprob_texts.clear();
  completion.choices[0].token_ids.assign(1000, 5);
  CHECK(pack_answer(completion).size() < 500);
  CHECK(record(unpack_answer(pack_answer(completion))) == record(completion));
}

TEST_CASE("a packed line is the same line: its place, its parameters, its prompt of any kind") {
  const std::string lines[] = {
      R"({"id":7,"prompt":"a","temperature":0.5,"n":2,"best_of":3,"logit_bias":{"5":1.5},"stop":["x","y"],"logprobs":2})",
      R"({"prompt_token_ids":[1,2,3],"max_tokens":4,"min_tokens":2,"guided_json":{"type":"object"},"seed":9,"top_k":5})",
      R"({"messages":[{"role":"user","content":"Hi"}],"tools":[{"type":"function","function":{"name":"f"}}],"top_p":0.5})",
      R"({"prompt":"a","options":["b","c"],"truncate_prompt_tokens":5})", R"({"prompt":"a","bad_words":["no"]})"};
  for (const std::string& line : lines) {
    CAPTURE(line);
    InputRequest input = accepted(line);
    input.line = {3, "in.jsonl", 4, 500, 6};
    input.arrival_ms = 12.5;
    const std::string packed = pack_request(input);
    const InputRequest same = unpack_request(packed);
    CHECK(pack_request(same) == packed);
    CHECK(EqualRows::key_of(same) == EqualRows::key_of(input));
    CHECK(same.line.source == "in.jsonl");
    CHECK(same.id_json == input.id_json);
    CHECK(same.prompt.index() == input.prompt.index());
    CHECK((same.params.form != nullptr) == (input.params.form != nullptr));
  }
}

TEST_CASE("an answer from another process gives the record of one from this process; an error, its code") {
  auto request = std::make_shared<Request>(*make_request(9, 5));
  request->line = full_completion().line;
  request->id_json = full_completion().id_json;
  FinishedItem item = {17, full_completion(), {1.5f, 2.5f}};
  item.completion.latency.ttft_ms = 3.5;
  const FinishedItem same = finished_item(unpack_message<AnswerMessage>(pack_message(answer_message(item))), *request);
  CHECK(same.ordinal == 17);
  CHECK(same.itl_ms == item.itl_ms);
  CHECK(record(same.completion) == record(item.completion));
  item.completion.error = RequestError{"some_code", "words", "field", 3};
  const FinishedItem failed =
      finished_item(unpack_message<AnswerMessage>(pack_message(answer_message(item))), *request);
  REQUIRE(failed.completion.error.has_value());
  CHECK(failed.completion.error->code == "some_code");
  CHECK(failed.completion.line.index == 5);
}

TEST_CASE("messages come whole out of a stream, wherever it is cut") {
  const std::string bytes = frame(MessageKind::kRow, "first") + frame(MessageKind::kEnd, "") +
                            frame(MessageKind::kAnswer, std::string(300, 'x'));
  for (size_t cut = 0; cut <= bytes.size(); ++cut) {
    MessageBuffer buffer;
    std::vector<Message> messages;
    for (const std::string& part : {bytes.substr(0, cut), bytes.substr(cut)}) {
      buffer.add(part);
      while (auto message = buffer.next()) messages.push_back(std::move(*message));
    }
    REQUIRE(messages.size() == 3);
    CHECK(messages[0].payload == "first");
    CHECK(messages[1].kind == MessageKind::kEnd);
    CHECK(messages[2].payload == std::string(300, 'x'));
  }
}

}  // namespace llmb::test
