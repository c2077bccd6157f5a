// Fields that change what is generated and where it ends.
#include <doctest/doctest.h>

#include <cmath>

#include "tests/e2e/run.h"
#include "tokenizer/tokenizer.h"
#include "tests/support/source_dir.h"

namespace llmb::test {

namespace {

std::string story(const std::string& fields) {
  return R"({"prompt":"Once upon a time","max_tokens":60,)" + fields + "}";
}
std::string text_of(const nlohmann::json& record) {
  return record.value("text", std::string("no text: ") + record.dump());
}

}  // namespace

TEST_CASE("FAULTS 28: a stop string cuts exactly, wherever token borders are") {
  const std::string full = text_of(answer(story(R"("temperature":0)")));
  REQUIRE(full.size() > 60);
  // Every stop of four bytes out of the text, also those that begin or end inside a token.
  std::string input, with_stop;
  std::vector<std::string> stops;
  for (size_t at = 5; at + 4 < full.size() && stops.size() < 30; at += 3) {
    stops.push_back(full.substr(at, 4));
    input += story("\"stop\":" + nlohmann::json(stops.back()).dump()) + "\n";
    with_stop +=
        story("\"include_stop_str_in_output\":true,\"stop\":[" + nlohmann::json(stops.back()).dump() + "]") + "\n";
  }
  const auto cut = parse_lines(run_llm_batch({"--order", "input"}, input).out);
  const auto kept = parse_lines(run_llm_batch({"--order", "input"}, with_stop).out);
  REQUIRE(cut.size() == stops.size());
  for (size_t i = 0; i < stops.size(); ++i) {
    INFO(stops[i]);
    const size_t at = full.find(stops[i]);
    CHECK(text_of(cut[i]) == full.substr(0, at));
    CHECK(cut[i]["finish_reason"] == "stop");
    CHECK(cut[i]["stop_reason"] == stops[i]);
    CHECK(text_of(kept[i]) == full.substr(0, at + 4));
  }
}

TEST_CASE("a completion keeps its first space, also with a tokenizer whose texts begin with one that is not shown") {
  const std::string dir = source_dir() + "/data/fixtures/tokenizers/llama2";
  const auto tokenizer = Tokenizer::load(dir);
  REQUIRE(tokenizer.ok());
  const std::string the = std::to_string(*(*tokenizer)->token_to_id("▁the"));
  const auto text_after = [&](const std::string& fields) {
    return text_of(answer(R"({"max_tokens":2,"temperature":0,"logit_bias":{")" + the + "\":100}," + fields + "}",
                          {"--tokenizer", dir}));
  };
  CHECK(text_after(R"("prompt":"hello")") == " the the");
  CHECK(text_after(R"("prompt":"hello","stop":" the t")") == "");
  CHECK(text_after(R"("prompt_token_ids":[1])") == "the the");
}

TEST_CASE("stop tokens, end of sequence, min_tokens and max_tokens") {
  const std::string question = R"("messages":[{"role":"user","content":"What is 70 + 80?"}])";
  const auto plain = answer("{" + question + R"(,"return_token_ids":true})");
  const int length = plain["usage"]["completion_tokens"];
  REQUIRE(plain["token_ids"].size() == static_cast<size_t>(length));
  const int third = plain["token_ids"][2];

  const auto stopped =
      answer("{" + question + R"(,"return_token_ids":true,"stop_token_ids":[)" + std::to_string(third) + "]}");
  CHECK(stopped["usage"]["completion_tokens"].get<int>() <= 3);
  CHECK(stopped["stop_reason"] == third);
  CHECK(plain["text"].get<std::string>().starts_with(text_of(stopped)));

  const auto exact = answer("{" + question + R"(,"max_tokens":)" + std::to_string(length) + "}");
  CHECK(exact["finish_reason"] == "stop");
  const auto shorter = answer("{" + question + R"(,"max_tokens":)" + std::to_string(length - 1) + "}");
  CHECK(shorter["finish_reason"] == "length");
  CHECK(shorter["text"] == plain["text"]);  // only the end-of-sequence token is missing

  const auto longer = answer("{" + question + R"(,"min_tokens":)" + std::to_string(length + 5) + "}");
  CHECK(longer["usage"]["completion_tokens"].get<int>() >= length + 5);
  const auto ignoring = answer("{" + question + R"(,"ignore_eos":true,"max_tokens":40})");
  CHECK(ignoring["usage"]["completion_tokens"] == 40);
}

TEST_CASE("a flag is the default, the line's field wins") {
  const std::string line = R"({"prompt":"Once upon a time"})";
  CHECK(answer(line, {"--max-tokens", "3"})["usage"]["completion_tokens"] == 3);
  CHECK(answer(R"({"prompt":"Once upon a time","max_tokens":4})",
               {"--max-tokens", "3"})["usage"]["completion_tokens"] == 4);
  CHECK(answer(line, {"--max-tokens", "2", "--return-token-ids"})["token_ids"].size() == 2);
  CHECK(answer(line, {"--stop", "e"})["stop_reason"] == "e");
  CHECK_FALSE(answer(line, {"--max-tokens", "2", "--no-metrics"}).contains("metrics"));
}

TEST_CASE("sampling depends on the seed, the line's index and nothing else") {
  const std::string line = story(R"("temperature":1.5)") + "\n";
  const auto first = parse_lines(run_llm_batch({"--order", "input", "--seed", "1"}, line + line).out);
  const auto again =
      parse_lines(run_llm_batch({"--order", "input", "--seed", "1", "--max-num-seqs", "1"}, line + line).out);
  const auto other = parse_lines(run_llm_batch({"--order", "input", "--seed", "2"}, line + line).out);
  CHECK(first[0]["text"] == again[0]["text"]);
  CHECK(first[1]["text"] == again[1]["text"]);
  CHECK(first[0]["text"] != first[1]["text"]);
  CHECK(first[0]["text"] != other[0]["text"]);
  // A seed of the line's own makes its place in the file irrelevant.
  const std::string seeded = story(R"("temperature":1.5,"seed":9)") + "\n";
  const auto pair = parse_lines(run_llm_batch({"--order", "input", "--seed", "3"}, seeded + seeded).out);
  CHECK(pair[0]["text"] == pair[1]["text"]);
}

TEST_CASE("top_k 1, a tiny top_p and min_p 1 are greedy; logit_bias and penalties act") {
  const std::string greedy = text_of(answer(story(R"("temperature":0)")));
  CHECK(text_of(answer(story(R"("temperature":2,"top_k":1)"))) == greedy);
  CHECK(text_of(answer(story(R"("temperature":2,"top_p":0.000001)"))) == greedy);
  CHECK(text_of(answer(story(R"("temperature":2,"min_p":1)"))) == greedy);
  const auto forced =
      answer(story(R"("temperature":0,"ignore_eos":true,"return_token_ids":true,"logit_bias":{"50":100})"));
  for (const auto& token : forced["token_ids"]) CHECK(token == 50);
  const auto penalised = answer(story(
      R"("temperature":0,"ignore_eos":true,"return_token_ids":true,"frequency_penalty":2,"presence_penalty":2,"logit_bias":{"50":8})"));
  CHECK(penalised["token_ids"].size() == 60);
  CHECK(text_of(penalised) != greedy);
  CHECK(text_of(answer(story(R"("temperature":0,"repetition_penalty":1.8)"))) != greedy);
}

TEST_CASE("log-probabilities: one entry a token, the chosen one among the best when greedy") {
  const auto record = answer(story(R"("temperature":0,"logprobs":3,"return_token_ids":true)"));
  REQUIRE(record["logprobs"].size() == record["token_ids"].size());
  for (size_t i = 0; i < record["logprobs"].size(); ++i) {
    const auto& entry = record["logprobs"][i];
    CHECK(entry["token_id"] == record["token_ids"][i]);
    CHECK(entry["logprob"].get<double>() <= 0);
    REQUIRE(entry["top_logprobs"].size() == 3);
    CHECK(entry["top_logprobs"][0]["token_id"] == entry["token_id"]);
    CHECK(entry["top_logprobs"][0]["logprob"] == entry["logprob"]);
    CHECK(entry["top_logprobs"][1]["logprob"].get<double>() >= entry["top_logprobs"][2]["logprob"].get<double>());
  }
}

TEST_CASE("output cut inside a character is still valid UTF-8") {
  // Token ids of single bytes: the first two of a three-byte character, forced by bias.
  const auto record =
      answer(R"({"prompt":"\u20ac\u20ac\u20ac\u20ac","max_tokens":40,"temperature":3,"ignore_eos":true,"seed":5})");
  REQUIRE(record.contains("text"));
  CHECK_NOTHROW(record.dump());  // nlohmann's dump throws on invalid UTF-8
}

}  // namespace llmb::test
