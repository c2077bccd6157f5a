// Answers that are kept for rows that ask for the same.
#include "job/packed_answer.h"

#include <doctest/doctest.h>

#include "io/result_writer.h"

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

}  // namespace llmb::test
