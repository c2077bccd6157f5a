// Log-probabilities of prompts and of options on the CUDA backend.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "backend/cuda/cuda_backend.h"
#include "tests/support/golden.h"
#include "tests/support/text_jobs.h"

namespace llmb::test {
namespace {

using nlohmann::json;

EngineJobOptions cuda_job(const std::string& dir) {
  EngineJobOptions options = text_job(dir);
  options.make_backend = [] { return make_cuda_backend(0); };
  options.load.cuda.deterministic = true;
  options.scheduler.max_num_seqs = 4;
  options.scheduler.max_num_batched_tokens = 24;
  options.scheduler.max_model_len = std::min(120, options.config.max_position_embeddings);
  options.scheduler.block_size = 8;
  options.scheduler.num_blocks = 64;
  return options;
}

std::string model_dir(const std::string& name) { return source_dir() + "/data/fixtures/models/" + name; }

TEST_CASE("log-probabilities of prompts equal Hugging Face transformers") {
  for (const char* name : {"llama-gqa", "gemma2", "qwen2-window", "deepseek_v3", "qwen3_5"}) {
    CAPTURE(name);
    std::vector<json> lines;
    const std::vector<json> golden = read_json_lines(model_dir(name) + "/golden.jsonl");
    for (const json& line : golden) {
      json tokens = line.at("prompt_token_ids");
      for (const json& token : line.at("token_ids")) tokens.push_back(token);
      lines.push_back({{"prompt_token_ids", tokens}, {"prompt_logprobs", 5}, {"max_tokens", 1}, {"temperature", 0}});
    }
    const std::vector<json> records = answers_to(lines, cuda_job(model_dir(name)));
    for (size_t i = 0; i < golden.size(); ++i) {
      CAPTURE(i);
      CAPTURE(records[i].dump());
      REQUIRE(records[i].contains("prompt_logprobs"));
      const json& actual = records[i]["prompt_logprobs"];
      const size_t num_prompt = golden[i].at("prompt_token_ids").size();
      REQUIRE(actual.size() == lines[i]["prompt_token_ids"].size());
      for (size_t at = 1; at < actual.size(); ++at) CHECK(actual[at]["token_id"] == lines[i]["prompt_token_ids"][at]);
      for (size_t step = 0; step < golden[i].at("token_ids").size(); ++step) {
        const json& own = actual[num_prompt + step];
        CHECK(is_within(own["logprob"], golden[i].at("logprobs")[step], 1e-4));
        for (size_t k = 0; k < 5; ++k)
          CHECK(is_within(own["top_logprobs"][k]["logprob"], golden[i].at("top_logprobs")[step][k][1], 1e-4));
      }
    }
  }
}

std::vector<json> scored_lines() {
  const std::string context = "The children went to the river with a boat";
  return {{{"prompt", context}, {"options", {" and", " a long time ago", "x"}}},
          {{"prompt", context + " home"}, {"prompt_logprobs", 2}, {"max_tokens", 3}, {"temperature", 0}},
          {{"prompt", context}, {"options", {" home"}}, {"logprobs", 1}, {"return_token_ids", true}},
          {{"prompt", "The children"}, {"max_tokens", 5}, {"temperature", 1}},
          {{"prompt", context}, {"prompt_logprobs", 0}, {"n", 2}, {"temperature", 1}, {"max_tokens", 4}},
          {{"prompt_token_ids", {7}}, {"prompt_logprobs", 1}, {"max_tokens", 2}, {"temperature", 0}}};
}

EngineJobOptions bundled_job() {
  const std::string dir = source_dir() + "/data/model";
  EngineJobOptions options = cuda_job(dir);
  options.tokenizer = Tokenizer::load(dir).value();
  return options;
}

TEST_CASE("deterministic: records of scores are the same bytes whatever the schedule, and near the CPU's") {
  EngineJobOptions options = bundled_job();
  options.scheduler.max_num_seqs = 1;
  options.scheduler.enable_prefix_caching = false;
  const std::vector<json> plain = answers_to(scored_lines(), options);
  for (const int variant : {0, 1, 2, 3}) {
    CAPTURE(variant);
    EngineJobOptions other = bundled_job();
    other.scheduler.max_num_seqs = 2 + 2 * variant;
    other.scheduler.max_num_batched_tokens = variant == 1 ? 5 : 40;
    other.scheduler.max_num_drafts = 1 + 7 * variant;
    other.load.max_drafts_per_group = variant == 2 ? 0 : INT32_MAX;
    other.scheduler.block_size = variant == 2 ? 16 : 8;
    other.scheduler.enable_prefix_caching = variant != 3;
    if (variant == 3) other.scheduler.num_blocks = 7;
    CHECK(answers_to(scored_lines(), other) == plain);
  }
  options.make_backend = [] { return make_cpu_backend(); };
  const std::vector<json> cpu = answers_to(scored_lines(), options);
  for (size_t i = 0; i < 3; ++i)
    CHECK(is_within(plain[0]["options"][i]["logprob"], cpu[0]["options"][i]["logprob"], 1e-3));
  CHECK(plain[0]["best"] == cpu[0]["best"]);
  for (size_t at = 1; at < cpu[1]["prompt_logprobs"].size(); ++at) {
    const json &own = plain[1]["prompt_logprobs"][at], &other = cpu[1]["prompt_logprobs"][at];
    CHECK(is_within(own["logprob"], other["logprob"], 1e-3));
    CHECK(own["top_logprobs"][0]["token_id"] == other["top_logprobs"][0]["token_id"]);
  }
}

TEST_CASE("a run that scores gives each line the sum of its prompt's log-probabilities") {
  EngineJobOptions options = bundled_job();
  const json line = {{"prompt", "The children went to the river"}};
  json shown = line;
  shown.update({{"prompt_logprobs", 0}, {"max_tokens", 1}});
  const json record = answers_to({shown}, options)[0];
  double sum = 0;
  for (const json& token : record["prompt_logprobs"])
    if (!token.is_null()) sum += token["logprob"].get<double>();
  options.defaults.task = Task::kScore;
  CHECK(is_within(answers_to({line}, options)[0]["logprob"], sum, 1e-4));
}

}  // namespace
}  // namespace llmb::test
