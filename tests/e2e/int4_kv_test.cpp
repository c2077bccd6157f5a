// An int4 KV cache: which form of a key a row reads depends on two positions, so every line has the same bytes whatever
// the batch, the chunks, the prefix cache, the pool, swaps, drafts, ranks, workers and kills.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/e2e/document_questions.h"
#include "tests/e2e/killed_runs.h"
#include "tests/e2e/record_metrics.h"
#include "tests/e2e/run.h"
#include "tests/support/all_schedules.h"
#include "tests/support/killed_process.h"
#include "tests/support/temp_dir.h"

namespace llmb::test {

namespace {

const std::string kModels = source_dir() + "/data/fixtures/models/";

// Documents whose lengths lie around the borders of groups.
std::string questions(int num_lines) { return document_questions(num_lines, {.shortest = 62, .sharing = 2}); }

std::vector<std::string> command(const std::string& model, const std::vector<std::string>& more) {
  std::vector<std::string> arguments = {kProgram, "-m", kModels + model, "--tokenizer", kModel, "--progress", "none",
                                        "--kv-cache-dtype", "int4"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

}  // namespace

TEST_CASE("over an int4 KV cache every line has the same bytes whatever the schedule") {
  const std::string input = questions(36);
  const std::vector<std::string> models = {"llama-gqa", "qwen2-window", "gemma3", "gemma4", "gpt_oss"};
  int64_t num_accepted = 0, num_rejected = 0, num_preempted = 0;
  for (size_t m = 0; m < models.size(); ++m) {
    CAPTURE(models[m]);
    const std::string draft = "draft:" + kModels + models[m];  // whose own cache is not in int4
    const ProcessResult plain = run_process(
        command(models[m], {"--batching", "none", "--threads", "1", "--no-enable-prefix-caching", "--speculative", "none"}),
        input);
    REQUIRE_MESSAGE(plain.exit_code == 0, plain.err);
    REQUIRE(sum_of_metric(plain.out, "cached_tokens") == 0);
    const std::vector<std::vector<std::string>> schedules = {
        {"--speculative", "none"},
        {"--speculative", "none", "--max-num-seqs", "3", "--block-size", "64"},
        {"--speculative", "none", "--max-num-batched-tokens", "31"},
        {"--speculative", "none", "--max-num-batched-tokens", "33", "--threads", "3"},
        {"--speculative", "lookup", "--batching", "static", "--max-num-seqs", "7"},
        {"--speculative", "lookup", "--num-gpu-blocks-override", "12", "--max-num-seqs", "6", "--preemption", "swap"},
        {"--speculative", "none", "--num-gpu-blocks-override", "12", "--preemption", "recompute"},
        {"--speculative", "lookup,lookahead", "--num-speculative-tokens", "16", "--threads", "3"},
        {"--speculative", draft, "--max-num-seqs", "5"},
        {"--speculative", draft + ",lookup", "--num-speculative-tokens", "16", "--block-size", "128"},
        {"--pipeline-parallel-size", "2", "--speculative", "lookup", "--max-num-seqs", "5"},
        {"--prefill-context-parallel-size", "2", "--speculative", "lookup", "--block-size", "64"},
        {"--decode-context-parallel-size", "2", "--speculative", draft},
        {"--decode-context-parallel-size", "3", "--max-num-batched-tokens", "33", "--max-num-seqs", "7"},
        {"--workers", "2", "--max-num-seqs", "4"},
        {"--prefill-workers", "1", "--decode-workers", "1"},
    };
    int64_t num_cached = 0;
    for (size_t s = 0; s < schedules.size(); ++s) {
      if (!runs_all_schedules() && m > 0 && (s + m) % 3 != 0) continue;
      std::string name;
      for (const std::string& word : schedules[s]) name += word + " ";
      CAPTURE(name);
      const ProcessResult result = run_process(command(models[m], schedules[s]), input);
      REQUIRE_MESSAGE(result.exit_code == 0, result.err);
      CHECK(stable_output(result.out) == stable_output(plain.out));
      num_cached += sum_of_metric(result.out, "cached_tokens");
      num_preempted += sum_of_metric(result.out, "num_preemptions");
      const int64_t accepted = sum_of_metric(result.out, "accepted_tokens");
      num_accepted += accepted;
      num_rejected += sum_of_metric(result.out, "drafted_tokens") - accepted;
    }
    CHECK(num_cached > 0);
  }
  MESSAGE(num_accepted << " drafts accepted, " << num_rejected << " rejected, " << num_preempted << " preemptions");
  CHECK(num_accepted > 0);
  CHECK(num_rejected > 0);
  CHECK(num_preempted > 0);
}

TEST_CASE("over an int4 KV cache prompts have the same log-probabilities whatever the chunks, also where layers read "
          "keys of earlier ones") {
  std::string input;
  for (int line = 0; line < 4; ++line) {
    std::vector<int> tokens;
    for (int at = 0; at < 62 + 15 * line; ++at) tokens.push_back((at * at * (line + 3) + at) % 61 + 1);
    const nlohmann::json fields = {
        {"id", line}, {"prompt_token_ids", tokens}, {"prompt_logprobs", 1}, {"max_tokens", 2}};
    input += fields.dump() + "\n";
  }
  for (const std::string model : {"gemma4", "llama-gqa"}) {
    CAPTURE(model);
    // A chunk lies in two groups at most.
    const ProcessResult plain = run_process(command(model, {"--max-num-batched-tokens", "31"}), input);
    REQUIRE_MESSAGE(plain.exit_code == 0, plain.err);
    const std::vector<std::vector<std::string>> schedules = {
        {}, {"--max-num-batched-tokens", "97", "--speculative", "none"}, {"--prefill-context-parallel-size", "2"}};
    for (const std::vector<std::string>& schedule : schedules) {
      const ProcessResult result = run_process(command(model, schedule), input);
      REQUIRE_MESSAGE(result.exit_code == 0, result.err);
      CHECK(stable_output(result.out) == stable_output(plain.out));
    }
  }
}

TEST_CASE("over an int4 KV cache a job that is killed again and again ends with the same bytes") {
  const TemporaryDirectory dir;
  write_file(dir.file("in.jsonl"), questions(20));
  const std::string model = "llama-gqa", out = dir.file("out.jsonl");
  const ProcessResult plain = run_process(command(model, {dir.file("in.jsonl"), "--speculative", "none"}));
  REQUIRE_MESSAGE(plain.exit_code == 0, plain.err);
  const std::vector<std::vector<std::string>> schedules = {{"--max-num-seqs", "2", "--speculative", "none"},
                                                           {"--max-num-seqs", "9", "--speculative", "lookup"},
                                                           {"--max-num-batched-tokens", "33", "--block-size", "64"}};
  kill_until_done(dir, [&](int attempt) {
    std::vector<std::string> more = {dir.file("in.jsonl"), "-o", out};
    more.insert(more.end(), schedules[attempt % 3].begin(), schedules[attempt % 3].end());
    return command(model, more);
  });
  CHECK(stable_output(read_file(out)) == stable_output(plain.out));
}

TEST_CASE("an int4 KV cache is refused in one line where it cannot be") {
  struct Case {
    std::string model;
    std::vector<std::string> flags;
    std::string message;
    int exit_code = 4;
  };
  const Case cases[] = {
      {"llama-gqa", {"--block-size", "16"}, "blocks hold whole groups of 32 tokens; block_size is 16"},
      {"deepseek_v3", {}, "whose cache holds latents"},
      {"lfm2", {}, "which has recurrent states"},
      {"llama-gqa", {"--speculative", "layers:1"}, "layers that draft over the model's own cache"},
      {"llama-gqa", {"--speculative", "lookup,tree"}, "drafts are chains, no trees", 2}};
  for (const Case& c : cases) {
    CAPTURE(c.message);
    const ProcessResult result = run_process(command(c.model, c.flags), questions(1));
    CAPTURE(result.err);
    CHECK(result.exit_code == c.exit_code);
    CHECK(result.err.find(c.message) != std::string::npos);
  }
}

}  // namespace llmb::test
