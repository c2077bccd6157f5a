// --merge-adapters auto: adapters with many rows run with weights merged for them; one choice for all rows of an
// adapter, whatever computes them and whoever goes on.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>

#include "tests/e2e/killed_runs.h"
#include "tests/e2e/run.h"
#include "tests/support/killed_process.h"
#include "tests/support/skip.h"

namespace llmb::test {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

const std::string kAdapters = source_dir() + "/data/fixtures/adapters/llama-gqa";
const std::vector<std::string> kMerging = {"--adapter-dir", kAdapters, "--merge-adapters", "auto"};

std::vector<std::string> program(std::vector<std::string> arguments, const std::vector<std::string>& more = {},
                                 const std::string& model = "models/llama-gqa") {
  arguments.insert(arguments.begin(),
                   {kProgram, "--order", "input", "-m", source_dir() + "/data/fixtures/" + model, "--tokenizer", kModel,
                    "--progress", "none", "--dtype", "float32"});
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

ProcessResult run_merging(const std::vector<std::string>& arguments, const std::string& input = "") {
  return run_process(program(arguments, kMerging), input);
}

json line_of(int i, const std::string& adapter) {
  json line = {{"prompt_token_ids", {5, 6, 7, 8, 9, 10, 5 + i % 7, 6, 7 + i % 11}},
               {"max_tokens", 6},
               {"ignore_eos", true},
               {"return_token_ids", true},
               {"temperature", 0},
               {"logprobs", 1}};
  if (!adapter.empty()) line["adapter"] = adapter;
  return line;
}

// Many rows of rank-8 and of vocabulary (whose head and embeddings stay beside the weights), one of rank-1, some
// without an adapter; greedy, drawn, of several choices, and in a given form.
std::string mixed_lines() {
  const std::vector<std::string> adapters = {"rank-8", "vocabulary", "vocabulary", "rank-8", ""};
  std::string lines;
  for (int i = 0; i < 60; ++i) {
    json line = line_of(i, i == 3 ? "rank-1" : adapters[i % 5]);
    if (i % 4 == 1) line.update({{"temperature", 1.0}, {"seed", i}, {"n", 2}});
    if (i % 6 == 3) line["guided_regex"] = "[a-d]+", line.erase("ignore_eos");
    lines += line.dump() + "\n";
  }
  return lines;
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }

std::string manifest_of(const std::string& output) { return read_file(output + ".manifest.json"); }

}  // namespace

TEST_CASE(
    "large groups are merged, a small one is not; the choice is printed and recorded, and no schedule, worker or shard "
    "changes a byte") {
  const TemporaryDirectory dir;
  write_file(dir.file("in.jsonl"), mixed_lines());
  const auto run = [&](const std::string& out, std::vector<std::string> more) {
    more.insert(more.end(), {dir.file("in.jsonl"), "-o", dir.file(out)});
    const ProcessResult result = run_merging(more);
    REQUIRE_MESSAGE(result.exit_code == 0, result.err);
    CHECK(has(result.err, "adapter \"rank-8\": merged into the weights for 23 rows"));
    CHECK(has(result.err, "adapter \"vocabulary\": merged into the weights for 24 rows"));
    CHECK(has(result.err, "adapter \"rank-1\": not merged for 1 row,"));
    CHECK(has(manifest_of(dir.file(out)), R"("merged_adapters": "[\"rank-8\",\"vocabulary\"]")"));
    return stable_output(read_file(dir.file(out)));
  };
  const std::string expected = run("one.jsonl", {});
  CHECK(run("alone.jsonl", {"--batching", "none", "--threads", "1", "--no-enable-prefix-caching"}) == expected);
  CHECK(run("little.jsonl", {"--max-num-seqs", "3", "--adapter-memory", "100000", "--schedule", "file"}) == expected);
  CHECK(run("chunks.jsonl", {"--max-num-batched-tokens", "5", "--speculative", "none"}) == expected);
  CHECK(run("layers.jsonl", {"--speculative", "layers:1", "--block-size", "8"}) == expected);
  CHECK(run("pool.jsonl", {"--block-size", "8", "--num-gpu-blocks-override", "14", "--max-num-seqs", "12"}) ==
        expected);
  CHECK(run("workers.jsonl", {"--workers", "2", "--max-num-seqs", "5"}) == expected);
  CHECK(run("stages.jsonl", {"--pipeline-parallel-size", "2", "--max-num-seqs", "7"}) == expected);
  CHECK(run("rows.jsonl", {"--prefill-context-parallel-size", "2", "--speculative", "none"}) == expected);
  CHECK(run("slices.jsonl", {"--decode-context-parallel-size", "2", "--pipeline-parallel-size", "2"}) == expected);
  CHECK(run("both.jsonl", {"--workers", "2", "--pipeline-parallel-size", "2", "--max-num-seqs", "4"}) == expected);
  run("shard0.jsonl", {"--shard", "0/2"});
  run("shard1.jsonl", {"--shard", "1/2", "--shard-by", "rows", "--max-num-seqs", "2"});
  const ProcessResult merged = run_process({kProgram, "merge", dir.file("all.jsonl"), dir.file("shard0.jsonl"),
                                            dir.file("shard1.jsonl"), "--order", "input"});
  REQUIRE_MESSAGE(merged.exit_code == 0, merged.err);
  CHECK(stable_output(read_file(dir.file("all.jsonl"))) == expected);

  const ProcessResult never = run_process(program({dir.file("in.jsonl"), "--adapter-dir", kAdapters}));
  const auto before = parse_lines(stable_output(never.out)), after = parse_lines(expected);
  REQUIRE(before.size() == after.size());
  int num_different = 0;
  for (size_t i = 0; i < before.size(); ++i) {
    num_different += before[i] != after[i];
    if (i % 5 == 4 || i == 3) CHECK(before[i] == after[i]);
  }
  CHECK(num_different > 0);
}

// Sums over parts of layers round otherwise than one process's, so answers are compared with those and with what parts give
// that never merge.
TEST_CASE("ranks with parts of layers merge their parts: one process's greedy tokens, whatever the schedule") {
  const TemporaryDirectory dir;
  write_file(dir.file("in.jsonl"), mixed_lines());
  const auto run = [&](const std::vector<std::string>& more, bool merges = true) {
    std::vector<std::string> arguments = {dir.file("in.jsonl"), "--adapter-dir", kAdapters};
    if (merges) arguments.insert(arguments.end(), {"--merge-adapters", "auto"});
    const ProcessResult result = run_process(program(arguments, more));
    REQUIRE_MESSAGE(result.exit_code == 0, result.err);
    CHECK(has(result.err, "merged into the weights for 23 rows") == merges);
    return stable_output(result.out);
  };
  const auto alone = parse_lines(run({}));
  for (const std::string size : {"2", "4"}) {
    CAPTURE(size);
    const std::vector<std::string> parts = {"--tensor-parallel-size", size};
    const std::string merged = run(parts);
    CHECK(run(with(parts, {"--max-num-seqs", "3", "--max-num-batched-tokens", "5"})) == merged);
    CHECK(run(with(parts, {"--pipeline-parallel-size", "2", "--speculative", "none"})) == merged);
    CHECK(run(parts, /*merges=*/false) != merged);
    const auto records = parse_lines(merged);
    REQUIRE(records.size() == alone.size());
    for (size_t i = 0; i < records.size(); ++i) {
      if (i % 4 == 1 || i % 6 == 3) continue;  // drawn, or in a form
      CAPTURE(i);
      CHECK(records[i].at("token_ids") == alone[i].at("token_ids"));
    }
  }
}

TEST_CASE("an output goes on as it was begun, whatever rows are added; another --merge-adapters is refused by name") {
  const TemporaryDirectory dir;
  const std::string in = dir.file("in.jsonl"), out = dir.file("out.jsonl");
  write_file(in, mixed_lines());
  const std::vector<std::string> files = {in, "-o", out};
  CHECK(run_merging(files).exit_code == 0);
  const std::string first = read_file(out);
  std::string rows;
  for (int i = 0; i < 400; ++i) rows += line_of(i, "rank-1").dump() + "\n";
  std::ofstream(in, std::ios::app) << rows;
  for (const std::vector<std::string>& other : {std::vector<std::string>{}, {"--merge-adapters", "never"}}) {
    std::vector<std::string> never = {"--adapter-dir", kAdapters};
    never.insert(never.end(), other.begin(), other.end());
    const ProcessResult refused = run_process(program(files, never));
    CHECK(refused.exit_code == 7);
    CHECK(has(refused.err, "merged_adapters was [\"rank-8\",\"vocabulary\"]"));
    CHECK(read_file(out) == first);
  }
  const ProcessResult grown = run_merging(files);
  CHECK_MESSAGE(grown.exit_code == 0, grown.err);
  CHECK(has(grown.err, "2 adapters stay merged into the weights, as this output was begun"));
  CHECK(has(manifest_of(out), R"("merged_adapters": "[\"rank-8\",\"vocabulary\"]")"));
  CHECK(parse_lines(read_file(out)).size() == 460);
  const ProcessResult anew = run_merging({in, "-o", dir.file("anew.jsonl")});
  CHECK(has(anew.err, "adapter \"rank-1\": merged"));

  const std::string plain = dir.file("plain.jsonl");
  CHECK(run_process(program({in, "-o", plain, "--adapter-dir", kAdapters})).exit_code == 0);
  const std::string before = stable_output(read_file(plain));
  std::ofstream(in, std::ios::app) << line_of(1, "rank-8").dump() << "\n";
  const ProcessResult later = run_merging({in, "-o", plain});
  CHECK_MESSAGE(later.exit_code == 0, later.err);
  CHECK(has(later.err, "no adapter is merged: this output was begun so"));
  CHECK(stable_output(read_file(plain)).starts_with(before));
  CHECK(!has(manifest_of(plain), "merged_adapters"));
}

TEST_CASE("a job that merges, killed at file calls and continued with other batches, ends with the same bytes") {
  if (!can_count_file_calls()) return skip("no tracing here");
  const TemporaryDirectory dir(/*in_memory=*/true);
  write_file(dir.file("in.jsonl"), mixed_lines());
  int num_runs = 0;
  const auto run_into = [&](const std::string& output, const StopPlan& plan) {
    std::vector<std::string> argv =
        program({"--threads", "1", "--max-num-seqs", std::to_string(1 + num_runs++ * 5 % 13), "-o", output,
                 dir.file("in.jsonl")},
                kMerging);
    return run_and_stop(argv, "/dev/null", dir.file("err"), plan);
  };
  check_killed_at_file_calls(dir, run_into);
}

TEST_CASE("adapters that fail cost their rows only, also those with enough rows to be merged") {
  const TemporaryDirectory dir;
  const fs::path root = dir.file("adapters");
  for (const char* const name : {"good", "nan", "missing", "truncated"}) {
    fs::create_directories(root / name);
    for (const char* const file : {"adapter_config.json", "adapter_model.safetensors"})
      fs::copy_file(kAdapters + "/rank-8/" + file, root / name / file);
  }
  std::fstream values(root / "nan/adapter_model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
  values.seekp(-2, std::ios::end);
  values.write("\xc0\x7f", 2);
  values.close();
  fs::remove(root / "missing/adapter_model.safetensors");
  fs::resize_file(root / "truncated/adapter_model.safetensors", 1000);
  const std::vector<std::string> adapters = {"good", "nan", "missing", "truncated", ""};
  std::string lines;
  for (int i = 0; i < 100; ++i) lines += line_of(i, adapters[i % 5]).dump() + "\n";
  write_file(dir.file("in.jsonl"), lines);
  const ProcessResult result =
      run_process(program({dir.file("in.jsonl"), "--adapter-dir", root.string(), "--merge-adapters", "auto"}));
  CHECK(result.exit_code == 3);
  CHECK(has(result.err, "adapter \"good\": merged into the weights for 20 rows"));
  const auto records = parse_lines(stable_output(result.out));
  REQUIRE(records.size() == 100);
  for (int i = 0; i < 100; ++i) {
    const json& error = records[i].value("error", json());
    CHECK((error.is_null() ? "" : error["code"]) == (i % 5 == 0 || i % 5 == 4 ? "" : "invalid_adapter"));
  }
}

TEST_CASE(
    "merging is refused by name where weights are in few bits, off a CPU, and where memory has no room; so in a dry "
    "run") {
  const TemporaryDirectory dir;
  write_file(dir.file("in.jsonl"), mixed_lines());
  for (const bool is_dry : {false, true}) {
    const auto refused = [&](std::vector<std::string> more, const std::string& why,
                             const std::string& model = "models/llama-gqa") {
      more.push_back(dir.file("in.jsonl"));
      if (is_dry) more.push_back("--dry-run");
      const ProcessResult result = run_process(program(more, kMerging, model));
      CAPTURE(result.err);
      CHECK(result.exit_code == 2);
      CHECK(has(result.err, "--merge-adapters auto: " + why));
      CHECK(result.out.empty());
    };
    refused({"--quantization", "int8"}, "not with quantization int8");
    refused({"--device", "ledger"}, "weights are merged on a CPU only");
    refused({"--adapter-memory", "70000"},
            "the weights that are merged for adapter \"rank-8\" take 1 MiB, and --adapter-memory has room for 0 MiB");
    for (const char* const model : {"quantized/gptq-4", "gguf/llama-k.gguf"})
      refused({}, "the model's weights are stored in few bits", model);
  }
  for (const char* const option : {"--workers", "--tensor-parallel-size"})
    CHECK(run_merging({option, "2", "--adapter-memory", "100000", dir.file("in.jsonl")}).exit_code == 2);
  CHECK(run_process(program({dir.file("in.jsonl"), "--merge-adapters", "always"})).exit_code == 2);
  const ProcessResult dry = run_merging({dir.file("in.jsonl"), "--dry-run"});
  CHECK(dry.exit_code == 0);
  CHECK(has(dry.err, "adapter \"rank-8\": merged into the weights for 23 rows"));
}

TEST_CASE("nothing is merged where rows are not known before, or none names an adapter; the bytes are those of never") {
  const ProcessResult piped = run_merging({}, mixed_lines());
  CHECK(piped.exit_code == 0);
  CHECK(has(piped.err, "no adapter is merged: the input is no file"));
  const ProcessResult never =
      run_process(program({"--adapter-dir", kAdapters, "--merge-adapters", "never"}), mixed_lines());
  CHECK(!has(never.err, "merged"));
  CHECK(stable_output(never.out) == stable_output(piped.out));
  const TemporaryDirectory dir;
  write_file(dir.file("in.jsonl"), line_of(0, "").dump() + "\n");
  CHECK(has(run_merging({dir.file("in.jsonl")}).err, "no adapter is merged: no row names one"));
  CHECK(run_process(program({dir.file("in.jsonl"), "--merge-adapters", "auto"})).exit_code == 0);
}

}  // namespace llmb::test
