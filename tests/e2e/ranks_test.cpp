// --tensor-parallel-size: several processes compute one model; whichever of them dies or hangs, nothing is lost.
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <string>

#include "tests/e2e/rank_lines.h"
#include "tests/e2e/run.h"
#include "tests/support/source_dir.h"
#include "tests/support/test_rng.h"

namespace llmb::test {

namespace fs = std::filesystem;

namespace {

const std::vector<std::string> kTwoRanks = {"--tensor-parallel-size", "2"};

// Runs the program and sends a signal to one of its ranks after a while. In `out` its exit code, in `err` its words.
ProcessResult run_disturbed(const std::vector<std::string>& arguments, const std::string& signal, double after_s) {
  std::string command = kProgram + " -m " + kModel + " --progress none";
  for (const std::string& argument : arguments) command += " '" + argument + "'";
  command += " </dev/null & pid=$!; until [ -n \"$(pgrep -P $pid)\" ] || ! kill -0 $pid; do sleep 0.01; done; sleep " +
             std::to_string(after_s) + "; for rank in $(pgrep -P $pid); do kill -" + signal +
             " $rank; done; wait $pid; echo $?";
  return run_process({"/bin/bash", "-c", command});
}

// Tokens are equal up to where one rank's two best are as close as rounding, as are log probabilities: of sums, and of what
// is multiplied where processors multiply in bf16.
void check_answer(const nlohmann::json& of_ranks, const nlohmann::json& alone) {
  constexpr double kRounding = 0.01;
  const nlohmann::json &own = alone["logprobs"], &other = of_ranks["logprobs"];
  for (size_t i = 0; i < std::min(own.size(), other.size()); ++i) {
    CAPTURE(i);
    if (other[i]["token_id"] != own[i]["token_id"]) {
      const nlohmann::json& best = own[i]["top_logprobs"];
      CHECK(best[0]["logprob"].get<double>() - best[1]["logprob"].get<double>() <= 2 * kRounding);
      return;
    }
    CHECK(std::abs(other[i]["logprob"].get<double>() - own[i]["logprob"].get<double>()) <= kRounding);
  }
  CHECK(of_ranks["text"] == alone["text"]);
}

}  // namespace

TEST_CASE("two and four ranks: greedy answers are one rank's, log probabilities within rounding") {
  const std::string lines = greedy_lines(24);
  const auto plain = parse_lines(run_llm_batch({"--order", "input"}, lines).out);
  REQUIRE(plain.size() == 24);
  for (const std::string size : {"2", "4"}) {
    const ProcessResult result = run_llm_batch({"--order", "input", "--tensor-parallel-size", size}, lines);
    CHECK_MESSAGE(result.exit_code == 0, result.err);
    const auto records = parse_lines(result.out);
    REQUIRE(records.size() == plain.size());
    size_t num_equal = 0;
    for (size_t i = 0; i < plain.size(); ++i) {
      CAPTURE(i);
      check_answer(records[i], plain[i]);
      num_equal += records[i]["text"] == plain[i]["text"];
    }
    CHECK(num_equal >= 22);
  }
}

TEST_CASE("bytes of two ranks do not depend on batch, cache, drafts, threads or workers") {
  const std::string lines = mixed_lines(40);
  const ProcessResult plain = run_llm_batch(kTwoRanks, lines);
  REQUIRE_MESSAGE(plain.exit_code == 3, plain.err);
  for (const std::vector<std::string>& more : std::vector<std::vector<std::string>>{
           {"--max-num-seqs", "3", "--max-num-batched-tokens", "16"},
           {"--no-enable-prefix-caching", "--batching", "none"},
           {"--speculative", "none"},
           {"--kv-cache-memory-bytes", "3000000", "--preemption", "swap"},
           {"--threads", "4"},
           {"--workers", "2"}}) {
    CAPTURE(more);
    const ProcessResult result = run_llm_batch(with(kTwoRanks, more), lines);
    CHECK_MESSAGE(result.exit_code == 3, result.err);
    CHECK(stable_output(result.out) == stable_output(plain.out));
  }
}

TEST_CASE("ranks that are killed: exit code 9, a line that names one, and the same bytes after some more runs") {
  const TemporaryDirectory dir;
  write_file(dir.file("in.jsonl"), mixed_lines(40));
  const ProcessResult plain = run_llm_batch(with(kTwoRanks, {dir.file("in.jsonl"), "-o", dir.file("plain.jsonl")}));
  REQUIRE_MESSAGE(plain.exit_code == 3, plain.err);
  const std::vector<std::string> arguments =
      with(kTwoRanks, {dir.file("in.jsonl"), "-o", dir.file("out.jsonl"), "--request-rate", "40"});
  TestRng rng(3);
  int num_killed = 0;
  for (int run = 0; run < 6; ++run) {
    const ProcessResult result = run_disturbed(arguments, "KILL", 0.1 + 0.1 * rng.between(0, 8));
    if (result.out.starts_with("3") || result.out.starts_with("0")) break;
    ++num_killed;
    CHECK(result.out == "9\n");
    CHECK_MESSAGE(result.err.find("rank 1 ") != std::string::npos, result.err);
    CHECK_MESSAGE(result.err.find("killed by signal 9") != std::string::npos, result.err);
  }
  CHECK(num_killed > 0);
  const ProcessResult last = run_llm_batch(with(kTwoRanks, {dir.file("in.jsonl"), "-o", dir.file("out.jsonl")}));
  CHECK_MESSAGE((last.exit_code == 3 || last.exit_code == 0), last.err);
  CHECK(stable_output(read_file(dir.file("out.jsonl"))) == stable_output(read_file(dir.file("plain.jsonl"))));
}

TEST_CASE("a rank that hangs: exit code 9 within the watchdog, and its name and step") {
  const TemporaryDirectory dir;
  write_file(dir.file("in.jsonl"), greedy_lines(200));
  const auto begin = std::chrono::steady_clock::now();
  const ProcessResult result = run_disturbed(
      with(kTwoRanks, {dir.file("in.jsonl"), "-o", dir.file("out.jsonl"), "--watchdog-timeout", "2", "--request-rate",
                       "20"}),
      "STOP", 1.5);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  CHECK(result.out == "9\n");
  CHECK_MESSAGE(result.err.find("rank 1 in step ") != std::string::npos, result.err);
  CHECK_MESSAGE(result.err.find("does not answer") != std::string::npos, result.err);
  CHECK(seconds < 60);
}

TEST_CASE("the number of ranks is a setting that answers depend on") {
  const TemporaryDirectory dir;
  write_file(dir.file("in.jsonl"), greedy_lines(3));
  const std::vector<std::string> arguments = {dir.file("in.jsonl"), "-o", dir.file("out.jsonl")};
  REQUIRE(run_llm_batch(with(kTwoRanks, arguments)).exit_code == 0);
  write_file(dir.file("in.jsonl"), greedy_lines(5));
  const ProcessResult other = run_llm_batch(arguments);
  CHECK(other.exit_code == 7);
  CHECK_MESSAGE(other.err.find("tensor_parallel_size") != std::string::npos, other.err);
  CHECK(run_llm_batch(with(kTwoRanks, arguments)).exit_code == 0);
}

TEST_CASE("what ranks cannot divide is refused by name, before anything is loaded") {
  const auto refusal = [](const std::string& model, const std::vector<std::string>& more) {
    const ProcessResult result = run_process(
        with({kProgram, "-m", source_dir() + "/data/fixtures/models/" + model, "--tokenizer", kModel}, more), "");
    CHECK(result.exit_code == 4);
    return result.err;
  };
  CHECK(refusal("gemma4", {"--pipeline-parallel-size", "4"}).find("more than 3 stages") != std::string::npos);
  CHECK(refusal("llama-gqa", {"--tensor-parallel-size", "3"}).find("num_attention_heads") != std::string::npos);
}

TEST_CASE("two ranks give vectors of texts, the same bytes in any steps") {
  const std::vector<std::string> vectors = with(kTwoRanks, {"--task", "embed", "--pooling", "mean", "--order", "input"});
  std::string lines;
  for (int i = 0; i < 12; ++i) lines += "{\"prompt\":\"text " + std::string(static_cast<size_t>(7 * i), 'a') + "\"}\n";
  const ProcessResult together = run_llm_batch(vectors, lines);
  REQUIRE_MESSAGE(together.exit_code == 0, together.err);
  const ProcessResult alone = run_llm_batch(with(vectors, {"--max-num-seqs", "1", "--threads", "2"}), lines);
  CHECK(stable_output(alone.out) == stable_output(together.out));
  CHECK(parse_lines(together.out)[11].contains("embedding"));
}

TEST_CASE("stages and context ranks give vectors of texts with the bytes of one process") {
  std::string lines;
  for (int i = 0; i < 12; ++i) lines += "{\"prompt\":\"text " + std::string(static_cast<size_t>(7 * i), 'a') + "\"}\n";
  for (const std::string pooling : {"last", "mean"}) {
    const std::vector<std::string> vectors = {"--task", "embed", "--pooling", pooling};
    const ProcessResult plain = run_llm_batch(vectors, lines);
    REQUIRE_MESSAGE(plain.exit_code == 0, plain.err);
    for (const std::string grid : {"--pipeline-parallel-size", "--prefill-context-parallel-size",
                                   "--decode-context-parallel-size"}) {
      CAPTURE(grid);
      const ProcessResult divided = run_llm_batch(with(vectors, {grid, "2"}), lines);
      REQUIRE_MESSAGE(divided.exit_code == 0, divided.err);
      CHECK(stable_output(divided.out) == stable_output(plain.out));
    }
  }
}

}  // namespace llmb::test
