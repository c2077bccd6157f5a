// Descriptors 0 to 2 closed when the program starts: FAULTS row 39, through the built program on the ledger device.
#include <doctest/doctest.h>

#include "tests/e2e/ledger_job.h"
#include "tests/e2e/run.h"

namespace llmb::test {

namespace {

constexpr int kNumLines = 40;

// <&- and so on for the descriptors whose bits are set.
std::string closing(int descriptors) {
  std::string redirections;
  for (int fd = 0; fd < 3; ++fd)
    if (descriptors >> fd & 1) redirections += " " + std::to_string(fd) + (fd == 0 ? "<&-" : ">&-");
  return redirections;
}

std::string command(const std::string& arguments) {
  return kProgram + " -m " + kModel + " --device ledger " + arguments;
}

}  // namespace

TEST_CASE("FAULTS 39: whichever of descriptors 0 to 2 are closed, results and side files hold what they should") {
  const TemporaryDirectory dir;
  write_file(dir.file("in.jsonl"), make_input(0, kNumLines, 5, 10));
  REQUIRE(run_shell(command(dir.file("in.jsonl") + " -o " + dir.file("ref.jsonl"))).exit_code == 3);
  const auto expected = sorted_records(dir.file("ref.jsonl"));
  for (int descriptors = 1; descriptors < 8; ++descriptors)
    for (const char* progress : {"bar", "none"}) {
      CAPTURE(descriptors);
      CAPTURE(progress);
      const std::string out = dir.file(std::to_string(descriptors) + progress + ".jsonl"), errors = out + ".errors";
      const std::string job =
          command(dir.file("in.jsonl") + " -o " + out + " --error-file " + errors + " --progress " + progress) +
          closing(descriptors);
      CHECK(run_shell(job).exit_code == 3);
      CHECK(sorted_records(out) == expected);
      CHECK(sorted_records(errors).size() == kNumLines / 10);
      CHECK(nlohmann::json::parse(read_file(out + ".manifest.json"))["state"] == "complete");
      const std::string metrics = out.substr(0, out.size() - 6) + ".metrics.jsonl";
      CHECK(parse_lines(read_file(metrics)).size() == 1);
      CHECK(run_shell(job).exit_code == 0);  // nothing to do
    }
}

TEST_CASE("FAULTS 39: results for a closed stdout are refused with 6, lines from a closed stdin with 5, by any name") {
  const TemporaryDirectory dir;
  const std::string in = dir.file("in.jsonl"), out = dir.file("out.jsonl");
  write_file(in, make_input(0, 3, 5));
  const auto run = [&](const std::string& arguments) { return run_shell(command(arguments)); };
  const ProcessResult no_output = run(in + " >&-");
  CHECK(no_output.exit_code == 6);
  CHECK(contains(no_output.err, "standard output: closed"));
  const ProcessResult no_input = run("-o " + out + " <&-");
  CHECK(no_input.exit_code == 5);
  CHECK(contains(no_input.err, "standard input: closed"));
  CHECK(run(in + " 1< " + in).exit_code == 6);  // open, but not for writing
  CHECK(run(in + " -o /dev/stdout >&-").exit_code != 0);
  CHECK(run("/dev/stdin -o " + out + " <&-").exit_code == 5);
  CHECK(run("--help >&-").exit_code == 6);
  CHECK(!std::filesystem::exists(out));
  const ProcessResult quiet = run(in + " 2>&-");
  CHECK(quiet.exit_code == 0);
  CHECK(parse_lines(quiet.out).size() == 3);
}

}  // namespace llmb::test
