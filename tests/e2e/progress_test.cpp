// The progress of a run: a bar that moves with the work, and why lines failed.
#include "cli/progress.h"

#include <doctest/doctest.h>

#include <regex>

#include "tests/e2e/has_program.h"
#include "tests/e2e/run.h"
#include "tests/support/skip.h"

namespace llmb::test {

namespace {

// Rows of 10 tokens in and 90 out at most.
JobProgress rows(int64_t num_read, int64_t num_running, int64_t num_active_tokens) {
  JobProgress p;
  p.num_read = num_read;
  p.num_lines = num_read;
  p.engine.num_running = num_running;
  p.engine.num_active_tokens = num_active_tokens;
  p.forecast.num_rows = num_read;
  p.forecast.num_prompt_tokens = 10 * num_read;
  p.forecast.num_output_tokens = 90 * num_read;
  return p;
}

std::vector<double> matches(const std::string& text, const std::string& pattern) {
  const std::regex regex(pattern);
  std::vector<double> values;
  for (std::sregex_iterator it(text.begin(), text.end(), regex), end; it != end; ++it) values.push_back(std::stod((*it)[1]));
  return values;
}

// Answers of one length to rows that differ.
std::string long_rows(int count) {
  std::string lines;
  for (int i = 0; i < count; ++i)
    lines += R"({"prompt":"Tale )" + std::to_string(i) + R"(","ignore_eos":true,"max_tokens":500})" + "\n";
  return lines;
}

}  // namespace

TEST_CASE("equal rows that run together move the bar before one of them ends") {
  CHECK(fraction_done(rows(40, 40, 0)) == 0.0);
  CHECK(*fraction_done(rows(40, 40, 1000)) == doctest::Approx(0.25));
  CHECK(*fraction_done(rows(40, 40, 3000)) == doctest::Approx(0.75));
  CHECK(*fraction_done(rows(40, 40, 4000)) < 1);  // not before the records are written
}

TEST_CASE("lines that are not read yet count as those that are") {
  JobProgress p = rows(40, 40, 1000);
  p.num_lines.reset();
  CHECK_FALSE(fraction_done(p));  // a pipe
  p.input_bytes = 500, p.total_bytes = 1000;
  CHECK(*fraction_done(p) == doctest::Approx(0.125));
  p.num_lines = 160;
  CHECK(*fraction_done(p) == doctest::Approx(0.0625));
}

TEST_CASE("where no row is computed, rows count") {
  JobProgress p;
  p.num_read = 8, p.num_lines = 8, p.num_done = 2;
  CHECK(*fraction_done(p) == doctest::Approx(0.25));
  p.num_lines = 0, p.num_read = 0, p.num_done = 0;
  CHECK_FALSE(fraction_done(p));
}

TEST_CASE("on a terminal the bar moves while no row has ended, and never back") {
  if (!has_program("script")) return skip("script(1) is not installed");
  const TemporaryDirectory dir;
  // All of them run at once, for some ten times as long as it takes the bar to be drawn again.
  write_file(dir.file("in.jsonl"), long_rows(96));
  const std::string command = kProgram + " -m " + kModel + " --threads 1 --speculative none " + dir.file("in.jsonl") +
                              " -o " + dir.file("out.jsonl");
  const ProcessResult result = run_process({"script", "-qec", command, "/dev/null"});
  REQUIRE(result.exit_code == 0);
  CHECK(result.out.find("█") != std::string::npos);
  const std::vector<double> percents = matches(result.out, R"((\d+) % \| \d+/96 done)");
  REQUIRE(percents.size() >= 3);
  CHECK(std::is_sorted(percents.begin(), percents.end()));
  CHECK(percents.back() < 100);
  const std::vector<double> before_any = matches(result.out, R"((\d+) % \| 0/96 done)");
  REQUIRE(before_any.size() >= 2);
  CHECK(before_any.back() >= before_any.front() + 10);
}

TEST_CASE("each kind of error is told once on stderr, and counted in the summary and its JSON") {
  const TemporaryDirectory dir;
  std::string lines;
  for (int i = 0; i < 40; ++i) lines += "{\"question\":1}\n";
  write_file(dir.file("in.jsonl"), lines + "{nope\n{\"prompt\":\"Once\",\"max_tokens\":2}\n");
  const std::string out = dir.file("out.jsonl"), in = dir.file("in.jsonl");
  const ProcessResult result = run_process({kProgram, "-m", kModel, in, "-o", out});
  CHECK(result.exit_code == 3);
  const std::string first = "warning: " + in + ":1: missing_field: the line needs prompt, messages or prompt_token_ids";
  REQUIRE(result.err.find(first) != std::string::npos);
  CHECK(result.err.find(first) < result.err.find("model "));  // before the model is loaded
  CHECK(result.err.find("warning: " + in + ":2") == std::string::npos);
  CHECK(result.err.find("warning: " + in + ":41: invalid_json: ") != std::string::npos);
  CHECK(result.err.find("errors            40 × missing_field: the line needs prompt, messages or prompt_token_ids; it "
                        "has question, first at " + in + ":1\n") != std::string::npos);
  CHECK(result.err.find("1 × invalid_json: ") != std::string::npos);
  const auto errors = parse_lines(read_file(dir.file("out.metrics.jsonl"))).at(0)["errors"];
  REQUIRE(errors.size() == 2);
  CHECK(errors[0]["code"] == "missing_field");
  CHECK(errors[0]["count"] == 40);
  CHECK(errors[0]["first_at"] == in + ":1");
  CHECK(errors[1]["first_at"] == in + ":41");
}

TEST_CASE("with --progress none no line's error is told") {
  const ProcessResult result = run_llm_batch({}, "{nope\n");
  CHECK(result.exit_code == 3);
  CHECK(std::count(result.err.begin(), result.err.end(), '\n') == 1);
}

TEST_CASE("a line of progress says that every row has failed alike") {
  // SIGUSR1 asks for a line at once, where the run waits for more lines. The input ends when one says so.
  const TemporaryDirectory dir;
  const std::string wanted = "3 done, every one failed: missing_field";
  const std::string line_is_there = "grep -q '" + wanted + "' err || [ $i = 3000 ]; do i=$((i+1)); sleep 0.1; done";
  const ProcessResult result = run_shell(
      "cd " + dir.path() + "; : > err; i=0; (for n in 1 2 3; do echo '{\"question\":1}'; done; until " + line_is_there +
      ") | " + kProgram + " -m " + kModel + " --progress plain > out 2> err & pid=$!; " + kUntilSignalsAreHandled +
      "until kill -USR1 $pid; " + line_is_there + "; wait $pid; echo code $?");
  const std::string err = read_file(dir.file("err"));
  CHECK_MESSAGE(result.out == "code 3\n", err);
  CHECK_MESSAGE(err.find(wanted) != std::string::npos, err);
}

}  // namespace llmb::test
