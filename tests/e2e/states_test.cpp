// Models with recurrent states: the same bytes for every line whatever the batch, the prefix cache, the pool, drafts
// and kills, and questions about a document find it again.
#include <doctest/doctest.h>

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

// Documents whose lengths lie around the borders of chunks and blocks.
std::string questions(int num_lines) { return document_questions(num_lines, {.shortest = 31}); }

std::vector<std::string> command(const std::string& model, const std::vector<std::string>& more) {
  std::vector<std::string> arguments = {kProgram, "-m", kModels + model, "--tokenizer", kModel, "--progress", "none"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

}  // namespace

TEST_CASE("models with recurrent states give the same bytes whatever the schedule") {
  const std::string input = questions(36);
  const std::string draft = "draft:" + kModels + "arcee";
  const std::vector<std::string> models = {"qwen3_5-text", "qwen3_next", "granitemoehybrid", "lfm2", "nemotron_h"};
  int64_t num_accepted = 0, num_rejected = 0;
  for (size_t m = 0; m < models.size(); ++m) {
    CAPTURE(models[m]);
    const ProcessResult plain = run_process(
        command(models[m], {"--batching", "none", "--threads", "1", "--no-enable-prefix-caching", "--speculative", "none"}),
        input);
    REQUIRE_MESSAGE(plain.exit_code == 0, plain.err);
    REQUIRE(sum_of_metric(plain.out, "cached_tokens") == 0);
    const std::vector<std::vector<std::string>> schedules = {
        {"--speculative", "none"},
        {"--speculative", "none", "--max-num-seqs", "3", "--block-size", "8"},
        {"--speculative", "none", "--max-num-batched-tokens", "9", "--block-size", "8"},
        {"--speculative", "lookup", "--batching", "static", "--max-num-seqs", "7"},
        {"--speculative", "lookup", "--num-gpu-blocks-override", "30", "--block-size", "8", "--max-num-seqs", "6"},
        {"--speculative", "lookup,lookahead", "--num-speculative-tokens", "8", "--block-size", "8", "--threads", "3"},
        {"--speculative", draft, "--max-num-seqs", "5"},
        {"--speculative", draft + ",lookup", "--num-speculative-tokens", "8", "--block-size", "8"},
        {"--pipeline-parallel-size", "2", "--speculative", "lookup", "--max-num-seqs", "5", "--block-size", "8"},
        {"--prefill-context-parallel-size", "2", "--speculative", draft, "--block-size", "8"},
        {"--decode-context-parallel-size", "2", "--speculative", "lookup", "--max-num-seqs", "6"},
    };
    int64_t num_cached = 0;
    for (size_t s = 0; s < schedules.size(); ++s) {
      if (!runs_all_schedules() && (s + m) % 2 == 1 && s + 3 < schedules.size()) continue;
      std::string name;
      for (const std::string& word : schedules[s]) name += word + " ";
      CAPTURE(name);
      const ProcessResult result = run_process(command(models[m], schedules[s]), input);
      REQUIRE_MESSAGE(result.exit_code == 0, result.err);
      CHECK(stable_output(result.out) == stable_output(plain.out));
      num_cached += sum_of_metric(result.out, "cached_tokens");
      const int64_t accepted = sum_of_metric(result.out, "accepted_tokens");
      num_accepted += accepted;
      num_rejected += sum_of_metric(result.out, "drafted_tokens") - accepted;
    }
    CHECK(num_cached > 0);
  }
  MESSAGE(num_accepted << " drafts accepted, " << num_rejected << " rejected");
  CHECK(num_accepted > 0);
  CHECK(num_rejected > 0);
}

TEST_CASE("killed again and again, with another batch and other drafts each time, jobs end with the same bytes") {
  const TemporaryDirectory dir;
  write_file(dir.file("in.jsonl"), questions(20));
  for (const std::string model : {"qwen3_5-text", "lfm2"}) {
    CAPTURE(model);
    const ProcessResult plain = run_process(command(model, {dir.file("in.jsonl"), "--speculative", "none"}));
    REQUIRE_MESSAGE(plain.exit_code == 0, plain.err);
    const std::string out = dir.file(model + ".jsonl");
    const std::vector<std::vector<std::string>> schedules = {{"--max-num-seqs", "2", "--speculative", "none"},
                                                             {"--max-num-seqs", "9", "--speculative", "lookup"},
                                                             {"--max-num-batched-tokens", "16", "--block-size", "8"}};
    kill_until_done(dir, [&](int attempt) {
      std::vector<std::string> more = {dir.file("in.jsonl"), "-o", out};
      more.insert(more.end(), schedules[attempt % 3].begin(), schedules[attempt % 3].end());
      return command(model, more);
    });
    CHECK(stable_output(read_file(out)) == stable_output(plain.out));
  }
}

TEST_CASE("scores of prompts of models with recurrent states are those of one row at a time") {
  const std::string input = questions(24);
  for (const std::string model : {"qwen3_next", "granitemoehybrid", "llama-gqa"}) {
    CAPTURE(model);
    const ProcessResult plain = run_process(command(model, {"--task", "score", "--batching", "none"}), input);
    REQUIRE_MESSAGE(plain.exit_code == 0, plain.err);
    for (const std::vector<std::string>& schedule : std::vector<std::vector<std::string>>{
             {"--max-num-seqs", "3"}, {"--max-num-batched-tokens", "7", "--block-size", "8"}, {"--workers", "2"}}) {
      std::vector<std::string> more = {"--task", "score"};
      more.insert(more.end(), schedule.begin(), schedule.end());
      const ProcessResult result = run_process(command(model, more), input);
      REQUIRE_MESSAGE(result.exit_code == 0, result.err);
      CHECK(stable_output(result.out) == stable_output(plain.out));
    }
  }
}

TEST_CASE("what a state cannot follow is refused in one line") {
  const std::vector<std::string> refused[] = {
      {"--speculative", "lookup,tree"}, {"--speculative", "layers:1"}, {"--preemption", "swap"}};
  for (const std::vector<std::string>& flags : refused) {
    CAPTURE(flags[1]);
    const ProcessResult result = run_process(command("lfm2", flags), questions(1));
    CHECK(result.exit_code == 2);
    CHECK(result.err.find("layers with a recurrent state") != std::string::npos);
  }
}

}  // namespace llmb::test
