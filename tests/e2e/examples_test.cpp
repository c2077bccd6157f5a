// The scripts under examples/ print what examples/expected/ holds.
#include <doctest/doctest.h>

#include "tests/e2e/has_program.h"
#include "tests/e2e/run.h"
#include "tests/support/skip.h"

namespace llmb::test {

namespace {

const std::string kExamples = source_dir() + "/examples/";

ProcessResult run_example(const std::string& command) {
  return run_shell("export PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=" + source_dir() + "/tools/package LLM_BATCH=" + kProgram +
                   " && " + kExamples + command);
}

// Model and input; with the arithmetic that every processor has, so that the bytes are the same everywhere.
void check_example(const std::string& stem, const std::string& extension, const std::string& arguments) {
  const ProcessResult result = run_example(stem + extension + " " + kModel + " " + arguments);
  INFO(result.err);
  CHECK(result.exit_code == 0);
  CHECK(result.out == read_file(kExamples + "expected/" + stem + ".txt"));
}

}  // namespace

TEST_CASE("classify_csv adds a column to a table") {
  if (!has_program("python3")) return skip("no python3");
  check_example("classify_csv", ".py", kExamples + "reviews.csv");
}

TEST_CASE("extract_json makes a table of sentences; one whose answer was cut has a question mark in every column") {
  if (!has_program("jq")) return skip("no jq");
  check_example("extract_json", ".sh", kExamples + "orders.txt --arithmetic unfused");
  const ProcessResult cut = run_example("extract_json.sh " + kModel + " " + kExamples + "orders.txt --stop {");
  CHECK(cut.out == "?\t?\t?\t?\n?\t?\t?\t?\n?\t?\t?\t?\n");
}

TEST_CASE("sample_stories samples as many stories as are asked for, the same ones each time") {
  if (!has_program("jq")) return skip("no jq");
  check_example("sample_stories", ".sh", "3 'Once upon a time' --arithmetic unfused");
}

TEST_CASE("score_heldout counts right answers by task and lists the wrong ones") {
  if (!has_program("jq")) return skip("no jq");
  check_example("score_heldout", ".sh", source_dir() + "/data/eval/examples.jsonl --arithmetic unfused");
  const TemporaryDirectory dir;
  write_file(dir.file("in.jsonl"),
             R"({"messages":[{"role":"user","content":"What is 70 + 80?"}],"metadata":{"task":"a","expected":"no"}})"
             "\n");
  const ProcessResult wrong = run_example("score_heldout.sh " + kModel + " " + dir.file("in.jsonl"));
  CHECK(wrong.out == "a: 0 of 1\n  wrong: What is 70 + 80? \"70 + 80 = 150\", expected \"no\"\n");
}

TEST_CASE("adapters answers one file whose lines name different adapters") {
  if (!has_program("jq")) return skip("no jq");
  const std::string data = source_dir() + "/data/";
  check_example("adapters", ".sh", data + "adapters " + data + "eval/adapters.jsonl --arithmetic unfused");
}

TEST_CASE("scripts over a pipe end with the program's exit code") {
  if (!has_program("jq")) return skip("no jq");
  CHECK(run_example("extract_json.sh no-such-model " + kExamples + "orders.txt").exit_code == 4);
  CHECK(run_example("sample_stories.sh no-such-model 1 x").exit_code == 4);
  CHECK(run_example("score_heldout.sh no-such-model " + source_dir() + "/data/eval/examples.jsonl").exit_code == 4);
}

TEST_CASE("nightly answers what is new in a folder, tries errors again, and fails where a file needs a look") {
  const TemporaryDirectory dir;
  const std::string line = R"({"prompt":"Once","max_tokens":2})"
                           "\n",
                    inbox = dir.file("inbox"), answers = dir.file("answers");
  const auto nightly = [&](const std::string& flags = "") {
    return run_example("nightly.sh " + kModel + " " + inbox + " " + answers + " --device ledger " + flags);
  };
  REQUIRE(run_process({"mkdir", inbox}).exit_code == 0);
  write_file(inbox + "/a.jsonl", line);
  write_file(inbox + "/b.jsonl", line + line);
  CHECK(nightly().out == read_file(kExamples + "expected/nightly.txt"));
  const std::string first = read_file(answers + "/a.jsonl");
  write_file(inbox + "/b.jsonl", line + line + line);
  const ProcessResult second = nightly();
  CHECK(second.exit_code == 0);
  CHECK(second.out == "a.jsonl: 1 answers\nb.jsonl: 3 answers\n");
  CHECK(read_file(answers + "/a.jsonl") == first);
  write_file(inbox + "/c.jsonl", R"({"prompt":5})"
                                 "\n");
  const ProcessResult failed = nightly();
  CHECK(failed.exit_code == 3);
  CHECK(failed.out.find("c.jsonl: exit code 3\n") != std::string::npos);
  CHECK(failed.out.find("b.jsonl: 3 answers\n") != std::string::npos);
}

}  // namespace llmb::test
