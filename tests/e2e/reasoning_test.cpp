// Reasoning, its budget, and the repetition stop, through the program.
#include <doctest/doctest.h>

#include <algorithm>

#include "tests/e2e/run.h"

namespace llmb::test {

namespace {

using Json = nlohmann::json;

// As the bundled model's, but that it opens reasoning where it may, and knows efforts.
const std::string kThinkingTemplate =
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] | trim + '<|end|>' }}{% endfor %}"
    "{{ '<|assistant|>' }}{% if effort_shown is defined %}{{ reasoning_effort }}{% endif %}"
    "{% if enable_thinking is not defined or enable_thinking %}<think>{% else %}<think></think>{% endif %}";

Json chat_line(int id, Json body) {
  body["model"] = "m";
  if (!body.contains("messages")) body["messages"] = {{{"role", "user"}, {"content", "What is 70 + " + std::to_string(id) + "?"}}};
  return {{"custom_id", std::to_string(id)}, {"method", "POST"}, {"url", "/v1/chat/completions"}, {"body", body}};
}

struct TemplateFile {
  TemporaryDirectory dir;
  std::vector<std::string> arguments;

  TemplateFile() {
    write_file(dir.file("template.jinja"), kThinkingTemplate);
    arguments = {"--chat-template", dir.file("template.jinja")};
  }
  std::vector<std::string> with(std::vector<std::string> more) const {
    more.insert(more.end(), arguments.begin(), arguments.end());
    return more;
  }
};

// Tokens that spell the end tag, as this model cuts it.
size_t num_end_tokens(const TemplateFile& file) {
  const Json line = {{"messages", {{{"role", "user"}, {"content", "Hi"}}}}, {"thinking_token_budget", 0}, {"max_tokens", 64},
                     {"return_token_ids", true}, {"temperature", 0}};
  const Json record = answer(line.dump(), file.with({}));
  REQUIRE_MESSAGE(record.contains("text"), record.dump());
  CHECK(record["text"].get<std::string>().starts_with("</think>"));
  for (size_t count = 1; count <= 8; ++count) {
    Json cut = line;
    cut["max_tokens"] = count;
    if (answer(cut.dump(), file.with({}))["text"] == "</think>") return count;
  }
  return 0;
}

}  // namespace

TEST_CASE("reasoning that the prompt opens takes its budget and not a token more, whatever the schedule") {
  const TemplateFile file;
  const size_t num_end = num_end_tokens(file);
  REQUIRE(num_end > 0);
  std::string input;
  for (int i = 0; i < 18; ++i) {
    Json body = {{"thinking_token_budget", i % 6}, {"max_tokens", 40}, {"seed", i}, {"temperature", i % 2}, {"return_token_ids", true}};
    if (i % 3 == 2) body["response_format"] = {{"type", "json_object"}};
    if (i % 6 == 5) body["n"] = 2;
    input += chat_line(i, body).dump() + "\n";
  }
  const ProcessResult reference = run_llm_batch(file.with({"--batching", "none", "--max-model-len", "128"}), input);
  REQUIRE_MESSAGE(reference.exit_code == 0, reference.err);
  int num_bounded = 0;
  for (const Json& record : parse_lines(reference.out)) {
    const int i = std::stoi(record["custom_id"].get<std::string>());
    for (const Json& choice : record["response"]["body"]["choices"]) {
      const Json& message = choice["message"];
      REQUIRE_MESSAGE(message.contains("reasoning_content"), record.dump());
      CHECK(message["reasoning_content"].get<std::string>().find("</think>") == std::string::npos);
      num_bounded += choice["token_ids"].size() > i % 6 + num_end;
      const bool is_whole = choice["finish_reason"] == "stop";
      if (i % 3 == 2 && is_whole) CHECK(Json::parse(message["content"].get<std::string>(), nullptr, false).is_object());
    }
  }
  CHECK(num_bounded >= 12);
  const std::vector<std::vector<std::string>> schedules = {
      {}, {"--max-num-seqs", "3", "--max-num-batched-tokens", "7"}, {"--num-gpu-blocks-override", "12"},
      {"--speculative", "lookup"}};
  for (std::vector<std::string> schedule : schedules) {
    schedule.insert(schedule.end(), {"--max-model-len", "128"});
    const ProcessResult result = run_llm_batch(file.with(schedule), input);
    CHECK_MESSAGE(result.exit_code == 0, result.err);
    CHECK(stable_output(result.out) == stable_output(reference.out));
  }
  const TemporaryDirectory dir;
  write_file(dir.file("in.jsonl"), input);
  const auto job = file.with({dir.file("in.jsonl"), "-o", dir.file("out.jsonl"), "--max-num-seqs", "4", "--max-model-len", "128"});
  CHECK(run_killed(job, 10) > 0);
  CHECK(stable_output(read_file(dir.file("out.jsonl"))) == stable_output(reference.out));
}

TEST_CASE("behind the budget of a chat or responses line stands the end tag, then what its schema asks for") {
  const TemplateFile file;
  const int num_end = static_cast<int>(num_end_tokens(file));
  const Json schema = Json::parse(R"({"type": "object", "additionalProperties": false, "required": ["sum", "sure"],
      "properties": {"sum": {"type": "integer", "minimum": 0, "maximum": 199}, "sure": {"type": "boolean"}}})");
  std::string input;
  for (int i = 0; i < 20; ++i) {
    Json body = {{"model", "m"}, {"thinking_token_budget", i % 7}, {"seed", i}, {"temperature", i % 3 * 0.5}};
    const Json form = {{"name", "sum"}, {"strict", true}, {"schema", schema}};
    const std::string question = "What is 70 + " + std::to_string(i) + "?";
    if (i % 2 == 0) {
      body.update({{"max_tokens", 90}, {"n", 1 + i % 3}, {"response_format", {{"type", "json_schema"}, {"json_schema", form}}}});
      body["messages"] = {{{"role", "user"}, {"content", question}}};
    } else {
      body.update({{"max_output_tokens", 90}, {"input", question}, {"text", {{"format", form}}}});
      body["text"]["format"]["type"] = "json_schema";
      if (i % 4 == 1) body["reasoning"] = {{"effort", i % 8 == 1 ? "none" : "high"}};
    }
    input += Json{{"custom_id", std::to_string(i)}, {"method", "POST"}, {"body", body},
                  {"url", i % 2 == 0 ? "/v1/chat/completions" : "/v1/responses"}}.dump() + "\n";
  }
  const ProcessResult reference = run_llm_batch(file.with({"--batching", "none", "--max-model-len", "160"}), input);
  REQUIRE_MESSAGE(reference.exit_code == 0, reference.err);
  const auto check_form = [](const std::string& text) {
    const Json answer = Json::parse(text, nullptr, false);
    CHECK_MESSAGE((answer.is_object() && answer.size() == 2 && answer["sum"].is_number_integer() && answer["sum"] >= 0 &&
                   answer["sum"] <= 199 && answer["sure"].is_boolean()), text);
  };
  int num_whole = 0, num_bounded = 0;
  for (const Json& record : parse_lines(reference.out)) {
    const int i = std::stoi(record["custom_id"].get<std::string>());
    const Json& body = record["response"]["body"];
    for (const Json& choice : body.value("choices", Json::array())) {
      CHECK(choice["message"].contains("reasoning_content"));
      if (choice["finish_reason"] == "stop") ++num_whole, check_form(choice["message"]["content"]);
    }
    if (!body.contains("output")) continue;
    const int num_reasoning = body["usage"]["output_tokens_details"]["reasoning_tokens"];
    CHECK(num_reasoning <= (i % 8 == 1 ? 0 : i % 7 + num_end));
    num_bounded += i % 8 != 1 && num_reasoning == i % 7 + num_end;
    CHECK(body["output"].size() == (i % 8 == 1 ? 1 : 2));
    if (body["status"] == "completed") ++num_whole, check_form(body["output"].back()["content"][0]["text"]);
  }
  CHECK(num_whole >= 20);
  CHECK(num_bounded >= 5);
  const std::vector<std::vector<std::string>> schedules = {
      {}, {"--max-num-seqs", "3", "--max-num-batched-tokens", "7"}, {"--num-gpu-blocks-override", "16"},
      {"--speculative", "lookup"}, {"--speculative", "none", "--threads", "1"}, {"--workers", "2"}};
  for (std::vector<std::string> schedule : schedules) {
    schedule.insert(schedule.end(), {"--max-model-len", "160"});
    const ProcessResult result = run_llm_batch(file.with(schedule), input);
    CHECK_MESSAGE(result.exit_code == 0, result.err);
    CHECK(stable_output(result.out) == stable_output(reference.out));
  }
  const TemporaryDirectory dir;
  write_file(dir.file("in.jsonl"), input);
  CHECK(run_killed(file.with({dir.file("in.jsonl"), "-o", dir.file("out.jsonl"), "--max-num-seqs", "4", "--max-model-len", "160"}), 10) > 0);
  CHECK(stable_output(read_file(dir.file("out.jsonl"))) == stable_output(reference.out));
}

TEST_CASE("with a budget of b the end tag's tokens are b + 1 and the following of the answer") {
  const TemplateFile file;
  const size_t num_end = num_end_tokens(file);
  for (const size_t budget : {0, 1, 5, 15, 16, 17}) {
    Json line = {{"messages", {{{"role", "user"}, {"content", "Tell me a story."}}}}, {"thinking_token_budget", budget},
                 {"max_tokens", budget + num_end}, {"return_token_ids", true}, {"temperature", 0}, {"min_tokens", budget + num_end}};
    const std::string text = answer(line.dump(), file.with({}))["text"];
    CHECK_MESSAGE(text.ends_with("</think>"), text);
    line["max_tokens"] = line["min_tokens"] = budget + num_end - 1;
    CHECK(answer(line.dump(), file.with({}))["text"].get<std::string>().find("</think>") == std::string::npos);
  }
}

TEST_CASE("reasoning_effort becomes the template's variables, or an error record") {
  const TemplateFile file;
  const auto prompt_tokens = [&](Json body) {
    body["max_tokens"] = 1;
    const Json record = answer(chat_line(1, body).dump(), file.arguments);
    REQUIRE_MESSAGE(record["response"]["status_code"] == 200, record.dump());
    return record["response"]["body"]["usage"]["prompt_tokens"].get<int>();
  };
  const int thinking = prompt_tokens(Json::object());
  CHECK(prompt_tokens({{"reasoning_effort", "high"}}) == thinking);
  CHECK(prompt_tokens({{"reasoning_effort", "none"}}) > thinking);  // </think> stands there
  CHECK(prompt_tokens({{"reasoning_effort", "none"}, {"chat_template_kwargs", {{"enable_thinking", true}}}}) == thinking);
  CHECK(prompt_tokens({{"reasoning_effort", "high"}, {"chat_template_kwargs", {{"effort_shown", 1}}}}) > thinking);
  const Json refused = answer(chat_line(1, {{"reasoning_effort", "low"}}).dump());
  CHECK(refused["response"]["body"]["error"]["param"] == "reasoning_effort");
  const Json budget = answer(chat_line(1, {{"thinking_token_budget", 5}}).dump());
  CHECK(budget["response"]["body"]["error"]["param"] == "thinking_token_budget");
}

TEST_CASE("a row that loops ends with a reason of its own, at the same token whatever the schedule") {
  std::string input;
  for (int i = 0; i < 12; ++i) {
    Json line = {{"id", i}, {"prompt", "ha ha ha ha ha ha ha ha"}, {"max_tokens", 120}, {"temperature", i % 2}, {"seed", i}};
    line["logit_bias"] = {{std::to_string(300 + i), 100}};  // the same token again and again
    if (i % 3 == 0) line.erase("logit_bias");
    if (i % 4 == 1) line["n"] = 2;
    line["return_token_ids"] = true;
    input += line.dump() + "\n";
  }
  const std::vector<std::string> stop = {"--stop-repetition", "16"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), stop.begin(), stop.end());
    return more;
  };
  const ProcessResult reference = run_llm_batch(with({"--batching", "none"}), input);
  REQUIRE_MESSAGE(reference.exit_code == 0, reference.err);
  int num_loops = 0;
  for (const Json& record : parse_lines(reference.out)) {
    const Json outputs = record.contains("outputs") ? record["outputs"] : Json::array({record});
    for (const Json& output : outputs) {
      if (output["finish_reason"] != "repetition") continue;
      ++num_loops;
      const auto tokens = output["token_ids"].get<std::vector<int>>();
      bool repeats = false;
      for (size_t period = 1; period <= 4; ++period)
        repeats = repeats || std::equal(tokens.end() - 16, tokens.end() - static_cast<std::ptrdiff_t>(period),
                                        tokens.end() - 16 + static_cast<std::ptrdiff_t>(period));
      CHECK(repeats);
    }
  }
  CHECK(num_loops >= 6);
  for (const auto& schedule : std::vector<std::vector<std::string>>{
           {}, {"--max-num-seqs", "2", "--max-num-batched-tokens", "9"}, {"--speculative", "lookup"}, {"--num-gpu-blocks-override", "20", "--max-model-len", "256"}}) {
    const ProcessResult result = run_llm_batch(with(schedule), input);
    CHECK_MESSAGE(result.exit_code == 0, result.err);
    CHECK(stable_output(result.out) == stable_output(reference.out));
  }
  const TemporaryDirectory dir;
  write_file(dir.file("in.jsonl"), input);
  CHECK(run_llm_batch(with({dir.file("in.jsonl"), "-o", dir.file("out.jsonl")})).exit_code == 0);
  const ProcessResult other = run_llm_batch({dir.file("in.jsonl"), "-o", dir.file("out.jsonl")});
  CHECK(other.exit_code == 7);
  CHECK(other.err.find("stop_repetition") != std::string::npos);
}

TEST_CASE("a form is refused where the token that ends reasoning is the model's end of sequence") {
  const Json line = chat_line(1, {{"response_format", {{"type", "json_object"}}}});
  const Json error = answer(line.dump(), {"--reasoning-parser", "openai_gptoss"})["response"]["body"]["error"];
  CHECK(error["param"] == "response_format");
  CHECK(error["code"] == "unsupported_form");
}

TEST_CASE("echo puts the prompt in front of the answer") {
  const Json line = {{"prompt", "Once upon a time"}, {"max_tokens", 8}, {"temperature", 0}};
  Json echoed = line;
  echoed["echo"] = true;
  const std::string text = answer(line.dump())["text"];
  CHECK(answer(echoed.dump())["text"] == "Once upon a time" + text);
  CHECK(answer(echoed.dump())["usage"] == answer(line.dump())["usage"]);
}

}  // namespace llmb::test
