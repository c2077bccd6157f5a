// Whatever blocks, two signals end the run, and a stderr that nobody reads holds nothing up: FAULTS row 44. Through the
// built program, with a grace of an hour: that a run ends at all is due to its second signal.
#include <doctest/doctest.h>

#include <filesystem>

#include "tests/e2e/ledger_job.h"
#include "tests/e2e/run.h"

namespace llmb::test {

namespace fs = std::filesystem;

namespace {

std::string command(const std::string& arguments) {
  return kProgram + " --device ledger --no-metrics --grace 3600 " + arguments;
}

// Two SIGTERMs, half a second after the program is there.
ProcessResult run_and_stop(const std::string& job) {
  return run_shell("cd /; " + job + " & pid=$!; " + kUntilSignalsAreHandled +
                   "sleep 0.5; kill -TERM $pid; sleep 0.1; kill -TERM $pid 2> /dev/null; wait $pid; echo code $?");
}

// A pipe at $DIR/full that takes no more: open at both ends as descriptor 5.
std::string full_pipe(const TemporaryDirectory& dir) {
  return "mkfifo " + dir.file("full") + "; exec 5<> " + dir.file("full") +
         "; yes x | dd iflag=fullblock bs=4096 oflag=nonblock of=" + dir.file("full") + " 2> /dev/null; ";
}

}  // namespace

TEST_CASE("FAULTS 44: two signals end a run whose input, output or error file is a pipe without a partner") {
  for (const std::string arguments : {"FIFO -o DIR/out.jsonl", "DIR/in.jsonl FIFO -o DIR/out.jsonl", "FIFO",
                                      "DIR/in.jsonl -o FIFO", "DIR/in.jsonl -o DIR/out.jsonl --error-file FIFO",
                                      "DIR/in.jsonl -o DIR/out.jsonl --metrics FIFO", "FIFO --dry-run"}) {
    CAPTURE(arguments);
    const TemporaryDirectory dir;
    write_file(dir.file("in.jsonl"), make_input(0, 20000, 400));
    REQUIRE(run_shell("mkfifo " + dir.file("fifo")).exit_code == 0);
    std::string job = command("-m " + kModel + " --progress none " + arguments);
    for (const auto& [name, path] : {std::pair("FIFO", dir.file("fifo")), std::pair("DIR", dir.path())})
      for (size_t at; (at = job.find(name)) != std::string::npos;) job.replace(at, std::string(name).size(), path);
    const ProcessResult result = run_and_stop(job);
    CHECK_MESSAGE(result.out.ends_with("code 143\n"), result.out << result.err);
    if (!contains(arguments, "--dry-run")) CHECK(report(result)["exit_code"] == 143);
  }
}

TEST_CASE("FAULTS 44: a pipe in place of a model file is refused at once") {
  for (const char* name : {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
                           "model.safetensors", "chat_template.jinja"})
    for (const char* device : {"ledger", "cpu"}) {
      CAPTURE(name);
      CAPTURE(device);
      const TemporaryDirectory dir;
      fs::create_directory(dir.file("model"));
      for (const auto& entry : fs::directory_iterator(kModel))
        if (entry.path().filename() != name)
          fs::create_symlink(entry.path(), fs::path(dir.file("model")) / entry.path().filename());
      REQUIRE(run_shell("mkfifo " + dir.file("model/") + name).exit_code == 0);
      write_file(dir.file("in.jsonl"), make_input(0, 3, 3));
      const ProcessResult result = run_shell(kProgram + " --progress none -m " + dir.file("model") + " --device " +
                                             device + " " + dir.file("in.jsonl") + " -o " + dir.file("out.jsonl"));
      INFO(result.err);
      CHECK(result.exit_code == 4);
      CHECK(contains(result.err, dir.file("model/") + name));
    }
}

TEST_CASE("FAULTS 44: a pipe under a name that the output needs is refused with 6, or replaced where it is ours") {
  const std::pair<const char*, int> names[] = {{"out.jsonl.partial", 6},
                                               {"out.jsonl.manifest.json", 6},
                                               {"out.jsonl.partial.tmp", 0},
                                               {"out.jsonl.manifest.json.tmp", 0}};
  for (const auto& [name, expected] : names) {
    CAPTURE(name);
    const Job job;
    write_file(job.in, make_input(0, 3, 3));
    REQUIRE(run_shell("mkfifo " + job.dir.file(name)).exit_code == 0);
    const ProcessResult result = job.run();
    INFO(result.err);
    CHECK(result.exit_code == expected);
    if (expected == 6) CHECK(contains(result.err, job.dir.file(name)));
  }
}

TEST_CASE("FAULTS 44: a stderr that nobody reads does not hold the computation up; read late, it is all there") {
  for (const char* progress : {"bar", "plain", "none"}) {
    CAPTURE(progress);
    const Job job;
    write_file(job.in, make_input(0, 3000, 300));
    const ProcessResult result =
        run_shell(full_pipe(job.dir) + command("-m " + kModel + " --progress " + progress + " " + job.in + " -o ") +
                  job.out + " 2> " + job.dir.file("full") + " & pid=$!; until [ -e " + job.out +
                  " ]; do sleep 0.02; kill -0 $pid || break; done; { sed -u -e '/^END$/Q' -e '/^x*$/d' <&5 >&2; } & "
                  "reader=$!; wait $pid; echo code $?; echo END >&5; wait $reader");
    CHECK_MESSAGE(result.out == "code 0\n", result.out << result.err);
    CHECK(report(result)["done"] == 3000);
    CHECK(contains(result.err, "summary") == (progress != std::string("none")));
    CHECK(sorted_records(job.out).size() == 3000);
  }
}

TEST_CASE("FAULTS 44: two signals end a run whose stderr nobody reads, and one whose stdout too") {
  for (const char* redirection : {"2>&5", ">&5 2>&5", ">&5"})
    for (const char* progress : {"bar", "none"}) {
      CAPTURE(redirection);
      CAPTURE(progress);
      const Job job;
      write_file(job.in, make_input(0, 20000, 400));
      const bool has_file = redirection == std::string("2>&5");
      const ProcessResult result =
          run_shell(full_pipe(job.dir) + "{ " + command("-m " + kModel + " --progress " + progress + " " + job.in) +
                    (has_file ? " -o " + job.out : "") + " " + redirection +
                    " & pid=$!; " + kUntilSignalsAreHandled +
                    "sleep 0.5; kill -TERM $pid; sleep 0.1; kill -TERM $pid; wait $pid; echo code $?; }");
      CHECK_MESSAGE(result.out == "code 143\n", result.out << result.err);
      if (!has_file) continue;
      const std::string partial = read_file(job.partial);
      CHECK((partial.empty() || partial.back() == '\n'));
    }
}

TEST_CASE("FAULTS 44: once the results are complete, a signal ends the wait for a stderr that nobody reads, with 0") {
  const Job job;
  write_file(job.in, make_input(0, 10, 3));
  const ProcessResult result = run_shell(
      full_pipe(job.dir) + command("-m " + kModel + " " + job.in + " -o " + job.out) + " 2>&5 & pid=$!; until [ -e " +
      job.out + " ]; do sleep 0.02; kill -0 $pid || break; done; sleep 0.5; " +
      "kill -0 $pid && kill -TERM $pid; wait $pid; echo code $?");
  CHECK(result.out == "code 0\n");
  CHECK(sorted_records(job.out).size() == 10);
}

}  // namespace llmb::test
