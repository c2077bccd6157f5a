// Something else changes a run's files while it goes: FAULTS rows 40 and 43. Through the built program on the
// ledger device, stopped for the moment of the change.
#include <doctest/doctest.h>

#include <filesystem>
#include <sstream>
#include <string>

#include "tests/e2e/ledger_job.h"
#include "tests/e2e/run.h"

namespace llmb::test {

namespace fs = std::filesystem;

namespace {

// A job takes long enough to be changed while it runs; a sanitizer slows it down tenfold.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kNumLines = 400;
#else
constexpr int kNumLines = 2000;
#endif

// Some records are written, and most are not.
struct RunningJob : Job {
  RunningJob() { write_file(in, make_input(0, kNumLines, 200)); }

  // $out and $in are the paths; `change` is done in their directory. In small batches, so that the first records are
  // written long before the last ones, also on a busy machine.
  ProcessResult run_with(const std::string& change, const std::string& more = "") const {
    return run_shell(
        "cd " + dir.path() + "; out=out.jsonl; in=in.jsonl; " + ledger_command("$in -o $out --max-num-seqs 16 " + more) +
        " & pid=$!; until [ -s $out.partial ]; do sleep 0.01; kill -0 $pid || break; done; kill -STOP $pid; " + change +
        "; kill -CONT $pid; wait $pid");
  }
};

const std::vector<std::string>& reference() {
  static const std::vector<std::string> records = [] {
    const RunningJob job;
    REQUIRE(job.run().exit_code == 0);
    return sorted_records(job.out);
  }();
  return records;
}

// Whole records before the first line that is none: one written in the instant after a cut stands behind a torn line.
int64_t num_records(const std::string& path) {
  std::istringstream text(read_file(path));
  int64_t num = 0;
  for (std::string line; std::getline(text, line) && !text.eof() && nlohmann::json::accept(line);) ++num;
  return num;
}

// Lines of some 600 bytes more, in a field that means nothing: so that many bytes are unread while few lines are.
std::string with_notes(const std::string& lines) {
  std::istringstream from(lines);
  std::string to;
  for (std::string line; std::getline(from, line);)
    to += R"({"note":")" + std::string(600, 'x') + "\"," + line.substr(1) + "\n";
  return to;
}

}  // namespace

TEST_CASE("FAULTS 40: a partial file that something else changes: 6, what is left is said, the next run completes") {
  struct Case {
    const char* name;
    const char* change;
    bool is_continued = true;  // by the next run, without further ado
  };
  const Case cases[] = {
      {"cut to nothing", ": > $out.partial"},
      {"cut in a record", "truncate -s 1000 $out.partial"},
      {"removed", "rm $out.partial"},
      {"moved", "mv $out.partial elsewhere"},
      {"replaced by a copy", "cp $out.partial copy; mv copy $out.partial"},
      {"a torn line appended", "printf torn >> $out.partial"},
      {"foreign lines appended", "printf 'a\\nb\\n' >> $out.partial", false},
  };
  for (const Case& c : cases)
    for (const char* order : {"completion", "input"}) {
      CAPTURE(c.name);
      CAPTURE(order);
      const RunningJob job;
      const ProcessResult changed = job.run_with(c.change, std::string("--order ") + order);
      INFO(changed.err);
      CHECK(changed.exit_code == 6);
      CHECK(!fs::exists(job.out));
      CHECK(contains(changed.err, job.partial.substr(job.partial.rfind('/') + 1)));
      CHECK(contains(changed.err, " done, "));
      CHECK(report(changed)["done"] == num_records(job.partial));
      CHECK(report(changed)["left"] == kNumLines - report(changed)["done"].get<int64_t>());
      const ProcessResult next = job.run({"--order", order});
      CHECK(next.exit_code == (c.is_continued ? 0 : 7));
      if (c.is_continued) CHECK(sorted_records(job.out) == reference());
    }
}

TEST_CASE(
    "FAULTS 40: an output that appears while the run goes is never replaced; moved away, the next run completes") {
  for (const char* made : {"echo foreign > $out", ": > $out", "ln -s nowhere $out", "mkdir $out"}) {
    CAPTURE(made);
    const RunningJob job;
    const ProcessResult result = job.run_with(std::string(made) + "; cp -r -P $out kept");
    INFO(result.err);
    CHECK(result.exit_code == 6);
    CHECK(contains(result.err, "something else"));
    CHECK(report(result)["done"] == kNumLines);
    CHECK(
        run_shell("cd " + job.dir.path() + "; diff -r --no-dereference out.jsonl kept && rm -r out.jsonl").exit_code ==
        0);
    CHECK(job.run().exit_code == 0);
    CHECK(sorted_records(job.out) == reference());
  }
}

TEST_CASE("FAULTS 40: with an output from before, what appears between the look at it and the first change stays") {
  const RunningJob job;
  write_file(job.in, make_input(0, 10, 5));
  REQUIRE(job.run().exit_code == 0);
  write_file(job.in, make_input(0, 11, 5));
  // A pipe as the error file holds the run up just there.
  const ProcessResult result = run_shell("cd " + job.dir.path() + "; mkfifo errors; " + kProgram + " -m " + kModel +
                                         " --device ledger in.jsonl -o out.jsonl --error-file errors 2> err" +
                                         " & pid=$!; until grep -q '^llm-batch 0' err; do sleep 0.02; kill -0 $pid || "
                                         "break; done; echo foreign > out.jsonl.partial; "
                                         "cat errors; wait $pid");
  INFO(read_file(job.dir.file("err")));
  CHECK(result.exit_code == 6);
  CHECK(read_file(job.partial) == "foreign\n");
  CHECK(sorted_records(job.out).size() == 10);
}

TEST_CASE("FAULTS 40: an interrupted run does not claim either what is gone") {
  const RunningJob job;
  const ProcessResult result = job.run_with("rm $out.partial; kill -TERM $pid", "--grace 0");
  INFO(result.err);
  CHECK(result.exit_code == 6);
  CHECK(report(result)["done"] == 0);
  CHECK(job.run().exit_code == 0);
  CHECK(sorted_records(job.out) == reference());
}

TEST_CASE("FAULTS 40: results that go to a redirected file which something else cuts end with 6") {
  const TemporaryDirectory dir;
  write_file(dir.file("in.jsonl"), make_input(0, kNumLines, 200));
  for (const char* redirection : {">", ">>"}) {
    // In small batches, as above.
    const std::string job = ledger_command("in.jsonl --max-num-seqs 16 ") + redirection + " out";
    const ProcessResult result = run_shell("cd " + dir.path() + "; rm -f out; echo before > out; " + job +
                                           " & pid=$!; until [ $(stat -c %s out) -gt 100 ]; do sleep 0.01; "
                                           "kill -0 $pid || break; done; kill -STOP $pid; : > out; kill -CONT $pid; "
                                           "wait $pid");
    INFO(result.err);
    CHECK(result.exit_code == 6);
    CHECK(contains(result.err, "standard output: was changed"));
  }
}

TEST_CASE("FAULTS 43: an input that becomes shorter ends with 5, resumable; put back, the next run completes") {
  const RunningJob job;
  write_file(job.in, with_notes(make_input(0, 3000, 200)));
  const ProcessResult reference = run_ledger({job.in, "-o", job.dir.file("ref.jsonl")});
  REQUIRE(reference.exit_code == 0);
  for (const char* change : {"truncate -s 900000 $in", ": > $in"}) {
    CAPTURE(change);
    // Read as it is computed, not before.
    const ProcessResult cut = job.run_with(std::string("cp $in whole; ") + change, "--schedule file");
    INFO(cut.err);
    CHECK(cut.exit_code == 5);
    CHECK(contains(cut.err, "in.jsonl: became shorter while it was read"));
    CHECK(report(cut)["resumable"] == true);
    CHECK(report(cut)["left"].is_null());
    CHECK(report(cut)["done"] == num_records(job.partial));
    fs::rename(job.dir.file("whole"), job.in);
    CHECK(job.run().exit_code == 0);
    CHECK(sorted_records(job.out) == sorted_records(job.dir.file("ref.jsonl")));
    CHECK(run_shell("rm " + job.out + "*").exit_code == 0);
  }
}

TEST_CASE("FAULTS 43: a metrics file that ends with a torn line gets the next one on a line of its own") {
  const TemporaryDirectory dir;
  write_file(dir.file("in.jsonl"), make_input(0, 3, 3));
  const std::string metrics = dir.file("m.jsonl");
  write_file(metrics, "{\"whole\":1}\n{\"to");
  const auto run = [&] { return run_ledger({dir.file("in.jsonl"), "--metrics", metrics}); };
  CHECK(run().exit_code == 0);
  CHECK(run().exit_code == 0);
  std::stringstream lines(read_file(metrics));
  std::vector<std::string> all;
  for (std::string line; std::getline(lines, line);) all.push_back(line);
  REQUIRE(all.size() == 4);
  CHECK(all[1] == "{\"to");
  for (const int i : {2, 3}) CHECK(nlohmann::json::parse(all[i])["completed"] == 3);
}

}  // namespace llmb::test
