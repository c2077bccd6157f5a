// Lines for /v1/responses: read as the chat line that asks for the same, and answered by a Response object.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "io/request_parser.h"
#include "io/result_writer.h"
#include "tests/unit/parsed_line.h"

namespace llmb {
namespace {

using Json = nlohmann::json;

std::variant<InputRequest, ParseFailure> parse(const Json& body) {
  const Json line = {{"custom_id", "a"}, {"method", "POST"}, {"url", "/v1/responses"}, {"body", body}};
  RequestParser parser({}, {});
  InputLine input;
  input.bytes = line.dump();
  input.has_newline = true;
  return parser.parse(input);
}

InputRequest accepted(const Json& body) {
  auto parsed = parse(body);
  const auto* failure = std::get_if<ParseFailure>(&parsed);
  REQUIRE_MESSAGE(failure == nullptr, (failure != nullptr ? failure->error.message : ""));
  return std::get<InputRequest>(parsed);
}

RequestError refused(const Json& body) {
  auto parsed = parse(body);
  REQUIRE_MESSAGE(std::holds_alternative<ParseFailure>(parsed), body.dump());
  CHECK(std::get<ParseFailure>(parsed).form == ApiForm::kOpenAiResponses);
  return std::get<ParseFailure>(parsed).error;
}

Json messages_of(const Json& body) {
  return Json::parse(std::get<ChatMessages>(accepted(body).prompt).messages_json);
}

}  // namespace

TEST_CASE("input and instructions become a conversation") {
  CHECK(messages_of({{"model", "m"}, {"input", "Hi"}}) == Json::parse(R"([{"role":"user","content":"Hi"}])"));
  CHECK(messages_of({{"input", "Hi"}, {"instructions", "Be brief."}}) ==
        Json::parse(R"([{"role":"system","content":"Be brief."},{"role":"user","content":"Hi"}])"));
  CHECK(messages_of({{"input", Json::parse(R"([{"role":"user","content":[{"type":"input_text","text":"a"}]},
          {"type":"message","role":"assistant","content":[{"type":"output_text","text":"b","annotations":[]}]},
          {"type":"function_call","call_id":"1","name":"f","arguments":"{\"x\": 1}"},
          {"type":"function_call","call_id":"2","name":"g","arguments":"{}"},
          {"type":"function_call_output","call_id":"1","output":"7"}])")}}) ==
        Json::parse(R"([{"role":"user","content":[{"type":"text","text":"a"}]},
          {"role":"assistant","content":[{"type":"text","text":"b"}]},
          {"role":"assistant","content":"","tool_calls":[
            {"id":"1","type":"function","function":{"name":"f","arguments":{"x":1}}},
            {"id":"2","type":"function","function":{"name":"g","arguments":{}}}]},
          {"role":"tool","tool_call_id":"1","content":"7"}])"));
}

TEST_CASE("settings of the body are those of a chat line under other names") {
  const InputRequest request = accepted(Json::parse(R"({"model":"m","input":"Hi","max_output_tokens":20,"temperature":0.5,
      "top_p":0.9,"reasoning":{"effort":"low","summary":null},"top_logprobs":2,"include":["message.output_text.logprobs"],
      "tools":[{"type":"function","name":"f","parameters":{"type":"object"},"strict":false,"description":"d"}],
      "tool_choice":{"type":"function","name":"f"},"parallel_tool_calls":false,"store":false,"metadata":{"k":"v"},
      "previous_response_id":null,"truncation":"disabled"})"));
  CHECK(request.form == ApiForm::kOpenAiResponses);
  CHECK(request.model_name == "m");
  CHECK(request.params.stop.max_tokens == 20);
  CHECK(request.params.sampling.temperature == 0.5f);
  CHECK(request.params.sampling.num_logprobs == 2);
  const auto& chat = std::get<ChatMessages>(request.prompt);
  CHECK(chat.reasoning_effort == "low");
  CHECK(chat.tool_choice == ToolChoice::kNamed);
  CHECK(chat.tool_name == "f");
  CHECK(chat.has_one_call);
  CHECK(Json::parse(chat.tools_json)[0]["function"]["name"] == "f");
  const Json repeated = Json::parse("{" + request.settings_json + "}");
  CHECK(repeated["metadata"]["k"] == "v");
  CHECK(repeated["max_output_tokens"] == 20);
  CHECK(repeated["tools"][0]["name"] == "f");
  CHECK(Json::parse("{" + accepted({{"input", "x"}}).settings_json + "}")["tool_choice"] == "auto");
  CHECK(!accepted({{"input", "x"}}).params.sampling.num_logprobs);
  CHECK(!accepted({{"input", "x"}}).params.stop.max_tokens);
}

TEST_CASE("text.format asks for a form, and errors name it") {
  const auto format = [](const char* text) { return Json{{"input", "x"}, {"text", {{"format", Json::parse(text)}}}}; };
  CHECK(accepted(format(R"({"type":"text"})")).params.form == nullptr);
  CHECK(accepted(format(R"({"type":"json_object"})")).params.form->field == "text.format");
  const auto form = accepted(format(R"({"type":"json_schema","name":"n","strict":true,"schema":{"type":"object"}})")).params.form;
  CHECK(form->field == "text.format.schema");
  CHECK(form->is_strict);
  CHECK(form->text == R"({"type":"object"})");
  CHECK(refused(format(R"({"type":"grammar"})")).param == "text.format.type");
  CHECK(refused(format(R"({"type":"json_schema","name":"n"})")).param == "text.format.schema");
  CHECK(refused(format("[]")).param == "text.format");
}

TEST_CASE("what refers to a server's memory, and what is not built, is refused by name") {
  for (const auto& [name, value] : std::vector<std::pair<const char*, Json>>{
           {"previous_response_id", "resp_1"}, {"conversation", "c"}, {"store", true}, {"background", true},
           {"prompt", {{"id", "p"}}}, {"stream", true}, {"max_tool_calls", 3}, {"truncation", "auto"},
           {"include", {"reasoning.encrypted_content"}}}) {
    CAPTURE(name);
    const RequestError error = refused({{"input", "x"}, {name, value}});
    CHECK(error.code == "unsupported_field");
    CHECK(error.param == name);
  }
  for (const auto& [body, param] : std::vector<std::pair<const char*, const char*>>{
           {R"({"model":"m"})", "input"}, {R"({"input":""})", "input"}, {R"({"input":[]})", "input"}, {R"({"input":5})", "input"},
           {R"({"input":"x","instructions":5})", "instructions"}, {R"({"input":[5]})", "input[0]"},
           {R"({"input":[{"type":"item_reference","id":"x"}]})", "input[0].type"},
           {R"({"input":[{"role":"user","content":[{"type":"input_image","image_url":"x"}]}]})", "input[0].content[0].type"},
           {R"({"input":[{"role":"user"}]})", "input[0].content"}, {R"({"input":[{"content":"x"}]})", "input[0].role"},
           {R"({"input":[{"type":"function_call","name":"f"}]})", "input[0].call_id"},
           {R"({"input":"x","tools":[{"type":"web_search"}]})", "tools[0].type"},
           {R"({"input":"x","reasoning":{"summary":"auto"}})", "reasoning.summary"},
           {R"({"input":"x","reasoning":{"effort":"lots"}})", "reasoning.effort"},
           {R"({"input":"x","text":{"verbosity":"low"}})", "text.verbosity"},
           {R"({"input":"x","max_output_tokens":0})", "max_output_tokens"}, {R"({"input":"x","max_tokens":5})", "max_tokens"},
           {R"({"input":"x","messages":[]})", "messages"}, {R"({"input":"x","top_logprobs":21})", "top_logprobs"},
           {R"({"input":"x","temperature":-1})", "temperature"}, {R"({"input":"x","n":2})", "n"}}) {
    CAPTURE(body);
    CHECK(refused(Json::parse(body)).param == param);
  }
}

TEST_CASE("an answer is a Response with its items") {
  Completion completion;
  completion.form = ApiForm::kOpenAiResponses;
  completion.id_json = "\"a\"";
  completion.model_name = "m";
  completion.settings_json = R"("tools":[],"temperature":null)";
  completion.num_prompt_tokens = 5;
  Choice choice;
  choice.text = "<think>t</think>c";
  choice.num_output_tokens = 7;
  choice.num_reasoning_tokens = 3;
  choice.parts = AnswerParts{"c", true, "t", {{"f", "{\"x\":1}"}, {"f", "{}"}}};
  completion.choices = {choice};
  const Json body = Json::parse(ResultFormatter().format(completion))["response"]["body"];
  CHECK(body["object"] == "response");
  CHECK(body["status"] == "completed");
  CHECK(body["temperature"] == nullptr);
  REQUIRE(body["output"].size() == 4);
  CHECK(body["output"][0]["type"] == "reasoning");
  CHECK(body["output"][0]["content"][0]["text"] == "t");
  CHECK(body["output"][1]["content"][0]["text"] == "c");
  CHECK(body["output"][2]["name"] == "f");
  CHECK(body["output"][2]["arguments"] == "{\"x\":1}");
  CHECK(body["output"][2]["call_id"] != body["output"][3]["call_id"]);
  completion.choices[0].parts->has_short_call_ids = true;
  const Json mistral = Json::parse(ResultFormatter().format(completion))["response"]["body"]["output"];
  CHECK(mistral[2]["call_id"].get<std::string>().size() == 9);
  CHECK(mistral[2]["call_id"] != mistral[3]["call_id"]);
  CHECK(mistral[2]["id"] == body["output"][2]["id"]);
  CHECK(body["usage"]["output_tokens_details"]["reasoning_tokens"] == 3);
  CHECK(body["usage"]["total_tokens"] == 12);
  completion.choices[0].parts.reset();
  completion.choices[0].finish_reason = FinishReason::kLength;
  const Json cut = Json::parse(ResultFormatter().format(completion))["response"]["body"];
  CHECK(cut["status"] == "incomplete");
  CHECK(cut["incomplete_details"]["reason"] == "max_output_tokens");
  REQUIRE(cut["output"].size() == 1);
  CHECK(cut["output"][0]["content"][0]["text"] == "<think>t</think>c");
}

}  // namespace llmb
