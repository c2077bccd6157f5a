// Workers whose device hangs in a step: a worker's own watchdog notices, and says so to the job. This program is also
// the workers that it tests: the job starts them from its own file, with a backend that stalls as the environment says.
#define DOCTEST_CONFIG_IMPLEMENT
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>

#include "backend/ledger/ledger_backend.h"
#include "tests/e2e/ledger_job.h"
#include "tests/e2e/run_in_child.h"
#include "tests/support/scripted_backend.h"
#include "tests/support/skip.h"

REGISTER_LISTENER("skips", 1, llmb::test::SkipListener);

namespace llmb::test {

namespace fs = std::filesystem;

namespace {

constexpr int kNumLines = 200, kWatchdogSeconds = 2;
constexpr const char* kStalling = "LLMB_TEST_STALLING";  // indices of workers; a place for each
constexpr const char* kCall = "LLMB_TEST_STALLING_CALL";
constexpr int64_t kStalledStep = 12;

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value != nullptr ? value : "";
}

BackendFactory backend_of_worker(char index) {
  BackendScript script;
  if (variable(kStalling).find(index) != std::string::npos)
    (variable(kCall) == "submit" ? script.submit_stalls : script.stalls).insert(kStalledStep);
  return [script](std::string_view) -> Result<std::unique_ptr<Backend>> {
    return std::unique_ptr<Backend>(std::make_unique<ScriptedBackend>(make_ledger_backend({}), script));
  };
}

ChildResult run_workers(const Job& job, const std::string& stalling, const std::string& call) {
  const std::vector<std::string> arguments = {
      job.in, "-o", job.out, "--device", "ledger", "--workers", "2", "--max-num-seqs", "4", "--request-rate", "150",
      "--watchdog-timeout", std::to_string(kWatchdogSeconds)};
  return run_in_child(arguments, make_backend, [&] {
    ::setenv(kStalling, stalling.c_str(), 1);
    ::setenv(kCall, call.c_str(), 1);
  });
}

std::string host() {
  std::array<char, 256> name = {};
  REQUIRE(::gethostname(name.data(), name.size() - 1) == 0);
  return name.data();
}

// Steps are counted when they have ended: the one that hangs is the next; where a submission hangs, the one before it may
// also be in flight.
bool names_stall(const std::string& err, const std::string& before, int worker) {
  const std::string begin = before + "worker " + std::to_string(worker) + " on " + host() + " (pid ";
  const size_t at = err.find(begin);
  if (at == std::string::npos) return false;
  const std::string line = err.substr(at, err.find('\n', at) - at);
  const std::string end = ": the device has not answered within --watchdog-timeout (ledger";
  return contains(line, "), step " + std::to_string(kStalledStep) + end) ||
         contains(line, "), step " + std::to_string(kStalledStep - 1) + end);
}

}  // namespace

TEST_CASE("a worker whose device stalls is given up by its own watchdog, and the other does all") {
  const Job job;
  write_file(job.in, make_input(0, kNumLines, 8));
  const std::string expected = stable_output(run_ledger({job.in}).out);
  for (const std::string call : {"submit", "wait"}) {
    CAPTURE(call);
    for (const std::string& path : {job.out, job.manifest}) fs::remove(path);
    const ChildResult result = run_workers(job, "0", call);
    CHECK_MESSAGE(result.process.exit_code == 0, result.process.err);
    CHECK_MESSAGE(names_stall(result.process.err, "warning: ", 0), result.process.err);
    CHECK_MESSAGE(contains(result.process.err, "; it is not started again"), result.process.err);
    CHECK(stable_output(read_file(job.out)) == expected);
  }
}

TEST_CASE("where each worker's device stalls, exit 9 within the watchdog; what is finished is kept") {
  const Job job;
  write_file(job.in, make_input(0, kNumLines, 8));
  const std::string expected = stable_output(run_ledger({job.in}).out);
  double fastest_s = 1e9;
  // Others may have the processors for that long, but hardly three times in a row.
  for (int attempt = 0; attempt < 3 && fastest_s > kWatchdogSeconds + 5; ++attempt) {
    for (const std::string& path : {job.out, job.manifest, job.partial}) fs::remove(path);
    const ChildResult result = run_workers(job, "01", "wait");
    fastest_s = std::min(fastest_s, result.wall_s);
    CHECK_MESSAGE(result.process.exit_code == 9, result.process.err);
    const std::string last = "error: no worker is left; the last: ";
    CHECK_MESSAGE((names_stall(result.process.err, last, 0) || names_stall(result.process.err, last, 1)),
                  result.process.err);
    const std::vector<std::string> kept = sorted_records(job.partial);
    CHECK(kept.size() > 0);
    CHECK(report(result.process)["done"] == kept.size());
    CHECK(report(result.process)["left"] == kNumLines - kept.size());
    CHECK(report(result.process)["resumable"] == true);
  }
  CHECK(fastest_s < kWatchdogSeconds + 5);
  const ProcessResult again = run_ledger({job.in, "-o", job.out});
  CHECK_MESSAGE(again.exit_code == 0, again.err);
  CHECK(report(again)["skipped"] > 0);
  CHECK(stable_output(read_file(job.out)) == expected);
}

}  // namespace llmb::test

int main(int argc, char** argv) {
  if (argc < 3 || std::string_view(argv[1]) != "--worker-process") return llmb::test::run_tests(argc, argv);
  return llmb::run_command_line(argc, argv, llmb::test::backend_of_worker(argv[2][0]));
}
