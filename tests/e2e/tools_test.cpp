// Calls of tools and reasoning, through the program: asked-for calls satisfy the schemas, and no byte depends on the
// schedule.
#include <doctest/doctest.h>

#include <algorithm>
#include <cctype>
#include <set>

#include "tests/e2e/run.h"

namespace llmb::test {

namespace {

using Json = nlohmann::json;

const Json kTools = Json::parse(R"json([
    {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object",
        "properties": {"city": {"type": "string", "maxLength": 12}, "unit": {"enum": ["C", "F"]}},
        "required": ["city", "unit"], "additionalProperties": false}}},
    {"type": "function", "function": {"name": "add", "strict": true, "parameters": {"type": "object",
        "$defs": {"n": {"type": "integer", "minimum": 0, "maximum": 99}},
        "properties": {"a": {"$ref": "#/$defs/n"}, "b": {"$ref": "#/$defs/n"}},
        "required": ["a", "b"], "additionalProperties": false}}},
    {"type": "function", "function": {"name": "now"}}])json");

bool is_valid_call(const Json& call) {
  const std::string name = call["function"]["name"];
  const Json arguments = Json::parse(call["function"]["arguments"].get<std::string>(), nullptr, false);
  if (!arguments.is_object()) return false;
  if (name == "now") return arguments.empty();
  if (name == "add")
    return arguments.size() == 2 && arguments["a"].is_number_integer() && arguments["a"] >= 0 && arguments["a"] <= 99 &&
           arguments["b"].is_number_integer() && arguments["b"] >= 0 && arguments["b"] <= 99;
  return name == "get_weather" && arguments.size() == 2 && arguments["city"].is_string() &&
         arguments["city"].get<std::string>().size() <= 48 && (arguments["unit"] == "C" || arguments["unit"] == "F");
}

bool is_id(const std::string& id, bool is_short) {
  const bool is_plain = std::all_of(id.begin() + (is_short ? 0 : 5), id.end(), [](unsigned char c) { return std::isalnum(c); });
  return is_plain && (is_short ? id.size() == 9 : id.starts_with("call_") && id.size() == 29);
}

Json chat_line(int id, Json body) {
  if (!body.contains("messages")) body["messages"] = {{{"role", "user"}, {"content", "Is it warm in Bern?"}}};
  body["model"] = "m";
  return {{"custom_id", std::to_string(id)}, {"method", "POST"}, {"url", "/v1/chat/completions"}, {"body", body}};
}

std::string text_of(const std::vector<Json>& lines) {
  std::string text;
  for (const Json& line : lines) text += line.dump() + "\n";
  return text;
}

// Lines that ask for calls in every way.
std::vector<Json> call_lines(int count) {
  std::vector<Json> lines;
  for (int i = 0; i < count; ++i) {
    Json body = {{"tools", kTools}, {"tool_choice", "required"}, {"max_tokens", 300}, {"seed", i}};
    if (i % 3 == 1) body["tool_choice"] = {{"type", "function"}, {"function", {{"name", kTools[i % 2]["function"]["name"]}}}};
    if (i % 4 == 1) body["n"] = 2;
    if (i % 5 == 2) body["parallel_tool_calls"] = false;
    body["temperature"] = i % 2;
    lines.push_back(chat_line(i, body));
  }
  return lines;
}

const Json& choices_of(const Json& record) {
  REQUIRE_MESSAGE(record["response"]["status_code"] == 200, record.dump());
  return record["response"]["body"]["choices"];
}

Json error_of(const Json& line, std::vector<std::string> arguments = {}) {
  const Json record = answer(line.dump(), std::move(arguments));
  REQUIRE_MESSAGE(record.contains("response"), record.dump());
  return record["response"]["body"].value("error", Json());
}

}  // namespace

TEST_CASE("every call that is asked for parses, names a tool and satisfies its schema, in each format") {
  for (const char* format : {"hermes", "llama3_json", "mistral", "openai", "gemma4", "functiongemma"}) {
    CAPTURE(format);
    const ProcessResult result = run_llm_batch({"--tool-call-parser", format}, text_of(call_lines(24)));
    REQUIRE_MESSAGE(result.exit_code == 0, result.err);
    int num_calls = 0;
    std::set<std::string> ids;
    for (const Json& record : parse_lines(result.out)) {
      const int i = std::stoi(record["custom_id"].get<std::string>());
      for (const Json& choice : choices_of(record)) {
        if (choice["finish_reason"] == "length") continue;  // of several calls the last is cut
        CHECK(choice["finish_reason"] == "tool_calls");
        REQUIRE_MESSAGE(choice["message"].contains("tool_calls"), record.dump());
        CHECK(choice["message"]["content"] == nullptr);
        const Json& calls = choice["message"]["tool_calls"];
        if (i % 3 == 1) CHECK(calls[0]["function"]["name"] == kTools[i % 2]["function"]["name"]);
        if (i % 3 == 1 || i % 5 == 2) CHECK(calls.size() == 1);
        for (const Json& call : calls) {
          CHECK_MESSAGE(is_valid_call(call), call.dump());
          CHECK(ids.insert(call["id"]).second);
          CHECK(is_id(call["id"], format == std::string("mistral")));
          ++num_calls;
        }
      }
    }
    CHECK(num_calls >= 20);
  }
}

TEST_CASE("calls have the same bytes whatever the schedule, after preemption, and in a job that was killed") {
  const std::string input = text_of(call_lines(16));
  const std::vector<std::string> format = {"--tool-call-parser", "hermes", "--max-model-len", "512"};
  const auto with = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), format.begin(), format.end());
    return arguments;
  };
  const ProcessResult reference = run_llm_batch(with({"--batching", "none", "--threads", "1"}), input);
  REQUIRE_MESSAGE(reference.exit_code == 0, reference.err);
  const std::vector<std::vector<std::string>> schedules = {{},
                                                           {"--max-num-seqs", "3", "--max-num-batched-tokens", "17"},
                                                           {"--num-gpu-blocks-override", "40"},
                                                           {"--speculative", "lookup"}};
  for (const auto& schedule : schedules) {
    const ProcessResult result = run_llm_batch(with(schedule), input);
    CHECK_MESSAGE(result.exit_code == 0, result.err);
    CHECK(stable_output(result.out) == stable_output(reference.out));
  }
  const TemporaryDirectory dir;
  write_file(dir.file("in.jsonl"), input);
  const auto job = [&](const std::string& output) { return with({dir.file("in.jsonl"), "--max-num-seqs", "4", "-o", dir.file(output)}); };
  CHECK(run_killed(job("out.jsonl"), 16) > 0);
  CHECK(run_llm_batch(job("whole.jsonl")).exit_code == 0);
  CHECK(stable_output(read_file(dir.file("out.jsonl"))) == stable_output(read_file(dir.file("whole.jsonl"))));
  // Another way of taking answers apart is another job.
  auto other = job("out.jsonl");
  *std::find(other.begin(), other.end(), "hermes") = "mistral";
  const ProcessResult refused = run_llm_batch(other);
  CHECK(refused.exit_code == 7);
  CHECK(refused.err.find("tool_call_parser") != std::string::npos);
}

TEST_CASE("without a parser, without tools, and in native lines an answer stays whole") {
  const Json body = {{"tools", kTools}, {"max_tokens", 8}, {"temperature", 0}};
  const Json plain = choices_of(answer(chat_line(1, body).dump()))[0];
  CHECK(choices_of(answer(chat_line(1, body).dump(), {"--tool-call-parser", "hermes"}))[0] == plain);
  CHECK(!plain["message"].contains("tool_calls"));
  CHECK(!plain["message"].contains("reasoning_content"));
  const Json native = {{"messages", {{{"role", "user"}, {"content", "Hi"}}}}, {"tools", kTools}, {"tool_choice", "required"}};
  const Json record = answer(native.dump(), {"--tool-call-parser", "hermes"});
  REQUIRE_MESSAGE(record.contains("text"), record.dump());
  CHECK(record["text"].get<std::string>().starts_with("<tool_call>\n{\"name\": \""));
}

TEST_CASE("a call that cannot be asked for is an error record that says why") {
  const std::vector<std::string> hermes = {"--tool-call-parser", "hermes"};
  Json body = {{"tools", kTools}, {"tool_choice", "required"}};
  Json error = error_of(chat_line(1, body));
  CHECK(error["param"] == "tool_choice");
  CHECK(error["message"].get<std::string>().find("--tool-call-parser") != std::string::npos);
  body["tools"][1]["function"]["parameters"]["properties"]["a"] = {{"type", "array"}, {"items", {}}, {"uniqueItems", true}};
  error = error_of(chat_line(1, body), hermes);
  CHECK(error["param"] == "tools");
  CHECK_MESSAGE(error["message"].get<std::string>().find("uniqueItems") != std::string::npos, error.dump());
  CHECK_MESSAGE(error["message"].get<std::string>().find("#/properties/a") != std::string::npos, error.dump());
  CHECK(error["code"] == "unsupported_form");
  const auto refused = [&](const Json& fields, const char* param) {
    Json line = {{"tools", kTools}, {"tool_choice", "required"}};
    line.update(fields);
    const Json found = error_of(chat_line(1, line), hermes);
    REQUIRE_MESSAGE(found.is_object(), fields.dump());
    CHECK_MESSAGE(found["param"] == param, found.dump());
  };
  refused({{"tools", nullptr}}, "tool_choice");
  refused({{"tools", Json::array()}}, "tool_choice");
  refused({{"tool_choice", {{"type", "function"}, {"function", {{"name", "fly"}}}}}}, "tool_choice");
  refused({{"tool_choice", {{"type", "allowed_tools"}}}}, "tool_choice");
  refused({{"tool_choice", 5}}, "tool_choice");
  refused({{"response_format", {{"type", "json_object"}}}}, "response_format");
  refused({{"ignore_eos", true}}, "ignore_eos");
  refused({{"tools", {{{"type", "custom"}, {"custom", {{"name", "x"}}}}}}}, "tools[0].type");
  refused({{"tools", {kTools[2], kTools[2]}}}, "tools[1].function.name");
  refused({{"tools", {{{"type", "function"}, {"function", {{"name", "a b"}}}}}}}, "tools[0].function.name");
  refused({{"parallel_tool_calls", 1}}, "parallel_tool_calls");
  // In a dry run, too.
  const ProcessResult dry = run_llm_batch({"--dry-run", "--tool-call-parser", "hermes"}, chat_line(1, body).dump() + "\n");
  CHECK(dry.exit_code == 3);
  CHECK(dry.err.find("#/properties/a") != std::string::npos);
}

}  // namespace llmb::test
