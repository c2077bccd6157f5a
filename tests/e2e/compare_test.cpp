// `llm-batch compare`: every batching mode on the user's own lines.
#include <doctest/doctest.h>

#include <filesystem>

#include "tests/e2e/ledger_job.h"
#include "tests/e2e/run.h"

namespace llmb::test {

namespace {

ProcessResult compare(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {kProgram, "compare", "-m", kModel, "--device", "ledger"});
  return run_process(arguments);
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> found;
  std::stringstream lines(text);
  for (std::string line; std::getline(lines, line);) found.push_back(line);
  return found;
}

}  // namespace

TEST_CASE("all modes run on the first lines: a table, a report, equal answers") {
  const TemporaryDirectory dir;
  const std::string in = dir.file("in.jsonl"), page = dir.file("page.html");
  write_file(in, make_input(0, 50, 8));
  const ProcessResult result = compare({in, "--sample", "30", "--report", page});
  CHECK_MESSAGE(result.exit_code == 0, result.err);
  const std::vector<std::string> lines = lines_of(result.out);
  REQUIRE(lines.size() == 9);
  CHECK(contains(lines[0], "seconds"));
  for (size_t i = 1; i < 8; ++i) CHECK(contains(lines[i], " × "));
  CHECK(lines[1].starts_with("none (batch 1)"));
  CHECK(lines[7].starts_with("continuous, shared and planned"));
  CHECK(lines[8] == "answers: the same bytes in all runs");
  CHECK(contains(result.err, "the first 30 lines, 7 runs"));
  CHECK(contains(read_file(page), "continuous, shared and planned"));
  CHECK(contains(read_file(page), "tr class=\"differs\""));
  CHECK(read_file(page).size() < (1 << 20));
  // Nothing is left beside the input.
  for (const auto& entry : std::filesystem::directory_iterator(dir.path()))
    CHECK((entry.path() == in || entry.path() == page));
}

TEST_CASE("a sample may be all there is, of several files, or of a table") {
  const TemporaryDirectory dir;
  write_file(dir.file("a.jsonl"), make_input(0, 3, 4));
  write_file(dir.file("b.jsonl"), make_input(3, 5, 4));
  const ProcessResult both = compare({dir.file("a.jsonl"), dir.file("b.jsonl"), "--sample", "100"});
  CHECK_MESSAGE(both.exit_code == 0, both.err);
  CHECK(contains(both.err, "all 5 lines"));
  write_file(dir.file("t.csv"), "name,text\nx,\"two\nlines\"\ny,three\nz,four\n");
  const ProcessResult table = compare({dir.file("t.csv"), "--sample", "2", "--prompt-field", "text", "--max-tokens", "3"});
  CHECK_MESSAGE(table.exit_code == 0, table.err);
  CHECK(contains(table.err, "the first 2 lines"));
}

TEST_CASE("lines that fail are error records here too") {
  const TemporaryDirectory dir;
  write_file(dir.file("in.jsonl"), make_input(0, 20, 4, /*every_bad=*/5));
  const ProcessResult result = compare({dir.file("in.jsonl"), "--sample", "20", "--progress", "none"});
  CHECK(result.exit_code == 3);
  CHECK(result.err == "");
  CHECK(contains(result.out, "the same bytes"));
}

TEST_CASE("what compare does not do is refused in words") {
  const TemporaryDirectory dir;
  const std::string in = dir.file("in.jsonl"), empty = dir.file("empty.jsonl");
  write_file(in, make_input(0, 3, 4));
  write_file(empty, "");
  const auto refused = [](const std::vector<std::string>& arguments, int exit_code, const std::string& message) {
    const ProcessResult result = compare(arguments);
    CHECK(result.exit_code == exit_code);
    CHECK_MESSAGE(contains(result.err, message), result.err);
  };
  refused({}, 2, "compare needs files");
  refused({"-"}, 2, "compare needs files");
  refused({in, "--batching", "static"}, 2, "compare does not read --batching");
  refused({in, "-o", dir.file("out.jsonl")}, 2, "compare does not read --output");
  refused({in, "--sample", "0"}, 2, "--sample");
  refused({empty}, 5, "the inputs have no line");
  refused({dir.file("nowhere.jsonl")}, 5, "nowhere.jsonl");
  const ProcessResult plain = run_ledger({in, "--sample", "3"});
  CHECK(plain.exit_code == 2);
  CHECK(contains(plain.err, "--sample is for llm-batch compare"));
}

}  // namespace llmb::test
