// --output-format npy: the built program writes vectors as rows of a .npy file with an index, as durably as JSON lines.
#include <doctest/doctest.h>

#include <cstring>
#include <filesystem>

#include "tests/e2e/has_program.h"
#include "tests/e2e/killed_runs.h"
#include "tests/e2e/run.h"
#include "tests/support/skip.h"

namespace llmb::test {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr int kWidth = 32;
constexpr size_t kHeaderBytes = 128;
const std::string kEncoder = source_dir() + "/data/fixtures/encoders/bert";

// Texts, lists of them, token ids, batch lines and lines that are errors.
std::string mixed_lines(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) {
    const std::string sentence = "A text about number " + std::to_string(i) + ".";
    json line = {{"input", sentence}};
    if (i % 5 == 1) line = {{"id", i}, {"input", {sentence, "b", std::string(static_cast<size_t>(i % 50 + 1), 'x')}}};
    if (i % 5 == 2) line = {{"id", "tokens"}, {"prompt_token_ids", {2, 28 + i % 100, 3}}};
    if (i % 5 == 3)
      line = {{"custom_id", "c-" + std::to_string(i)},
              {"method", "POST"},
              {"url", "/v1/embeddings"},
              {"body", {{"model", "m"}, {"input", {sentence, sentence}}, {"encoding_format", "float"}}}};
    if (i % 11 == 7) line = {{"input", ""}};
    text += line.dump() + "\n";
  }
  return text;
}

struct Job {
  TemporaryDirectory dir{/*in_memory=*/true};
  std::string in = dir.file("in.jsonl"), out = dir.file("v.npy");

  explicit Job(int num_lines) { write_file(in, mixed_lines(num_lines)); }
  std::vector<std::string> command(const std::vector<std::string>& more) const {
    return with({kProgram, "-m", kEncoder, "--progress", "none", "--task", "embed", "--no-metrics", in}, more);
  }
  ProcessResult run(const std::vector<std::string>& more) const { return run_process(command(more)); }
  // Into `path`, with rows.
  ProcessResult run_rows(const std::string& path, const std::vector<std::string>& more = {}) const {
    return run(with({"--output-format", "npy", "-o", path}, more));
  }
};

std::string index_of(const std::string& path) { return read_file(path + ".index.jsonl"); }

// Each line's rows by its index, and its record without where they are.
std::map<int64_t, std::string> by_line(const std::string& path) {
  const std::string bytes = read_file(path);
  std::map<int64_t, std::string> lines;
  for (json record : parse_lines(index_of(path))) {
    std::string text;
    if (record.contains("row")) {
      const size_t row = record["row"], count = record["num_rows"];
      text = bytes.substr(kHeaderBytes + 4 * kWidth * row, 4 * kWidth * count);
      record.erase("row");
    }
    if (record.contains("error")) record["error"].erase("line");  // which names the input's folder
    const int64_t index = record["index"];
    CHECK(lines.emplace(index, record.dump() + text).second);
  }
  return lines;
}

void check_refused(const ProcessResult& result, int exit_code, const std::string& message) {
  CHECK(result.exit_code == exit_code);
  CHECK_MESSAGE(result.err.find(message) != std::string::npos, result.err);
}

}  // namespace

TEST_CASE("rows are the vectors of the JSON lines, bit by bit, and the index says whose they are") {
  const Job job(40);
  const ProcessResult plain = job.run({"--order", "input"});
  REQUIRE_MESSAGE(plain.exit_code == 3, plain.err);
  const ProcessResult rows = job.run_rows(job.out, {"--order", "input"});
  REQUIRE_MESSAGE(rows.exit_code == 3, rows.err);
  const std::string bytes = read_file(job.out);
  const auto expected = parse_lines(plain.out), index = parse_lines(index_of(job.out));
  REQUIRE(index.size() == expected.size());
  size_t row = 0;
  for (size_t i = 0; i < index.size(); ++i) {
    const json& record = expected[i];
    CHECK(index[i]["index"] == record["index"]);
    const bool is_batch = record.contains("custom_id");
    CHECK(index[i]["id"] == record[is_batch ? "custom_id" : "id"]);
    if (record.contains("error") && !record["error"].is_null()) {
      CHECK(index[i]["error"] == record["error"]);
      continue;
    }
    std::vector<json> vectors;
    if (is_batch)
      for (const json& entry : record["response"]["body"]["data"]) vectors.push_back(entry["embedding"]);
    else if (record.contains("embedding")) vectors.push_back(record["embedding"]);
    else vectors = record["embeddings"].get<std::vector<json>>();
    CHECK(index[i]["row"] == row);
    CHECK(index[i]["num_rows"] == vectors.size());
    for (const json& vector : vectors) {
      std::vector<float> values(kWidth);
      REQUIRE(bytes.size() >= kHeaderBytes + 4 * kWidth * (row + 1));
      std::memcpy(values.data(), bytes.data() + kHeaderBytes + 4 * kWidth * row++, 4 * kWidth);
      CHECK(values == vector.get<std::vector<float>>());
    }
  }
  CHECK(bytes.size() == kHeaderBytes + 4 * kWidth * row);
  CHECK(bytes.substr(10, 70).find("'shape': (" + std::to_string(row) + ", 32)") != std::string::npos);
  CHECK(!fs::exists(job.out + ".partial"));
  const ProcessResult again = job.run_rows(job.out);
  CHECK(again.exit_code == 0);
  CHECK(read_file(job.out) == bytes);
}

TEST_CASE("numpy reads the rows") {
  if (!has_program("python3") || run_process({"python3", "-c", "import numpy"}).exit_code != 0)
    return skip("no python3 with numpy");
  const Job job(25);
  REQUIRE(job.run_rows(job.out).exit_code == 3);
  const std::string script =
      "import numpy, json, sys\n"
      "rows = numpy.load(sys.argv[1], mmap_mode='r')\n"
      "index = [json.loads(line) for line in open(sys.argv[1] + '.index.jsonl')]\n"
      "assert rows.dtype == numpy.float32 and rows.shape[1] == 32\n"
      "assert rows.shape[0] == sum(record.get('num_rows', 0) for record in index)\n"
      "assert numpy.allclose((rows ** 2).sum(axis=1), 1, atol=1e-5)\n";
  const ProcessResult result = run_process({"python3", "-c", script, job.out});
  CHECK_MESSAGE(result.exit_code == 0, result.err);
}

TEST_CASE("whatever the batch, the workers, the order and the kills: the same rows for the same lines") {
  const Job job(60);
  REQUIRE(job.run_rows(job.out, {"--order", "input"}).exit_code == 3);
  const auto expected = by_line(job.out);
  CHECK(expected.size() == 60);
  for (const std::vector<std::string>& more :
       {std::vector<std::string>{}, {"--max-num-seqs", "1"}, {"--workers", "2"}, {"--threads", "1", "--schedule", "file"}}) {
    const std::string other = job.dir.file("other.npy");
    CHECK(job.run_rows(other, with(more, {"--restart"})).exit_code == 3);
    CHECK(by_line(other) == expected);
    CHECK(job.run_rows(other, with(more, {"--restart", "--order", "input"})).exit_code == 3);
    CHECK(read_file(other) == read_file(job.out));
    CHECK(index_of(other) == index_of(job.out));
  }
  const std::string killed = job.dir.file("killed.npy");
  int num_kills = 0, exit_code = 137;
  for (int attempt = 1; exit_code != 3; ++attempt) {
    REQUIRE(attempt < 100);
    StopPlan plan = stop_of_attempt(attempt);
    plan.signal = SIGKILL;
    const StoppedProcess run =
        run_and_stop(job.command({"--output-format", "npy", "--order", "input", "-o", killed}), "/dev/null",
                     job.dir.file("err"), plan);
    exit_code = run.exit_code;
    num_kills += run.ended_by_signal;
  }
  CHECK(num_kills > 2);
  CHECK(read_file(killed) == read_file(job.out));
  CHECK(index_of(killed) == index_of(job.out));
}

TEST_CASE("an input that grew, and errors that are retried, add rows; what was there stays") {
  const Job job(30);
  REQUIRE(job.run_rows(job.out).exit_code == 3);
  const auto before = by_line(job.out);
  write_file(job.in, mixed_lines(45));
  CHECK(job.run_rows(job.out).exit_code == 3);
  const auto after = by_line(job.out);
  CHECK(after.size() == 45);
  for (const auto& [line, text] : before) CHECK(after.at(line) == text);
  CHECK(job.run_rows(job.out, {"--retry-errors"}).exit_code == 3);
  CHECK(by_line(job.out) == after);
  const Job whole(45);
  REQUIRE(whole.run_rows(whole.out).exit_code == 3);
  CHECK(by_line(whole.out) == after);
}

TEST_CASE("shards are merged into the rows of one run, also where one of them is not finished") {
  const Job job(50);
  REQUIRE(job.run_rows(job.out, {"--order", "input"}).exit_code == 3);
  std::vector<std::string> shards;
  for (const std::string shard : {"0/3", "1/3", "2/3"}) {
    shards.push_back(job.dir.file("s" + shard.substr(0, 1) + ".npy"));
    const ProcessResult result = job.run_rows(shards.back(), {"--shard", shard});
    CHECK_MESSAGE((result.exit_code == 0 || result.exit_code == 3), result.err);
  }
  const std::string merged = job.dir.file("merged.npy");
  const auto merge = [&](const std::string& order) {
    return run_process(with({kProgram, "merge", "--order", order, "--restart", merged}, shards));
  };
  const ProcessResult result = merge("input");
  CHECK_MESSAGE(result.exit_code == 3, result.err);
  CHECK(read_file(merged) == read_file(job.out));
  CHECK(index_of(merged) == index_of(job.out));
  CHECK(merge("completion").exit_code == 3);
  CHECK(by_line(merged) == by_line(job.out));
  CHECK(job.run_rows(merged).exit_code == 0);  // nothing to do

  fs::rename(shards[1] + ".index.jsonl", job.dir.file("kept"));
  check_refused(merge("input"), 7, "index of the output's rows is gone");
  fs::rename(job.dir.file("kept"), shards[1] + ".index.jsonl");
  const std::string plain = job.dir.file("plain.jsonl");
  const int exit_code = job.run({"--shard", "1/3", "-o", plain}).exit_code;
  CHECK((exit_code == 0 || exit_code == 3));
  shards[1] = plain;
  check_refused(merge("input"), 7, "output_format");

  // The last shard is left to another run, whose records are taken as they are.
  shards = {shards[0], job.dir.file("rest.npy")};
  CHECK(job.run_rows(shards[1], {"--done", shards[0]}).exit_code == 3);
  CHECK(merge("input").exit_code == 3);
  CHECK(read_file(merged) == read_file(job.out));
}

TEST_CASE("a disk that fills up while rows are put together costs nothing; the next run completes") {
  const Job job(60);
  REQUIRE(job.run_rows(job.out, {"--order", "input"}).exit_code == 3);
  std::string command;
  const std::string full = job.dir.file("full.npy");
  for (const std::string& word : job.command({"--output-format", "npy", "--order", "input", "-o", full}))
    command += "'" + word + "' ";
  int num_full = 0;
  for (const std::string blocks : {"1", "8", "16"}) {  // of 512 bytes: beyond them a file does not grow
    const ProcessResult limited = run_shell("ulimit -f " + blocks + "; exec " + command);
    CHECK_MESSAGE((limited.exit_code == 6 || limited.exit_code == 3), limited.err);
    num_full += limited.exit_code == 6;
    if (limited.exit_code == 6) CHECK(!fs::exists(full));
  }
  CHECK(num_full > 0);
  run_shell("exec " + command);
  CHECK(read_file(full) == read_file(job.out));
  CHECK(index_of(full) == index_of(job.out));
}

TEST_CASE("a file has vectors of one length: another one costs its line, or is asked for by a flag") {
  const Job job(0);
  write_file(job.in, R"({"input":"a","dimensions":8})" "\n" R"({"input":"b"})" "\n" R"({"input":"c","dimensions":32})" "\n");
  CHECK(job.run_rows(job.out, {"--order", "input"}).exit_code == 3);
  auto index = parse_lines(index_of(job.out));
  CHECK(index[0]["error"]["code"] == "invalid_value");
  CHECK(index[0]["error"]["param"] == "dimensions");
  CHECK(index[0]["error"]["message"] == "dimensions is 8, and all rows of this output have 32");
  CHECK(index[1]["row"] == 0);
  CHECK(index[2]["row"] == 1);
  check_refused(job.run_rows(job.out, {"--dimensions", "8"}), 7, "dimensions");
  CHECK(job.run_rows(job.out, {"--dimensions", "8", "--restart", "--order", "input"}).exit_code == 3);
  index = parse_lines(index_of(job.out));
  CHECK(index[0]["row"] == 0);
  CHECK(index[1]["row"] == 1);
  CHECK(index[2]["error"]["message"] == "dimensions is 32, and all rows of this output have 8");
  CHECK(read_file(job.out).size() == kHeaderBytes + 2 * 8 * 4);
  check_refused(job.run_rows(job.out, {"--dimensions", "33", "--restart"}), 2, "more than the 32 values");
}

TEST_CASE("without a row, and with nothing but errors, there is a file of the right shape") {
  const Job job(0);
  for (const std::string lines : {"", "no line\n"}) {
    write_file(job.in, lines);
    CHECK(job.run_rows(job.out, {"--restart"}).exit_code == (lines.empty() ? 0 : 3));
    CHECK(read_file(job.out).size() == kHeaderBytes);
    CHECK(read_file(job.out).find("'shape': (0, 32)") != std::string::npos);
  }
}

TEST_CASE("the options are refused where they make no sense, and files that are not ours stay") {
  const Job job(10);
  check_refused(job.run({"--output-format", "npy"}), 2, "needs a file");
  check_refused(job.run({"--output-format", "npy", "-o", "/dev/null"}), 2, "needs a file");
  check_refused(job.run({"--output-format", "csv", "-o", job.out}), 2, "csv");
  check_refused(run_llm_batch({"--output-format", "npy", "-o", job.out, job.in}), 2, "needs --task embed");
  check_refused(run_llm_batch({"--dimensions", "8", job.in}), 2, "needs --task embed");
  const ProcessResult dry = job.run_rows(job.out, {"--dry-run"});
  CHECK_MESSAGE(dry.exit_code == 3, dry.err);
  CHECK(!fs::exists(job.out));
  write_file(job.out + ".index.jsonl", "mine");
  check_refused(job.run_rows(job.out), 7, "move it away");
  CHECK(index_of(job.out) == "mine");
  fs::remove(job.out + ".index.jsonl");
  REQUIRE(job.run_rows(job.out).exit_code == 3);
  check_refused(job.run({"-o", job.out}), 7, "output_format");
  check_refused(job.run_rows(job.out, {"--metrics", job.out + ".index.jsonl"}), 2, "part of the output");
  const std::string rows = read_file(job.out);
  write_file(job.out, rows + "x");
  check_refused(job.run_rows(job.out), 7, "bytes, not the");
  CHECK(read_file(job.out) == rows + "x");
  write_file(job.out, rows);
  CHECK(job.run_rows(job.out).exit_code == 0);
  fs::remove(job.out + ".index.jsonl");
  check_refused(job.run_rows(job.out), 7, "index of the output's rows is gone");
}

}  // namespace llmb::test
