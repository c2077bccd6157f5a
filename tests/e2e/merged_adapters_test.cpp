// --merge-adapters auto: adapters with many rows run with weights merged for them; one choice for all rows of an
// adapter, whatever computes them.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>

#include "tests/e2e/run.h"

namespace llmb::test {

using nlohmann::json;

namespace {

const std::string kAdapters = source_dir() + "/data/fixtures/adapters/llama-gqa";

ProcessResult run_merged(const std::vector<std::string>& arguments, const std::string& input = "") {
  std::vector<std::string> argv = {kProgram,
                                   "--order",
                                   "input",
                                   "-m",
                                   source_dir() + "/data/fixtures/models/llama-gqa",
                                   "--tokenizer",
                                   kModel,
                                   "--progress",
                                   "none",
                                   "--dtype",
                                   "float32",
                                   "--temperature",
                                   "0",
                                   "--adapter-dir",
                                   kAdapters};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  return run_process(argv, input);
}

// Many rows of rank-8, one of rank-1, some without an adapter.
std::string lines_of(int first, int count) {
  std::string lines;
  for (int i = first; i < first + count; ++i) {
    json line = {{"prompt_token_ids", {5 + i % 7, 6, 7 + i % 11}},
                 {"max_tokens", 6},
                 {"ignore_eos", true},
                 {"return_token_ids", true},
                 {"logprobs", 1}};
    if (i == 3) line["adapter"] = "rank-1";
    else if (i % 5 != 4) line["adapter"] = "rank-8";
    lines += line.dump() + "\n";
  }
  return lines;
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }

}  // namespace

TEST_CASE(
    "a large group is merged, a small one is not; what is predicted is printed and recorded; the bytes are those of "
    "any schedule, of workers and of shards") {
  const TemporaryDirectory dir;
  write_file(dir.file("in.jsonl"), lines_of(0, 60));
  const auto run = [&](const std::string& out, std::vector<std::string> more) {
    more.insert(more.end(), {dir.file("in.jsonl"), "-o", dir.file(out), "--merge-adapters", "auto"});
    const ProcessResult result = run_merged(more);
    REQUIRE_MESSAGE(result.exit_code == 0, result.err);
    CHECK(has(result.err, "adapter \"rank-8\": merged into the weights for its 48 rows"));
    CHECK(has(result.err, "adapter \"rank-1\": not merged for its 1 rows"));
    CHECK(has(read_file(dir.file(out) + ".manifest.json"), R"("merged_adapters": "[\"rank-8\"]")"));
    return stable_output(read_file(dir.file(out)));
  };
  const std::string expected = run("one.jsonl", {});
  CHECK(run("two.jsonl", {"--batching", "none", "--threads", "1"}) == expected);
  CHECK(run("three.jsonl", {"--max-num-seqs", "3", "--adapter-memory", "1", "--schedule", "file"}) == expected);
  CHECK(run("four.jsonl", {"--workers", "2"}) == expected);
  CHECK(run("five.jsonl", {"--speculative", "layers:1", "--no-enable-prefix-caching"}) == expected);
  run("shard0.jsonl", {"--shard", "0/2"});
  run("shard1.jsonl", {"--shard", "1/2"});
  const ProcessResult merged = run_process({kProgram, "merge", dir.file("all.jsonl"), dir.file("shard0.jsonl"),
                                            dir.file("shard1.jsonl"), "--order", "input"});
  REQUIRE_MESSAGE(merged.exit_code == 0, merged.err);
  CHECK(stable_output(read_file(dir.file("all.jsonl"))) == expected);

  const ProcessResult never = run_merged({dir.file("in.jsonl")});
  const auto before = parse_lines(never.out), after = parse_lines(expected);
  REQUIRE(before.size() == after.size());
  bool differs = false;
  for (size_t i = 0; i < before.size(); ++i) {
    CHECK(before[i]["token_ids"] == after[i]["token_ids"]);
    const bool is_same = before[i]["logprobs"] == after[i]["logprobs"];
    differs |= !is_same;
    if (i % 5 == 4 || i == 3) CHECK(is_same);
  }
  CHECK(differs);
}

TEST_CASE(
    "an output goes on with the choice that it was begun with, whatever rows are added; without it it is refused") {
  const TemporaryDirectory dir;
  write_file(dir.file("in.jsonl"), lines_of(0, 20));
  const auto run = [&](const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {dir.file("in.jsonl"), "-o", dir.file("out.jsonl")};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_merged(arguments);
  };
  CHECK(run({"--merge-adapters", "auto"}).exit_code == 0);
  std::string rows_of_one;
  for (int i = 0; i < 300; ++i)
    rows_of_one += json{{"prompt_token_ids", {5, i % 50}}, {"max_tokens", 6}, {"adapter", "rank-1"}}.dump() + "\n";
  std::ofstream(dir.file("in.jsonl"), std::ios::app) << rows_of_one;
  const ProcessResult refused = run({});
  CHECK(refused.exit_code == 7);
  CHECK(has(refused.err, "merged_adapters"));
  const ProcessResult grown = run({"--merge-adapters", "auto"});
  CHECK(grown.exit_code == 0);
  CHECK(has(grown.err, "1 adapters stay merged"));
  CHECK(has(read_file(dir.file("out.jsonl.manifest.json")), R"("merged_adapters": "[\"rank-8\"]")"));
}

TEST_CASE("nothing is merged where rows are not known before, nor with quantised base weights") {
  const ProcessResult piped = run_merged({"--merge-adapters", "auto"}, lines_of(0, 60));
  CHECK(piped.exit_code == 0);
  CHECK(has(piped.err, "no adapter is merged: the input is no file"));
  const TemporaryDirectory dir;
  write_file(dir.file("in.jsonl"), lines_of(0, 60));
  std::vector<std::string> quantised = {dir.file("in.jsonl"), "--merge-adapters", "auto", "--quantization", "int8"};
  const ProcessResult result = run_merged(quantised);
  CHECK(result.exit_code == 0);
  CHECK(has(result.err, "no adapter is merged: the base's weights are quantised"));
  CHECK(run_merged({dir.file("in.jsonl"), "--merge-adapters", "always"}).exit_code == 2);
}

}  // namespace llmb::test
