// The result does not depend on the schedule: bytes equal per line at any batch size, mode, order, chunking, preemption
// and thread count (FAULTS row 29, as far as the CPU backend goes).
#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <set>

#include "model/config_loader.h"
#include "tests/e2e/run.h"
#include "tests/support/golden.h"
#include "tests/support/source_dir.h"

namespace llmb::test {

namespace {

// Greedy and sampled, short and long, with log-probabilities: everything that a record can show. Each line has its own
// seed, so that shuffling may not change it.
std::vector<std::string> workload() {
  std::vector<std::string> lines;
  const auto examples = parse_lines(read_file(source_dir() + "/data/eval/examples.jsonl"));
  for (size_t i = 0; i < 2 * examples.size(); ++i) {
    nlohmann::json line = examples[i % examples.size()];
    line["id"] = i;
    line["seed"] = i;
    line["max_tokens"] = 5 + (i * 7) % 40;
    if (i % 2 == 1) line["temperature"] = 1.2;
    if (i % 5 == 1) line["repetition_penalty"] = 1.3;
    if (i % 4 == 0) line["logprobs"] = 2;
    lines.push_back(line.dump() + "\n");
  }
  return lines;
}

// Records by id, without index, hash and metrics.
std::string by_id(const std::string& output) {
  auto records = parse_lines(output);
  std::sort(records.begin(), records.end(), [](const auto& a, const auto& b) { return a["id"] < b["id"]; });
  std::string out;
  for (auto& record : records) {
    record.erase("metrics");
    record.erase("index");
    out += record.dump() + "\n";
  }
  return out;
}

std::string join(const std::vector<std::string>& lines) {
  std::string all;
  for (const std::string& line : lines) all += line;
  return all;
}

}  // namespace

TEST_CASE("FAULTS 29: the same bytes for every line whatever the schedule") {
  const TemporaryDirectory dir;
  std::vector<std::string> lines = workload();
  write_file(dir.file("in.jsonl"), join(lines));
  std::shuffle(lines.begin(), lines.end(), std::mt19937(1));
  write_file(dir.file("shuffled.jsonl"), join(lines));
  const ProcessResult reference = run_llm_batch({dir.file("in.jsonl"), "--batching", "none", "--threads", "1"});
  REQUIRE_MESSAGE(reference.exit_code == 0, reference.err);
  const std::string expected = by_id(reference.out);
  REQUIRE(parse_lines(expected).size() == lines.size());

  const std::vector<std::vector<std::string>> schedules = {
      {},
      {"--max-num-seqs", "7"},
      {"--max-num-seqs", "32", "--threads", "3"},
      {"--max-num-seqs", "256", "--max-num-batched-tokens", "8192"},
      {"--max-num-batched-tokens", "5"},
      {"--max-num-batched-tokens", "17", "--block-size", "8"},
      {"--batching", "static", "--max-num-seqs", "7"},
      {"--batching", "dynamic", "--max-num-seqs", "7", "--batch-window-ms", "1"},
      {"--order", "input"},
      {"--request-rate", "400"},
      {"--request-rate", "400", "--policy", "sjf", "--max-num-seqs", "4"},
      {"--request-rate", "400", "--policy", "mlfq", "--max-num-seqs", "4"},
      {"--num-gpu-blocks-override", "24", "--max-model-len", "256"},  // forces preemption
  };
  for (const auto& schedule : schedules) {
    std::string name;
    for (const std::string& word : schedule) name += word + " ";
    for (const char* file : {"in.jsonl", "shuffled.jsonl"}) {
      INFO(name << file);
      std::vector<std::string> arguments = schedule;
      arguments.push_back(dir.file(file));
      const ProcessResult result = run_llm_batch(arguments);
      CHECK_MESSAGE(result.exit_code == 0, result.err);
      CHECK(by_id(result.out) == expected);
    }
  }
}

TEST_CASE("a small KV pool preempts, and says so in the metrics") {
  std::string input;
  for (int i = 0; i < 16; ++i)  // answers that differ, so that they have no blocks in common
    input += R"({"prompt":"Once upon a time","max_tokens":100,"ignore_eos":true,"temperature":1,"seed":)" +
             std::to_string(i) + "}\n";
  const ProcessResult result = run_llm_batch({"--num-gpu-blocks-override", "24", "--max-model-len", "256"}, input);
  REQUIRE_MESSAGE(result.exit_code == 0, result.err);
  int num_preemptions = 0;
  for (const auto& record : parse_lines(result.out)) {
    CHECK(record["usage"]["completion_tokens"] == 100);
    num_preemptions += record["metrics"]["num_preemptions"].get<int>();
  }
  CHECK(num_preemptions > 0);
}

TEST_CASE("FAULTS 29: of every architecture, a job that goes on with other settings has the bytes of rows one at a time") {
  const TemporaryDirectory dir;
  std::set<std::string> seen;
  for (const std::string& model : golden_model_dirs()) {
    CAPTURE(model);
    if (!seen.insert(load_model_config(model).value().model_type).second) continue;
    std::string lines, first;
    const auto golden = read_json_lines(model + "/golden.jsonl");
    for (size_t i = 0; i < 6; ++i) {
      const nlohmann::json line = {{"prompt_token_ids", golden[i % golden.size()]["prompt_token_ids"]},
                                   {"max_tokens", 3 + i}, {"ignore_eos", true}, {"temperature", i % 2}, {"seed", i / 3},
                                   {"logprobs", 1}};
      lines += line.dump() + "\n";
      if (i == 2) first = lines;
    }
    const std::string in = dir.file("in.jsonl"), out = dir.file("out.jsonl");
    const auto run = [&](const std::vector<std::string>& more) {
      const ProcessResult result = run_process(
          with({kProgram, "-m", model, "--tokenizer", kModel, "--progress", "none", "--threads", "1", in, "-o", out}, more));
      REQUIRE_MESSAGE(result.exit_code == 0, result.err);
      return stable_output(read_file(out));
    };
    write_file(in, lines);
    const std::string expected = run({"--restart", "--batching", "none", "--speculative", "none", "--no-enable-prefix-caching"});
    REQUIRE(parse_lines(expected).size() == 6);
    write_file(in, first);
    run({"--restart", "--max-num-seqs", "2", "--block-size", "8"});
    write_file(in, lines);
    CHECK(run({"--max-num-seqs", "5", "--max-num-batched-tokens", "17"}) == expected);
  }
  CHECK(seen.size() > 60);
}

}  // namespace llmb::test
