// echo beside logprobs, through the program: the prompt's tokens stand in front of the answer's, with their offsets.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "tests/e2e/run.h"

namespace llmb::test {

namespace {

using Json = nlohmann::json;

std::string completion(int id, Json body) {
  body["model"] = "m";
  return Json({{"custom_id", std::to_string(id)}, {"method", "POST"}, {"url", "/v1/completions"}, {"body", body}}).dump() +
         "\n";
}

// The choices of each line that was answered, by its id.
std::map<std::string, Json> choices_of(const std::string& input) {
  std::map<std::string, Json> choices;
  for (const Json& record : parse_lines(run_llm_batch({}, input).out))
    choices[record["custom_id"]] = record["response"]["body"]["choices"];
  return choices;
}

size_t num_characters(const std::string& text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

}  // namespace

TEST_CASE("echoed log-probabilities are those of the prompt and of the answer, the first one null") {
  const Json plain = {{"prompt", "Once upon a time"}, {"max_tokens", 5}, {"temperature", 0}, {"logprobs", 2}};
  Json echoed = plain, scored = plain, unanswered = plain;
  echoed["echo"] = unanswered["echo"] = true;
  unanswered["max_tokens"] = 0;
  scored["prompt_logprobs"] = 2;
  auto of = choices_of(completion(0, plain) + completion(1, echoed) + completion(2, scored) + completion(3, unanswered));
  const Json answer = of["0"][0]["logprobs"], all = of["1"][0]["logprobs"], prompt = of["3"][0]["logprobs"];
  CHECK(of["1"][0]["text"] == "Once upon a time" + of["0"][0]["text"].get<std::string>());
  CHECK(of["3"][0]["text"] == "Once upon a time");
  CHECK(of["3"][0]["finish_reason"] == "length");
  CHECK(!of["1"][0].contains("prompt_logprobs"));
  const size_t num_prompt = prompt["tokens"].size();
  REQUIRE(all["tokens"].size() == num_prompt + 5);
  CHECK(all["token_logprobs"][0] == nullptr);
  CHECK(all["top_logprobs"][0] == nullptr);
  const Json scores = of["2"][0]["prompt_logprobs"];
  REQUIRE(scores.size() == num_prompt);
  std::string text;
  for (size_t i = 0; i < all["tokens"].size(); ++i) {
    CHECK(all["text_offset"][i] == num_characters(text));
    text += all["tokens"][i].get<std::string>();
    for (const char* field : {"tokens", "token_logprobs", "top_logprobs"})
      CHECK(all[field][i] == (i < num_prompt ? prompt[field][i] : answer[field][i - num_prompt]));
    if (i == 0 || i >= num_prompt) continue;
    bool is_scored = false;
    for (const auto& [token, detail] : scores[i].items()) is_scored |= detail["logprob"] == all["token_logprobs"][i];
    CHECK(is_scored);
  }
  CHECK(text == of["1"][0]["text"]);
}

TEST_CASE("echoed log-probabilities do not depend on the schedule, and stand in each of several answers") {
  std::string input;
  for (int i = 0; i < 12; ++i) {
    Json body = {{"prompt", std::string("Once upon a time there was a fox, é").substr(0, i % 2 == 0 ? 36 : 4 + i)},
                 {"max_tokens", i % 4}, {"seed", i}, {"n", 1 + i % 3}, {"echo", true}, {"logprobs", i % 2}};
    input += completion(i, body);
  }
  const ProcessResult reference = run_llm_batch({"--batching", "none", "--threads", "1", "--max-model-len", "128"}, input);
  REQUIRE_MESSAGE(reference.exit_code == 0, reference.err);
  for (const Json& record : parse_lines(reference.out)) {
    const Json& body = record["response"]["body"];
    for (const Json& choice : body["choices"]) {
      CHECK(choice["logprobs"]["token_logprobs"][0] == nullptr);
      CHECK(choice["logprobs"]["tokens"].size() >= body["usage"]["prompt_tokens"]);
    }
  }
  for (const std::vector<std::string>& schedule :
       {std::vector<std::string>{}, {"--max-num-seqs", "3", "--max-num-batched-tokens", "5"},
        {"--num-gpu-blocks-override", "12"}, {"--speculative", "lookup"}, {"--workers", "2"}}) {
    const ProcessResult result = run_llm_batch(with(schedule, {"--max-model-len", "128"}), input);
    CHECK_MESSAGE(result.exit_code == 0, result.err);
    CHECK(stable_output(result.out) == stable_output(reference.out));
  }
}

TEST_CASE("of a prompt that was cut, and beside beams, no log-probabilities are echoed: refused by name") {
  const Json base = {{"prompt", "Once upon a time"}, {"max_tokens", 2}, {"echo", true}, {"logprobs", 1}};
  Json cut = base, other = base;
  cut["truncate_prompt_tokens"] = 2;
  other["prompt_logprobs"] = 2;
  for (const auto& [line, param] : {std::pair{cut, "echo"}, {other, "prompt_logprobs"}})
    CHECK(answer(line.dump())["error"]["param"] == param);
  Json beams = base;
  beams["use_beam_search"] = true, beams["n"] = 2, beams["temperature"] = 0;
  CHECK(answer(beams.dump()).contains("error"));
  CHECK(answer(Json({{"prompt", "Once"}, {"max_tokens", 0}}).dump())["error"]["param"] == "max_tokens");
}

}  // namespace llmb::test
