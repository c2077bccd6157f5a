// Limits of the system that end a process by a signal, or take its descriptors: FAULTS row 41. Through the built
// program.
#include <doctest/doctest.h>
#include <sys/resource.h>

#include <filesystem>

#include "tests/e2e/ledger_job.h"
#include "tests/e2e/run.h"

namespace llmb::test {

namespace fs = std::filesystem;

namespace {

// Whole lines only.
void check_whole(const std::string& path) {
  const std::string text = read_file(path);
  CHECK((text.empty() || text.back() == '\n'));
  parse_lines(text);
}

}  // namespace

TEST_CASE("FAULTS 4, 41: a file size limit ends the run with 6 and whole records, without it the job completes") {
  const Job job;
  write_file(job.in, make_input(0, 400, 100));
  const std::string command = ledger_command(job.in + " -o " + job.out);
  for (const char* signals : {"", "trap '' XFSZ; "}) {
    const ProcessResult limited = run_shell(std::string(signals) + "ulimit -f 100; exec " + command);
    INFO(limited.err);
    CHECK(limited.exit_code == 6);
    CHECK(contains(limited.err, "File too large"));
    CHECK(!read_file(job.partial).empty());
    check_whole(job.partial);
    CHECK(report(limited)["done"] == sorted_records(job.partial).size());
  }
  const std::string partial = read_file(job.partial);
  CHECK(run_shell(command).exit_code == 0);
  CHECK(read_file(job.out).starts_with(partial));
  CHECK(sorted_records(job.out).size() == 400);
}

TEST_CASE("FAULTS 41: the same for the error file; a metrics line that does not fit is said and leaves no torn one") {
  const Job job;
  write_file(job.in, make_input(0, 400, 3, 2));
  const std::string errors = job.dir.file("errors.jsonl"), metrics = job.dir.file("m.jsonl");
  const std::string more = " --order input --error-file " + errors;
  REQUIRE(run_shell(ledger_command(job.in + " -o " + job.dir.file("ref.jsonl") + more)).exit_code == 3);
  const auto all_errors = sorted_records(errors);
  // Records of answers go elsewhere: the limit is met in the error file.
  const ProcessResult limited = run_shell("ulimit -f 10; " + ledger_command(job.in + more) + " | cat > " + job.out);
  INFO(limited.err);
  CHECK(contains(limited.err, "--error-file: " + errors + ": cannot write: File too large"));
  CHECK(report(limited)["exit_code"] == 6);
  check_whole(errors);
  CHECK(sorted_records(errors).size() < all_errors.size());
  CHECK(run_shell(ledger_command(job.in + more) + " > /dev/null").exit_code == 3);
  CHECK(sorted_records(errors) == all_errors);

  write_file(metrics, "{\"earlier\":\"" + std::string(512 * 8 - 20, 'x') + "\"}\n");
  const ProcessResult full =
      run_shell("ulimit -f 8; " + ledger_command("--metrics " + metrics + " " + job.in + " | cat > /dev/null"));
  CHECK(contains(full.err, "warning: --metrics: " + metrics + ": cannot write: File too large"));
  CHECK(parse_lines(read_file(metrics)).size() == 1);
}

TEST_CASE("FAULTS 41: a weight cache that cannot be written whole is left out; the answers come") {
  const TemporaryDirectory dir;
  write_file(dir.file("in.jsonl"), make_input(0, 2, 3));
  const ProcessResult limited = run_shell("ulimit -f 1000; " + kProgram + " -m " + kModel + " --progress none " +
                                          dir.file("in.jsonl") + " --weight-cache " + dir.file("cache"));
  CHECK(limited.exit_code == 0);
  CHECK(parse_lines(limited.out).size() == 2);
  CHECK(contains(limited.err, "weight cache: not written: "));
  for (const auto& entry : fs::directory_iterator(dir.file("cache")))
    CHECK(entry.path().string().ends_with(".steps.json"));
}

TEST_CASE("FAULTS 41: a limit on processor time drains the run like a signal, and says so in the exit code") {
  const Job job;
  write_file(job.in, make_input(0, 60000, 400));
  const ProcessResult limited = run_shell("ulimit -S -t 1; exec " + ledger_command(job.in + " -o " + job.out));
  INFO(limited.err);
  CHECK(limited.exit_code == 128 + 24);
  check_whole(job.partial);
  CHECK(report(limited)["resumable"] == true);
  CHECK(report(limited)["done"] == sorted_records(job.partial).size());
}

TEST_CASE("FAULTS 41: too few descriptors end the run with 6 or 10, whatever they are missing for") {
  rlimit limit{};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &limit) == 0);
  bool has_succeeded = false;
  for (int count = 3; count < 64 && !has_succeeded; ++count) {
    CAPTURE(count);
    const Job job;
    write_file(job.in, make_input(0, 3, 3));
    const std::string number = std::to_string(count);
    const ProcessResult result = run_shell("ulimit -n " + number + " 2> /dev/null || exit 0; exec " + kProgram +
                                           " -m " + kModel + " --progress none " + job.in + " -o " + job.out);
    INFO(result.err);
    has_succeeded = result.exit_code == 0;
    CHECK((has_succeeded || result.exit_code == 6 || result.exit_code == 10 || result.exit_code == 127));
  }
  CHECK(has_succeeded);
}

}  // namespace llmb::test
