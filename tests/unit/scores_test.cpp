// Scores: log-probabilities of prompts and of options, from the line to the record.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "base/base64.h"
#include "model/config_loader.h"
#include "tests/support/engine_job.h"
#include "tests/support/golden.h"
#include "tests/support/source_dir.h"
#include "tokenizer/tokenizer.h"

namespace llmb::test {
namespace {

using nlohmann::json;

EngineJobOptions cpu_job(const std::string& dir) {
  EngineJobOptions options;
  options.config = load_model_config(dir).value();
  options.make_backend = [] { return make_cpu_backend(); };
  options.load.model_dir = dir;
  options.load.dtype = options.load.kv_cache_dtype = DType::kF32;
  options.load.num_threads = 1;
  options.scheduler.max_num_seqs = 4;
  options.scheduler.max_num_batched_tokens = 24;
  options.scheduler.max_num_drafts = 8;
  options.scheduler.max_model_len = std::min(120, options.config.max_position_embeddings);
  options.scheduler.block_size = 4;
  options.scheduler.num_blocks = 128;
  options.scheduler.enable_prefix_caching = true;
  return options;
}

EngineJobOptions bundled_job() {
  EngineJobOptions options = cpu_job(source_dir() + "/data/model");
  options.tokenizer = Tokenizer::load(source_dir() + "/data/model").value();
  return options;
}

std::string lines_of(const std::vector<json>& lines) {
  std::string text;
  for (const json& line : lines) text += line.dump() + "\n";
  return text;
}

std::vector<json> answers_to(const std::vector<json>& lines, const EngineJobOptions& options) {
  const EngineJob job(lines_of(lines));
  const EngineJobOutcome outcome = job.run(options);
  REQUIRE_MESSAGE(outcome.status.ok(), outcome.status.message());
  std::vector<json> records;
  for (const auto& [index, text] : records_by_index(job.output())) records.push_back(json::parse(text));
  REQUIRE(records.size() == lines.size());
  return records;
}

bool is_near(const json& actual, const json& expected) {
  return std::fabs(actual.get<double>() - expected.get<double>()) <= 1e-4;
}

TEST_CASE("log-probabilities of prompts equal Hugging Face transformers") {
  for (const char* name : {"llama-gqa", "gemma2", "qwen2-window", "granitemoe", "opt"}) {
    CAPTURE(name);
    const std::string dir = source_dir() + "/data/fixtures/models/" + name;
    std::vector<json> lines;
    const std::vector<json> golden = read_json_lines(dir + "/golden.jsonl");
    for (const json& line : golden) {
      json tokens = line.at("prompt_token_ids");
      for (const json& token : line.at("token_ids")) tokens.push_back(token);
      lines.push_back({{"prompt_token_ids", tokens}, {"prompt_logprobs", 5}, {"max_tokens", 1}, {"temperature", 0}});
    }
    const std::vector<json> records = answers_to(lines, cpu_job(dir));
    for (size_t i = 0; i < golden.size(); ++i) {
      CAPTURE(i);
      const json& actual = records[i].at("prompt_logprobs");
      const size_t num_prompt = golden[i].at("prompt_token_ids").size();
      REQUIRE(actual.size() == lines[i]["prompt_token_ids"].size());
      CHECK(actual[0].is_null());
      for (size_t at = 1; at < actual.size(); ++at) CHECK(actual[at]["token_id"] == lines[i]["prompt_token_ids"][at]);
      for (size_t step = 0; step < golden[i].at("token_ids").size(); ++step) {
        CHECK(is_near(actual[num_prompt + step]["logprob"], golden[i].at("logprobs")[step]));
        for (size_t k = 0; k < 5; ++k)
          CHECK(is_near(actual[num_prompt + step]["top_logprobs"][k]["logprob"],
                        golden[i].at("top_logprobs")[step][k][1]));
      }
      if (!golden[i].contains("prompt_top_logprobs")) continue;
      for (size_t at = 1; at < num_prompt; ++at)
        CHECK(is_near(actual[at]["top_logprobs"][0]["logprob"], golden[i].at("prompt_top_logprobs")[at - 1][0][1]));
    }
  }
}

const std::string kContext = "The children went to the river with a small boat, and when they came back";

std::vector<json> scored_lines() {
  return {{{"prompt", kContext}, {"options", {" they", " a long time ago they were", "x"}}},
          {{"prompt", kContext + " home"}, {"prompt_logprobs", 2}, {"max_tokens", 3}, {"temperature", 0}},
          {{"prompt", kContext}, {"options", {" home"}}, {"logprobs", 1}, {"return_token_ids", true}},
          {{"prompt", "The children went"}, {"max_tokens", 9}, {"temperature", 1}},
          {{"prompt", kContext}, {"prompt_logprobs", 0}, {"n", 3}, {"temperature", 1}, {"max_tokens", 6}},
          {{"prompt_token_ids", {7}}, {"prompt_logprobs", 1}, {"max_tokens", 2}, {"temperature", 0}}};
}

TEST_CASE("records of scores are the same bytes whatever the schedule") {
  EngineJobOptions options = bundled_job();
  const EngineJob plain(lines_of(scored_lines()));
  options.scheduler.max_num_seqs = 1;
  options.scheduler.enable_prefix_caching = false;
  REQUIRE(plain.run(options).status.ok());
  int64_t num_preemptions = 0;
  for (const int variant : {0, 1, 2, 3, 4}) {
    CAPTURE(variant);
    EngineJobOptions other = bundled_job();
    other.scheduler.max_num_seqs = 2 + 2 * variant;
    other.scheduler.max_num_batched_tokens = variant == 1 ? 5 : 40;
    other.scheduler.max_num_drafts = 1 + 7 * variant;
    other.scheduler.block_size = variant == 2 ? 16 : 4;
    other.scheduler.enable_prefix_caching = variant != 3;
    if (variant == 4) other.scheduler.num_blocks = 13;
    const EngineJob job(lines_of(scored_lines()));
    const EngineJobOutcome outcome = job.run(other);
    REQUIRE_MESSAGE(outcome.status.ok(), outcome.status.message());
    CHECK(job.output() == plain.output());
    num_preemptions += outcome.num_preemptions;
  }
  CHECK(num_preemptions > 0);
}

// The last layers use earlier ones' keys and values: they run for sampled rows alone, which are all of a prompt that is
// scored, some of one with options, else the last. Random weights and the bundled model's tokenizer.
TEST_CASE("where steps shrink to sampled rows: scores, options and choices have the bytes of rows computed one by one") {
  const std::vector<json> lines = {
      {{"prompt", kContext}, {"prompt_logprobs", 2}, {"max_tokens", 6}, {"temperature", 1}, {"n", 3}},
      {{"prompt", kContext + " home"}, {"max_tokens", 8}, {"temperature", 1}, {"n", 4}, {"logprobs", 2}},
      {{"prompt", "It was " + kContext}, {"prompt_logprobs", 0}, {"max_tokens", 1}, {"temperature", 0}},
      {{"prompt", kContext}, {"options", {" they", " a long time ago they were", "x"}}, {"logprobs", 1}}};
  EngineJobOptions options = cpu_job(source_dir() + "/data/fixtures/models/gemma4");
  options.tokenizer = Tokenizer::load(source_dir() + "/data/model").value();
  options.config.vocab_size = options.config.vocab_size_per_layer_input = options.tokenizer->vocab_size();
  options.load.load_format = LoadFormat::kDummy;
  options.scheduler.enable_prefix_caching = false;
  options.scheduler.max_num_seqs = options.scheduler.max_num_batched_tokens = 1;
  const std::vector<json> one_by_one = answers_to(lines, options);
  REQUIRE_MESSAGE((one_by_one[0].contains("prompt_logprobs") && one_by_one[3].contains("best")), one_by_one[0].dump());
  for (const int variant : {0, 1, 2}) {
    options.scheduler.max_num_seqs = 8;
    options.scheduler.max_num_batched_tokens = variant == 1 ? 13 : 100;
    options.scheduler.max_num_drafts = 1 + 20 * variant;
    options.scheduler.enable_prefix_caching = variant == 2;
    CHECK(answers_to(lines, options) == one_by_one);
  }
}

TEST_CASE("an option's log-probability is that of its tokens behind the prompt's; its context is computed once") {
  const EngineJobOptions options = bundled_job();
  const auto& tokenizer = *options.tokenizer;
  const std::vector<std::string> texts = {" they", " a long time ago they were", "x", " home"};
  const size_t num_prompt = tokenizer.encode(kContext, true).size();
  std::vector<json> lines = {{{"prompt", kContext}, {"options", texts}, {"logprobs", 2}, {"return_token_ids", true}},
                             {{"prompt", kContext}, {"max_tokens", 1}, {"temperature", 0}, {"logprobs", 0}}};
  for (const std::string& text : texts)
    lines.push_back({{"prompt", kContext + text}, {"prompt_logprobs", 0}, {"max_tokens", 1}});
  const EngineJob job(lines_of({lines[0]}));
  EngineJobOptions alone = options;
  alone.scheduler.max_num_drafts = 64;
  const EngineJobOutcome outcome = job.run(alone);
  const json scored = json::parse(job.output());
  const auto records = answers_to(lines, options);
  CHECK(scored == records[0]);
  CHECK(scored["options"].size() == texts.size());
  CHECK(scored["usage"]["prompt_tokens"] == num_prompt);
  double best = -INFINITY;
  for (size_t i = 0; i < texts.size(); ++i) {
    CAPTURE(i);
    const json &option = scored["options"][i], &whole = records[2 + i]["prompt_logprobs"];
    CHECK(option["text"] == texts[i]);
    CHECK(option["num_tokens"] == whole.size() - num_prompt);
    CHECK(option["token_ids"].size() == option["logprobs"].size());
    double sum = 0;
    for (size_t at = num_prompt; at < whole.size(); ++at) {
      sum += whole[at]["logprob"].get<double>();
      CHECK(whole[at]["token_id"] == option["token_ids"][at - num_prompt]);
      CHECK(whole[at]["logprob"] == option["logprobs"][at - num_prompt]["logprob"]);
      CHECK(option["logprobs"][at - num_prompt]["top_logprobs"].size() == 2);
    }
    CHECK(is_near(option["logprob"], sum));
    if (sum > best) CHECK((best = sum, scored["best"]) >= 0);
  }
  CHECK(is_near(scored["options"][scored["best"].get<size_t>()]["logprob"], best));
  // 3 steps for the prompt at most, with what the first tokens are drawn from, and one or two for the rest.
  CHECK(outcome.num_steps <= 5);
  const std::string greedy = records[1]["text"];
  REQUIRE(tokenizer.encode(kContext + greedy, true).size() == num_prompt + 1);
  const json again = answers_to({{{"prompt", kContext}, {"options", {greedy, greedy + "q"}}}}, options)[0];
  CHECK((again["options"][0]["is_greedy"] == true && again["options"][1]["is_greedy"] == false));
  double sum = 0;
  for (const json& token : records[1]["logprobs"]) sum += token["logprob"].get<double>();
  CHECK(is_near(again["options"][0]["logprob"], sum));
}

TEST_CASE("prompt_logprobs in OpenAI lines stand where vLLM has them, by token id") {
  const json completion = {{"custom_id", "a"},
                           {"method", "POST"},
                           {"url", "/v1/completions"},
                           {"body", {{"model", "m"}, {"prompt", kContext}, {"prompt_logprobs", 1}, {"max_tokens", 1}}}};
  const json record = answers_to({completion}, bundled_job())[0];
  const json& list = record["response"]["body"]["choices"][0]["prompt_logprobs"];
  const std::vector<TokenId> tokens = bundled_job().tokenizer->encode(kContext, true);
  REQUIRE(list.size() == tokens.size());
  CHECK(list[0].is_null());
  for (size_t at = 1; at < tokens.size(); ++at) {
    CAPTURE(at);
    const json& own = list[at].at(std::to_string(tokens[at]));
    CHECK((list[at].size() == 1 ? own["rank"] == 1 : own["rank"].is_null()));
    CHECK(own["logprob"] <= 0);
    CHECK(own["decoded_token"].is_string());
  }
}

TEST_CASE("a run that scores gives each line the sum of its prompt's log-probabilities, and its perplexity") {
  EngineJobOptions options = bundled_job();
  const json shown = answers_to({{{"prompt", kContext}, {"prompt_logprobs", 0}, {"max_tokens", 1}}}, options)[0];
  double sum = 0;
  for (size_t at = 1; at < shown["prompt_logprobs"].size(); ++at)
    sum += shown["prompt_logprobs"][at]["logprob"].get<double>();
  options.defaults.task = Task::kScore;
  const auto records = answers_to(
      {{{"prompt", kContext}}, {{"prompt_token_ids", {7}}}, {{"prompt", kContext}, {"options", {" home", " they"}}}},
      options);
  const double count = static_cast<double>(shown["prompt_logprobs"].size()) - 1;
  CHECK(is_near(records[0]["logprob"], sum));
  CHECK(records[0]["num_tokens"] == count);
  CHECK(is_near(std::log(records[0]["perplexity"].get<double>()), -sum / count));
  CHECK((!records[0].contains("text") && !records[0].contains("prompt_logprobs")));
  CHECK((records[1]["num_tokens"] == 0 && records[1]["perplexity"].is_null()));
  CHECK(records[2]["options"].size() == 2);
}

double cosine(const json& a, const json& b) {
  double ab = 0, aa = 0, bb = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double x = a[i], y = b[i];
    ab += x * y, aa += x * x, bb += y * y;
  }
  return ab / std::sqrt(aa * bb);
}

EngineJobOptions embedding_job(const std::string& dir) {
  EngineJobOptions options = cpu_job(dir);
  options.defaults.task = Task::kEmbed;
  options.load.pooling = Pooling();
  return options;
}

TEST_CASE("vectors equal transformers', whatever the schedule") {
  const std::vector<json> golden = read_json_lines(source_dir() + "/data/fixtures/embeddings.jsonl");
  for (const char* name : {"qwen3", "llama-gqa", "gemma2"}) {
    CAPTURE(name);
    std::vector<json> lines, expected;
    for (const json& line : golden) {
      if (line["model"] != name) continue;
      lines.push_back({{"prompt_token_ids", line["prompt_token_ids"]}});
      expected.push_back(line["embedding"]);
    }
    EngineJobOptions options = embedding_job(source_dir() + "/data/fixtures/models/" + name);
    const auto records = answers_to(lines, options);
    REQUIRE(records.size() == 7);
    for (size_t i = 0; i < records.size(); ++i) {
      REQUIRE(records[i]["embedding"].size() == expected[i].size());
      CHECK(cosine(records[i]["embedding"], expected[i]) >= 0.999999);
      double squares = 0;
      for (const json& x : records[i]["embedding"]) squares += x.get<double>() * x.get<double>();
      CHECK(std::fabs(squares - 1) <= 1e-5);
      CHECK(records[i]["usage"]["completion_tokens"] == 0);
    }
    options.scheduler.max_num_seqs = 1;
    options.scheduler.max_num_batched_tokens = 7;
    options.scheduler.enable_prefix_caching = false;
    CHECK(answers_to(lines, options) == records);
  }
}

TEST_CASE("lines of a run that embeds: input, OpenAI's form with dimensions, and what is refused") {
  EngineJobOptions options = embedding_job(source_dir() + "/data/model");
  options.tokenizer = Tokenizer::load(source_dir() + "/data/model").value();
  const auto body = [](const json& members) {
    return json{{"custom_id", "a"}, {"method", "POST"}, {"url", "/v1/embeddings"}, {"body", members}};
  };
  const auto records = answers_to({{{"input", kContext}},
                                   {{"prompt", kContext}, {"input", "the user's own"}},
                                   body({{"model", "m"}, {"input", {kContext}}, {"dimensions", 8}}),
                                   body({{"model", "m"}, {"input", kContext}, {"encoding_format", "int8"}}),
                                   body({{"model", "m"}, {"input", {"a", ""}}}),
                                   body({{"model", "m"}}),
                                   body({{"model", "m"}, {"input", "a"}, {"dimension", 8}})},
                                  options);
  CHECK(records[0]["embedding"] == records[1]["embedding"]);
  const json& data = records[2]["response"]["body"]["data"];
  REQUIRE(data.size() == 1);
  REQUIRE(data[0]["embedding"].size() == 8);
  json first = records[0]["embedding"];
  first.erase(first.begin() + 8, first.end());
  CHECK(cosine(data[0]["embedding"], first) >= 0.999999);
  CHECK(records[2]["response"]["body"]["usage"]["prompt_tokens"] == records[0]["usage"]["prompt_tokens"]);
  const char* const codes[] = {"invalid_value", "invalid_value", "missing_field", "unknown_field"};
  for (size_t i = 0; i < 4; ++i) {
    CAPTURE(i);
    CHECK(records[3 + i]["response"]["body"]["error"]["code"] == codes[i]);
  }
  EngineJobOptions generates = bundled_job();
  const json refused = answers_to({body({{"model", "m"}, {"input", "a"}})}, generates)[0];
  CHECK(refused["response"]["body"]["error"]["code"] == "unsupported_url");
}

std::vector<float> floats_of(const std::string& base64) {
  std::string bytes;
  REQUIRE(decode_base64(base64, &bytes));
  std::vector<float> floats(bytes.size() / sizeof(float));
  std::memcpy(floats.data(), bytes.data(), floats.size() * sizeof(float));
  return floats;
}

TEST_CASE("a line of several inputs gives each its vector, the same as by itself, whatever the schedule") {
  EngineJobOptions options = embedding_job(source_dir() + "/data/model");
  options.tokenizer = Tokenizer::load(source_dir() + "/data/model").value();
  const std::string second = std::string(kContext) + " It was late.";
  const json ids = {5, 6, 7, 8};
  std::vector<json> lines;
  for (const json& input : {json(kContext), json(second), ids, json{kContext, second, ids}, json::array({kContext}),
                            json{kContext, json::array()}, json{kContext, 3}, json{kContext, std::string(4000, 'x')},
                            json(std::vector<std::string>(2049, "a"))})
    lines.push_back({{"input", input}});
  const json body = {{"model", "m"}, {"input", {ids, kContext}}};
  lines.push_back({{"custom_id", "a"}, {"method", "POST"}, {"url", "/v1/embeddings"}, {"body", body}});
  lines.push_back({{"input", {kContext, second, ids}}, {"encoding_format", "base64"}, {"dimensions", 5}});
  const auto records = answers_to(lines, options);
  const json all = {records[0]["embedding"], records[1]["embedding"], records[2]["embedding"]};
  CHECK(records[3]["embeddings"] == all);
  CHECK(records[4]["embeddings"] == json::array({all[0]}));
  int64_t num_tokens = 0;
  for (int i = 0; i < 3; ++i) num_tokens += records[i]["usage"]["prompt_tokens"].get<int64_t>();
  CHECK(records[3]["usage"]["prompt_tokens"] == num_tokens);
  for (size_t i = 0; i < 3; ++i) {
    const std::vector<float> cut = floats_of(records[10]["embeddings"][i]);
    REQUIRE(cut.size() == 5);
    for (size_t at = 0; at < 5; ++at)
      CHECK(std::fabs(cut[at] / cut[0] - all[i][at].get<double>() / all[i][0].get<double>()) < 1e-4);
  }
  const json& data = records[9]["response"]["body"]["data"];
  REQUIRE(data.size() == 2);
  CHECK((data[0]["embedding"] == all[2] && data[1]["embedding"] == all[0] && data[1]["index"] == 1));
  CHECK(records[5]["error"]["param"] == "input[1]");
  CHECK(records[6]["error"]["message"].get<std::string>().find("input[1]") == 0);
  CHECK(records[7]["error"]["code"] == "prompt_too_long");
  CHECK(records[7]["error"]["message"].get<std::string>().find("input[1]: ") == 0);
  CHECK(records[8]["error"]["message"].get<std::string>().find("2048") != std::string::npos);
  options.scheduler.max_num_seqs = 2;
  options.scheduler.max_num_batched_tokens = 5;
  options.scheduler.num_blocks = 40;
  for (const bool shares : {false, true}) {
    options.scheduler.enable_prefix_caching = shares;
    const auto again = answers_to(lines, options);
    for (const size_t i : {0, 1, 2, 3, 4, 9, 10}) CHECK_MESSAGE((again[i] == records[i]), i);
  }
}

TEST_CASE("what cannot be scored is an error of its line") {
  EngineJobOptions options = bundled_job();
  const std::vector<std::pair<json, std::string>> cases = {
      {{{"prompt", "a"}, {"options", "b"}}, "invalid_value"},
      {{{"prompt", "a"}, {"options", json::array()}}, "invalid_value"},
      {{{"prompt", "a"}, {"options", {"b", ""}}}, "invalid_value"},
      {{{"prompt", "a"}, {"options", {"b"}}, {"n", 2}}, "invalid_value"},
      {{{"prompt", "a"}, {"options", {"b"}}, {"prompt_logprobs", 1}}, "invalid_value"},
      {{{"prompt", "a"}, {"options", {std::string(3000, 'b')}}}, "prompt_too_long"},
      {{{"prompt", "a"}, {"prompt_logprobs", -1}}, "invalid_value"},
      {{{"prompt", "a"}, {"prompt_logprobs", 21}}, "invalid_value"},
      {{{"prompt", "a"}, {"prompt_logprobs", 1}, {"use_beam_search", true}, {"n", 2}}, "invalid_value"}};
  std::vector<json> lines;
  for (const auto& [line, code] : cases) lines.push_back(line);
  const auto records = answers_to(lines, options);
  for (size_t i = 0; i < cases.size(); ++i) {
    CAPTURE(i);
    CHECK(records[i]["error"]["code"] == cases[i].second);
  }
  options.make_backend = nullptr;  // the ledger keeps books, and has no probabilities
  const json refused = answers_to({{{"prompt", "a"}, {"prompt_logprobs", 1}}}, options)[0];
  CHECK(refused["error"]["code"] == "unsupported_field");
}

}  // namespace
}  // namespace llmb::test
