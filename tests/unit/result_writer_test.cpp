// The records as a reader sees them: exact text of each form, and that it is JSON whatever the text.
#include "io/result_writer.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

#include "base/check.h"

namespace llmb {

namespace {

using Json = nlohmann::ordered_json;

Completion example(ApiForm form = ApiForm::kNative) {
  Completion c;
  c.line = {41, "in.jsonl", 7, 900, 0x0123456789ABCDEF};
  c.form = form;
  c.id_json = "\"a-1\"";
  c.model_name = "tiny";
  c.choices.emplace_back();
  c.choices[0].text = "a \"b\"\n";
  c.choices[0].token_ids = {5, 6};
  c.choices[0].stop_token = 2;
  c.num_prompt_tokens = 3;
  c.choices[0].num_output_tokens = 2;
  c.latency = {0.5, 10.25, 3, 1013.2504, 2.9996, 3.0004, 3.5, 1, 12};
  return c;
}

void add_logprobs(Completion& c) {
  c.choices[0].logprobs = {{{5, -0.5f}, {{5, -0.5f}, {9, -1.25f}}},
                           {{6, -3.0f}, {{8, -0.25f}, {4, -std::numeric_limits<float>::infinity()}}}};
  c.choices[0].logprob_texts = {"a ", "a ", "\xC3", "\xE2\x82", "z", "z"};
}

const std::string kMetrics =
    R"("metrics":{"queue_ms":0.5,"ttft_ms":10.25,"tpot_ms":3,"e2e_ms":1013.25,"itl_p50_ms":3,"itl_p90_ms":3,"itl_p99_ms":3.5,"num_preemptions":1,"cached_tokens":12,"drafted_tokens":0,"accepted_tokens":0}})";

std::string format(const Completion& c, bool metrics = true) {
  return ResultFormatter({metrics, {0x1234, 1700000000}}).format(c);
}

}  // namespace

TEST_CASE("a native record, with metrics last or without them") {
  const std::string head =
      R"({"index":41,"id":"a-1","text":"a \"b\"\n","finish_reason":"stop","stop_reason":2,)"
      R"("usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5},"hash":"0123456789abcdef")";
  CHECK(format(example()) == head + "," + kMetrics + "\n");
  CHECK(format(example(), false) == head + "}\n");
}

TEST_CASE("guessed tokens stand in the metrics, of all drafters and of each") {
  Completion c = example();
  c.latency.drafted = {{"lookup", 3, 24, 18}, {"draft", 6, 10, 7}};
  const std::string record = format(c);
  const std::string tail =
      R"("cached_tokens":12,"drafted_tokens":34,"accepted_tokens":25,"speculation":{)"
      R"("lookup":{"drafted_tokens":24,"accepted_tokens":18,"steps":3,"tokens_per_step":7},)"
      R"("draft":{"drafted_tokens":10,"accepted_tokens":7,"steps":6,"tokens_per_step":2.167}}}})" "\n";
  CHECK_MESSAGE(record.ends_with(tail), record);
  CHECK(record.starts_with(format(example(), false).substr(0, format(example(), false).size() - 2)));
  CHECK(format(c, false) == format(example(), false));
}

TEST_CASE("format_to appends, record by record") {
  std::string out;
  const ResultFormatter formatter({false});
  formatter.format_to(out, example());
  formatter.format_to(out, example());
  CHECK(out == format(example(), false) + format(example(), false));
}

TEST_CASE("several choices: OpenAI records number them in choices, native ones in outputs; all their tokens count") {
  for (const ApiForm form : {ApiForm::kOpenAiChat, ApiForm::kOpenAiCompletion}) {
    Completion c = example(form);
    const Json one = Json::parse(format(c))["response"]["body"]["choices"];
    c.choices.push_back(c.choices[0]);
    c.choices[1].text = "other";
    c.choices[1].num_output_tokens = 5;
    c.choices[1].finish_reason = FinishReason::kLength;
    const Json body = Json::parse(format(c))["response"]["body"];
    REQUIRE(body["choices"].size() == 2);
    CHECK(body["choices"][0] == one[0]);
    const Json& second = body["choices"][1];
    CHECK(second["index"] == 1);
    CHECK((form == ApiForm::kOpenAiChat ? second["message"]["content"] : second["text"]) == "other");
    CHECK(second["finish_reason"] == "length");
    CHECK(body["usage"] == Json{{"prompt_tokens", 3}, {"completion_tokens", 7}, {"total_tokens", 10}});
    c.num_unreturned_tokens = 4;
    CHECK(Json::parse(format(c))["response"]["body"]["usage"]["completion_tokens"] == 11);
    c.choices.clear();
    CHECK_THROWS_AS((void)format(c), CheckFailure);
  }
}

TEST_CASE("a native record with outputs: exact text") {
  Completion c = example();
  c.return_token_ids = true;
  c.choices.push_back(c.choices[0]);
  c.choices[1].text = "z";
  c.choices[1].stop_token.reset();
  CHECK(format(c) ==
        R"({"index":41,"id":"a-1","outputs":[{"index":0,"text":"a \"b\"\n","finish_reason":"stop","stop_reason":2,)"
        R"("token_ids":[5,6]},{"index":1,"text":"z","finish_reason":"stop","stop_reason":null,"token_ids":[5,6]}],)"
        R"("usage":{"prompt_tokens":3,"completion_tokens":4,"total_tokens":7},"hash":"0123456789abcdef",)" +
            kMetrics + "\n");
  add_logprobs(c);
  c.choices[1].logprobs = c.choices[0].logprobs;
  c.choices[1].logprob_texts = c.choices[0].logprob_texts;
  const Json outputs = Json::parse(format(c))["outputs"];
  CHECK(outputs[1]["logprobs"] == outputs[0]["logprobs"]);
  CHECK(outputs[1]["logprobs"].size() == 2);
}

TEST_CASE("finish reasons, stop reasons and ids") {
  Completion c = example();
  c.id_json = "";
  c.choices[0].finish_reason = FinishReason::kLength;
  c.choices[0].stop_token.reset();
  Json record = Json::parse(format(c));
  CHECK(record["id"].is_null());
  CHECK(record["finish_reason"] == "length");
  CHECK(record["stop_reason"].is_null());
  c.id_json = "17";
  c.choices[0].finish_reason = FinishReason::kStop;
  c.choices[0].stop_string = "E\"ND";
  record = Json::parse(format(c));
  CHECK(record["id"] == 17);
  CHECK(record["stop_reason"] == "E\"ND");
}

TEST_CASE("token ids and logprobs stand between usage and hash, where asked for") {
  Completion c = example();
  c.return_token_ids = true;
  add_logprobs(c);
  const std::string record = format(c, false);
  CHECK(record ==
        R"({"index":41,"id":"a-1","text":"a \"b\"\n","finish_reason":"stop","stop_reason":2,)"
        R"("usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5},"token_ids":[5,6],"logprobs":[)"
        R"({"token":"a ","token_id":5,"logprob":-0.5,"bytes":[97,32],"top_logprobs":[)"
        R"({"token":"a ","token_id":5,"logprob":-0.5,"bytes":[97,32]},)"
        "{\"token\":\"\xEF\xBF\xBD\",\"token_id\":9,\"logprob\":-1.25,\"bytes\":[195]}]},"
        "{\"token\":\"\xEF\xBF\xBD\xEF\xBF\xBD\",\"token_id\":6,\"logprob\":-3,\"bytes\":[226,130],\"top_logprobs\":["
        R"({"token":"z","token_id":8,"logprob":-0.25,"bytes":[122]},)"
        R"({"token":"z","token_id":4,"logprob":-9999,"bytes":[122]}]}],"hash":"0123456789abcdef"})"
        "\n");
}

TEST_CASE("an OpenAI chat record") {
  Completion c = example(ApiForm::kOpenAiChat);
  const std::string head =
      R"({"id":"batch_req_62884566fb53028d497009ad5dfb3f32","custom_id":"a-1","response":{"status_code":200,"request_id":"req_62884566fb53028d497009ad5dfb3f32","body":)"
      R"({"id":"chatcmpl-62884566fb53028d497009ad5dfb3f32","object":"chat.completion","created":1700000000,"model":"tiny","choices":[{"index":0,)"
      R"("message":{"role":"assistant","content":"a \"b\"\n","refusal":null},"logprobs":)";
  const std::string tail =
      R"("finish_reason":"stop","stop_reason":2}],"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}}},)"
      R"("error":null,"index":41,"hash":"0123456789abcdef",)";
  CHECK(format(c) == head + "null," + tail + kMetrics + "\n");
  add_logprobs(c);
  CHECK(
      format(c) ==
      head +
          R"({"content":[{"token":"a ","logprob":-0.5,"bytes":[97,32],"top_logprobs":[)"
          R"({"token":"a ","logprob":-0.5,"bytes":[97,32]},)"
          "{\"token\":\"\xEF\xBF\xBD\",\"logprob\":-1.25,\"bytes\":[195]}]},"
          "{\"token\":\"\xEF\xBF\xBD\xEF\xBF\xBD\",\"logprob\":-3,\"bytes\":[226,130],\"top_logprobs\":["
          R"({"token":"z","logprob":-0.25,"bytes":[122]},{"token":"z","logprob":-9999,"bytes":[122]}]}],"refusal":null},)" +
          tail + kMetrics + "\n");
}

TEST_CASE("an OpenAI completion record; tokens of the same text share a key, the better one's") {
  Completion c = example(ApiForm::kOpenAiCompletion);
  add_logprobs(c);
  const std::string text = format(c, false);
  const Json record = Json::parse(text);
  const Json& body = record["response"]["body"];
  CHECK(body["object"] == "text_completion");
  CHECK(body["id"] == "cmpl-62884566fb53028d497009ad5dfb3f32");
  CHECK(body["choices"][0]["text"] == "a \"b\"\n");
  CHECK(!record.contains("metrics"));
  CHECK(body["choices"][0]["logprobs"].dump() ==
        "{\"tokens\":[\"a \",\"\xEF\xBF\xBD\xEF\xBF\xBD\"],\"token_logprobs\":[-0.5,-3],"
        "\"top_logprobs\":[{\"a "
        "\":-0.5,\"\xEF\xBF\xBD\":-1.25},{\"z\":-0.25,\"\xEF\xBF\xBD\xEF\xBF\xBD\":-3}],\"text_offset\":[0,2]}");
  CHECK(text.find("\"z\"") == text.rfind("\"z\""));
}

TEST_CASE("a native error record") {
  Completion c = example();
  c.id_json = "";
  c.error = RequestError{"invalid_value", "top_p must be …", "top_p", 17};
  CHECK(format(c) ==
        "{\"index\":41,\"id\":null,\"error\":{\"code\":\"invalid_value\",\"message\":\"top_p must be "
        "…\",\"param\":\"top_p\","
        "\"line\":\"in.jsonl:7\",\"byte_offset\":17},\"hash\":\"0123456789abcdef\"}\n");
  c.error = RequestError{"numeric_error", "x", std::nullopt, std::nullopt};
  const Json record = Json::parse(format(c));
  CHECK(record["error"]["param"].is_null());
  CHECK(record["error"]["byte_offset"].is_null());
}

TEST_CASE("an OpenAI error record tells the error in its response, and where it is") {
  Completion c = example(ApiForm::kOpenAiChat);
  c.error = RequestError{"unsupported_field", "n", "n", 3};
  CHECK(
      format(c) ==
      R"({"id":"batch_req_62884566fb53028d497009ad5dfb3f32","custom_id":"a-1","response":{"status_code":400,"request_id":"req_62884566fb53028d497009ad5dfb3f32","body":{"error":)"
      R"({"message":"n","type":"invalid_request_error","param":"n","code":"unsupported_field",)"
      R"("line":"in.jsonl:7","byte_offset":3}}},"error":null,)"
      R"("index":41,"hash":"0123456789abcdef"})"
      "\n");
  c.error->code = "numeric_error";
  CHECK(Json::parse(format(c))["response"]["status_code"] == 500);
}

TEST_CASE("ids depend on the job, the index and the line's bytes; no two indices of a job share one") {
  const auto id_of = [](uint64_t job, int64_t index, uint64_t hash) {
    Completion c = example(ApiForm::kOpenAiChat);
    c.line.index = index;
    c.line.content_hash = hash;
    return Json::parse(ResultFormatter({true, {job, 1}}).format(c))["id"].get<std::string>();
  };
  CHECK(id_of(1, 2, 3) == id_of(1, 2, 3));
  CHECK(id_of(1, 2, 3) != id_of(1, 2, 4));
  CHECK(id_of(1, 2, 3) != id_of(2, 2, 3));
  std::set<std::string> ids, first_halves;
  for (int64_t i = 0; i < 5000; ++i) {
    ids.insert(id_of(7, i, 9));
    first_halves.insert(id_of(7, i, 9).substr(10, 16));
  }
  CHECK(ids.size() == 5000);
  CHECK(first_halves.size() == 5000);
  Completion c = example(ApiForm::kOpenAiChat);
  CHECK(Json::parse(format(c, false))["response"]["body"]["created"] == 0);  // without metrics runs are equal
}

TEST_CASE("any bytes and any numbers give one line of valid JSON") {
  std::mt19937 random(3);
  const auto bytes = [&] {
    std::string out(random() % 20, '\0');
    for (char& b : out) b = static_cast<char>(random() % 2 ? random() : random() % 32);
    return out;
  };
  const double odd[] = {0, -1, 1e300, std::nan(""), std::numeric_limits<double>::infinity(), 1e-9, 123.4567};
  for (int round = 0; round < 5000; ++round) {
    Completion c = example(static_cast<ApiForm>(random() % 3));
    c.choices[0].text = bytes();
    c.model_name = bytes();
    c.choices[0].stop_string = bytes();
    c.line.source = bytes();
    c.latency.ttft_ms = odd[random() % std::size(odd)];
    c.latency.itl_p99_ms = odd[random() % std::size(odd)];
    c.choices[0].logprobs = {{{1, static_cast<float>(odd[random() % std::size(odd)])}, {{2, -1.0f}}}};
    c.choices[0].logprob_texts = {bytes(), bytes()};
    if (random() % 3 == 0) c.error = RequestError{bytes(), bytes(), bytes(), 1};
    const std::string record = format(c);
    CHECK(record.find('\n') == record.size() - 1);
    if (!Json::accept(record)) FAIL("not JSON: ", record);
  }
}

TEST_CASE("texts that do not match the logprobs are a programmer's error") {
  Completion c = example();
  add_logprobs(c);
  c.choices[0].logprob_texts.pop_back();
  CHECK_THROWS_AS((void)format(c), CheckFailure);
}

}  // namespace llmb
