// A request's text after its prompt; its times: by the caller's clock, or virtual, where they depend on the request
// alone.
#include "engine/active_request.h"

#include <doctest/doctest.h>

#include "io/result_writer.h"
#include "tests/support/source_dir.h"
#include "tests/support/tokenizer_fixtures.h"

namespace llmb {

namespace {

// The completion of these tokens after the prompt, with their log-probabilities.
Completion complete(const Tokenizer& tokenizer, std::vector<TokenId> prompt, const std::vector<TokenId>& tokens,
                    std::vector<std::string> stop = {}) {
  auto request = std::make_shared<Request>();
  request->form = ApiForm::kOpenAiCompletion;
  request->prompt_tokens = std::move(prompt);
  request->params.sampling.num_logprobs = 1;
  request->params.stop.stop = std::move(stop);
  ActiveRequest active(request, 0, &tokenizer);
  FinishReason reason = FinishReason::kLength;
  for (const TokenId token : tokens) {
    StepOutput output;
    output.tokens = output.top_tokens = {token};
    output.logprobs = output.top_logprobs = {-1};
    output.top_start = {0, 1};
    if (!active.choice(0).add_token(output, 0, false, 1)) continue;
    reason = FinishReason::kStop;
    break;
  }
  CHECK(active.finish_choice(0, reason, std::nullopt, 0));
  return active.take_completion();
}

nlohmann::json logprobs_of(const Completion& completion) {
  return nlohmann::json::parse(ResultFormatter().format(completion))["response"]["body"]["choices"][0]["logprobs"];
}

RequestLatency latency_of(double virtual_token_ms, const std::vector<double>& times, double arrival_ms) {
  auto request = std::make_shared<Request>();
  request->prompt_tokens = {1, 2, 3};
  request->arrival_ms = arrival_ms;
  ActiveRequest active(request, 0, nullptr, virtual_token_ms);
  CHECK_FALSE(active.was_scheduled());
  active.mark_scheduled(times[0]);
  active.mark_scheduled(times[0] + 1000);  // again, after a preemption
  CHECK(active.was_scheduled());
  StepOutput output;
  output.tokens = {7};
  for (size_t i = 1; i < times.size(); ++i) active.choice(0).add_token(output, 0, false, times[i]);
  CHECK(active.finish_choice(0, FinishReason::kLength, std::nullopt, 0));
  return active.take_completion().latency;
}

}  // namespace

TEST_CASE(
    "a completion goes on where its prompt ends: text, stop strings, token texts and offsets keep the first space") {
  const auto tokenizer = load_tokenizer(test::source_dir() + "/data/fixtures/tokenizers/llama2");
  const TokenId bos = 1, the = *tokenizer->token_to_id("▁the");
  const Completion after_text = complete(*tokenizer, {bos, the}, {the, the});
  CHECK(after_text.choices[0].text == " the the");
  CHECK(logprobs_of(after_text)["tokens"] == nlohmann::json{" the", " the"});
  CHECK(logprobs_of(after_text)["text_offset"] == nlohmann::json{0, 4});
  const Completion after_bos = complete(*tokenizer, {bos}, {the, the});
  CHECK(after_bos.choices[0].text == "the the");
  CHECK(logprobs_of(after_bos)["tokens"] == nlohmann::json{"the", " the"});
  CHECK(logprobs_of(after_bos)["top_logprobs"][0] == nlohmann::json{{"the", -1}});
  CHECK(logprobs_of(after_bos)["text_offset"] == nlohmann::json{0, 3});
  const Completion stopped = complete(*tokenizer, {bos, the}, {the, the}, {" t"});
  CHECK(stopped.choices[0].text == "");
  CHECK(stopped.choices[0].stop_string == " t");
  CHECK(complete(*tokenizer, {bos}, {the, the}, {" t"}).choices[0].text == "the");
}

TEST_CASE("a character that the prompt began counts in the offsets of the tokens after it") {
  const auto tokenizer = load_tokenizer(test::source_dir() + "/data/fixtures/tokenizers/llama2");
  const auto id = [&](const char* token) { return *tokenizer->token_to_id(token); };
  const Completion completion = complete(*tokenizer, {1, id("<0xE4>"), id("<0xBD>")}, {id("<0xA0>"), id("a"), id("a")});
  CHECK(completion.choices[0].text == "\u4f60aa");
  CHECK(logprobs_of(completion)["text_offset"] == nlohmann::json{0, 1, 2});
}

TEST_CASE("best_of: the answers of the best mean log-probability, of equal ones the first; what is left out counts") {
  auto request = std::make_shared<Request>();
  request->prompt_tokens = {1};
  request->params.sampling.n = 3;
  request->params.sampling.best_of = 5;
  request->params.sampling.count_choices();
  CHECK(request->params.sampling.num_choices == 5);
  ActiveRequest active(request, 0, nullptr);
  // Means: -1, -0.5, -1, -2.5, -0.75. The sum of the last is the lowest but one.
  const std::vector<std::vector<float>> logprobs = {{-1}, {-0.5f}, {-1.5f, -0.5f}, {-2.5f}, {-0.75f, -0.75f, -0.75f}};
  for (const int32_t choice : {3, 1, 4, 0, 2}) {  // in the order in which they end
    for (const float logprob : logprobs[choice]) {
      StepOutput output;
      output.tokens = {10 + choice};
      output.logprobs = {logprob};
      active.choice(choice).add_token(output, 0, false, 1);
    }
    CHECK(active.finish_choice(choice, FinishReason::kLength, std::nullopt, 0) == (choice == 2));
  }
  const Completion completion = active.take_completion();
  REQUIRE(completion.choices.size() == 3);
  CHECK(completion.choices[0].token_ids[0] == 11);
  CHECK(completion.choices[1].token_ids[0] == 14);
  CHECK(completion.choices[2].token_ids[0] == 10);
  CHECK(completion.choices[0].logprobs.empty());
  CHECK(completion.num_output_tokens() == 8);
}

TEST_CASE("greedy answers are one choice, copied") {
  auto request = std::make_shared<Request>();
  request->prompt_tokens = {1};
  request->params.sampling.temperature = 0;
  request->params.sampling.n = 3;
  request->params.sampling.count_choices();
  CHECK(request->params.sampling.num_choices == 1);
  ActiveRequest active(request, 0, nullptr);
  StepOutput output;
  output.tokens = {7};
  active.choice(0).add_token(output, 0, false, 1);
  CHECK(active.finish_choice(0, FinishReason::kStop, std::nullopt, 0));
  const Completion completion = active.take_completion();
  REQUIRE(completion.choices.size() == 3);
  for (const Choice& choice : completion.choices) CHECK(choice.token_ids == std::vector<TokenId>{7});
  CHECK(completion.num_output_tokens() == 3);
}

TEST_CASE("times are measured from the arrival") {
  const RequestLatency latency = latency_of(0, {110, 130, 140, 170}, 100);
  CHECK(latency.queue_ms == 10);
  CHECK(latency.ttft_ms == 30);
  CHECK(latency.e2e_ms == 70);
  CHECK(latency.tpot_ms == 20);
  CHECK(latency.itl_p50_ms == 20);
}

TEST_CASE("FAULTS 8: a clock that was behind the arrival gives no negative duration") {
  const RequestLatency latency = latency_of(0, {50, 60, 70}, 100);
  CHECK(latency.queue_ms == 0);
  CHECK(latency.ttft_ms == 0);
  CHECK(latency.e2e_ms == 0);
}

TEST_CASE("virtual times count the request's own tokens, whatever the schedule") {
  for (const double late : {0.0, 12345.678}) {
    const RequestLatency latency = latency_of(0.5, {110 + late, 130 + 7 * late, 140 + 9 * late}, 100 + late / 3);
    CHECK(latency.queue_ms == 0);
    CHECK(latency.ttft_ms == 1.5);
    CHECK(latency.e2e_ms == 2);
    CHECK(latency.tpot_ms == 0.5);
    CHECK(latency.itl_p99_ms == 0.5f);
  }
}

}  // namespace llmb
