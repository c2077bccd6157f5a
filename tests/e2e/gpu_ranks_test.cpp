// --tensor-parallel-size on GPUs, of the whole program, with the host SIMT layer in place of GPUs: the answers of one
// GPU, the same bytes whatever the schedule and the timing, and whatever happens to a rank, nothing is lost.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/e2e/rank_lines.h"
#include "tests/e2e/run.h"

namespace llmb::test {

namespace {

const std::string kGpuProgram = binary_dir() + "/tests/gpu_program";
const std::vector<std::string> kTwoGpus = {"--tensor-parallel-size", "2"};

// Greedy and sampled rows of ids for a small model, with choices, edits and log probabilities.
std::string id_rows(int count) {
  std::string lines;
  for (int i = 0; i < count; ++i) {
    std::vector<int> prompt;
    for (int t = 0; t < 5 + i % 3; ++t) prompt.push_back((7 * (i / 4) + 5 * t + i) % 60);
    nlohmann::json line = {{"prompt_token_ids", prompt}, {"max_tokens", 2 + i % 4}, {"ignore_eos", true}};
    line["return_token_ids"] = true;
    if (i % 3 == 0) line["temperature"] = 0;
    if (i % 4 == 1) line["top_p"] = 0.9, line["temperature"] = 1.2;
    if (i % 5 == 1) line["top_k"] = 20, line["repetition_penalty"] = 1.1;
    if (i % 5 == 2) line["n"] = 2;
    if (i % 5 == 3) line["logprobs"] = 2;
    if (i % 6 == 4) line["logit_bias"] = {{"7", 4.0}, {"50", -100.0}};
    lines += line.dump() + "\n";
  }
  return lines;
}

const std::string kSmall = source_dir() + "/data/fixtures/models/llama-gqa";

std::vector<std::string> command(const std::vector<std::string>& more, int num_gpus = 2, int delay_seed = 0,
                                 int num_seqs = 4, const std::string& model = kSmall,
                                 const std::string& kv_bytes = "2000000") {
  return with({"env", "LLMB_SIMT_DEVICES=" + std::to_string(num_gpus), "LLMB_DELAY_SEED=" + std::to_string(delay_seed),
               kGpuProgram, "-m", model, "--tokenizer", kModel, "--progress", "none", "--device", "cuda",
               "--max-model-len", "64", "--max-num-seqs", std::to_string(num_seqs), "--max-num-batched-tokens", "32",
               "--threads", "1",
               "--kv-cache-memory-bytes", kv_bytes, "--dtype", "float32", "--deterministic"},
              more);
}

}  // namespace

TEST_CASE("two GPUs: the tokens of one, and one set of bytes for all timings and schedules") {
  const std::string lines = id_rows(12);
  const ProcessResult alone = run_process(command({}, 1), lines);
  REQUIRE_MESSAGE(alone.exit_code == 0, alone.err);
  const ProcessResult plain = run_process(command(kTwoGpus), lines);
  REQUIRE_MESSAGE(plain.exit_code == 0, plain.err);
  const auto tokens = [](const std::string& out) {
    std::string all;
    for (const auto& record : parse_lines(stable_output(out)))
      all += record.value("token_ids", nlohmann::json()).dump();
    return all;
  };
  CHECK(tokens(plain.out) == tokens(alone.out));
  for (const int run : {1, 2}) {
    const auto schedule = run == 1 ? kTwoGpus : with(kTwoGpus, {"--no-enable-prefix-caching", "--speculative", "none"});
    const ProcessResult other = run_process(command(schedule, 2, run, 1 + 2 * run), lines);
    CHECK_MESSAGE(other.exit_code == 0, other.err);
    CHECK(stable_output(other.out) == stable_output(plain.out));
  }
}

TEST_CASE("forms, choices, drafts by a model and swapped blocks, of text: one set of bytes, and the texts of one GPU") {
  const std::string lines = mixed_lines(9);
  const auto run = [&](std::vector<std::string> more, int num_gpus, int seed, const std::string& kv_bytes) {
    if (num_gpus > 1) more = with(kTwoGpus, more);
    const ProcessResult result = run_process(command(more, num_gpus, seed, 3 + seed, kModel, kv_bytes), lines);
    CHECK_MESSAGE(result.exit_code == 3, result.err);  // a line is no JSON
    return stable_output(result.out);
  };
  const std::string ample = "2000000", nine_blocks = "150000", draft = "draft:" + source_dir() + "/data/draft-model";
  const std::string plain = run({"--speculative", "none"}, 2, 0, ample);
  CHECK(run({"--speculative", draft}, 2, 1, ample) == plain);
  CHECK(run({"--speculative", "none", "--preemption", "swap"}, 2, 3, nine_blocks) == plain);
  const auto texts = [](const std::string& out) {
    std::string all;
    for (const auto& record : parse_lines(out)) {
      if (record.contains("text")) all += record["text"].dump();
      for (const auto& output : record.value("outputs", nlohmann::json::array())) all += output["text"].dump();
    }
    return all;
  };
  CHECK(texts(run({"--speculative", "none"}, 1, 1, ample)) == texts(plain));
}

TEST_CASE("two workers of two GPUs each: the bytes of two GPUs") {
  const TemporaryDirectory dir;
  write_file(dir.file("in.jsonl"), id_rows(24));
  const auto arguments = [&](const std::string& out, const std::vector<std::string>& more) {
    return with(command(with(kTwoGpus, more), 4), {dir.file("in.jsonl"), "-o", dir.file(out)});
  };
  const ProcessResult plain = run_process(arguments("plain.jsonl", {}));
  REQUIRE_MESSAGE(plain.exit_code == 0, plain.err);
  const ProcessResult workers = run_process(arguments("workers.jsonl", {"--workers", "2"}));
  CHECK_MESSAGE(workers.exit_code == 0, workers.err);
  CHECK(stable_output(read_file(dir.file("workers.jsonl"))) == stable_output(read_file(dir.file("plain.jsonl"))));
}

TEST_CASE("a rank on a GPU that is killed or stopped: exit code 9, its name, and the same bytes after more runs") {
  const TemporaryDirectory dir;
  write_file(dir.file("in.jsonl"), id_rows(40));
  const ProcessResult plain =
      run_process(command(with(kTwoGpus, {dir.file("in.jsonl"), "-o", dir.file("plain.jsonl")})));
  REQUIRE_MESSAGE(plain.exit_code == 0, plain.err);
  const std::vector<std::string> arguments =
      command(with(kTwoGpus, {dir.file("in.jsonl"), "-o", dir.file("out.jsonl"), "--watchdog-timeout", "10"}));
  for (const std::string signal : {"KILL", "STOP"}) {
    CAPTURE(signal);
    std::string script;
    for (const std::string& argument : arguments) script += "'" + argument + "' ";
    const ProcessResult result = run_process(
        {"/bin/bash", "-c",
         script + "</dev/null & pid=$!; until [ $(wc -l < " + dir.file("out.jsonl.partial") +
             " 2>/dev/null || echo 0) -ge " + (signal == "KILL" ? "3" : "12") +
             " ] || ! kill -0 $pid; do sleep 0.02; done; for rank in $(pgrep -P $pid); do kill -" + signal +
             " $rank; done; wait $pid; echo $?"});
    CHECK_MESSAGE(result.out == "9\n", result.err);
    CHECK_MESSAGE(result.err.find("rank 1 ") != std::string::npos, result.err);
  }
  const ProcessResult last = run_process(arguments);
  CHECK_MESSAGE(last.exit_code == 0, last.err);
  CHECK(stable_output(read_file(dir.file("out.jsonl"))) == stable_output(read_file(dir.file("plain.jsonl"))));
}

TEST_CASE("too few GPUs, and what several GPUs do not take yet, are refused by name before anything is loaded") {
  const auto refusal = [](const std::vector<std::string>& more, int code, int num_gpus = 2) {
    const ProcessResult result = run_process(command(more, num_gpus), id_rows(1));
    CHECK_MESSAGE(result.exit_code == code, result.err);
    return result.err;
  };
  CHECK(refusal(kTwoGpus, 9, 1).find("2 ranks need a GPU each, and this machine has 1") != std::string::npos);
  CHECK(refusal({"--pipeline-parallel-size", "2"}, 4).find("not over several GPUs yet") != std::string::npos);
  CHECK(refusal(with(kTwoGpus, {"--workers", "2"}), 9, 3).find("4 ranks need a GPU each") != std::string::npos);
}

}  // namespace llmb::test
