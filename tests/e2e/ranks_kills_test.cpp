// Ranks and jobs over them that are killed or stopped at random. LLMB_NUM_KILLS: how often in all. LLMB_KILLS_SEED: loops
// with several may run side by side.
#include <doctest/doctest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/e2e/disturber.h"
#include "tests/e2e/rank_lines.h"
#include "tests/e2e/run.h"
#include "tests/e2e/started_run.h"
#include "tests/support/test_rng.h"

namespace llmb::test {

namespace fs = std::filesystem;

TEST_CASE("random kills and stops of ranks: nothing is lost, twice or changed, on any number of stages and workers") {
  const char* const asked = std::getenv("LLMB_NUM_KILLS");
  const int num_wanted = asked != nullptr ? std::atoi(asked) : 8;
  const TemporaryDirectory dir;
  const std::string in = dir.file("in.jsonl"), reference = dir.file("reference.jsonl"), out = dir.file("out.jsonl");
  write_file(in, mixed_lines(60));
  REQUIRE(run_llm_batch({in, "-o", reference, "--tensor-parallel-size", "2"}).exit_code == 3);
  const std::string expected = stable_output(read_file(reference));
  const char* const seed = std::getenv("LLMB_KILLS_SEED");
  TestRng rng(seed != nullptr ? std::strtoull(seed, nullptr, 10) : asked != nullptr ? 7 : 1);
  Disturber disturber(rng, num_wanted);
  int num_jobs = 0, num_faults = 0;
  for (; !disturber.has_done_all(); ++num_jobs) {
    for (const char* name : {"", ".partial", ".manifest.json"}) fs::remove(out + name);
    for (int exit_code = -1; exit_code != 3 && exit_code != 0;) {  // 0: it was complete before
      std::vector<std::string> flags = {in, "-o", out, "--tensor-parallel-size", "2", "--request-rate", "60"};
      flags.insert(flags.end(), {"--max-num-seqs", std::to_string(rng.between(1, 9)), "--watchdog-timeout", "4"});
      const int num_stages = rng.between(-1, 3), num_workers = rng.chance(0.3) ? 2 : 1;
      if (num_stages > 1) flags.insert(flags.end(), {"--pipeline-parallel-size", std::to_string(num_stages)});
      if (num_workers > 1) flags.insert(flags.end(), {"--workers", std::to_string(num_workers)});
      if (num_stages < 2 && num_workers == 1 && rng.chance(0.5))
        flags.insert(flags.end(), {rng.chance(0.5) ? "--prefill-context-parallel-size"
                                                   : "--decode-context-parallel-size", "2"});
      StartedRun run(flags, "cpu");
      disturber.disturb(run);
      const ProcessResult result = run.wait();
      exit_code = result.exit_code;
      REQUIRE_MESSAGE((exit_code == 3 || exit_code == 0 || exit_code == 9 || exit_code == 137), result.err);
      if (exit_code != 9) continue;
      ++num_faults;
      CHECK_MESSAGE((result.err.find("rank ") != std::string::npos || num_workers > 1), result.err);
    }
    CHECK(stable_output(read_file(out)) == expected);
    CHECK_FALSE(fs::exists(out + ".partial"));
  }
  if (asked == nullptr) return;
  for (const auto& [name, count] : disturber.counts()) MESSAGE(name << ": " << count);
  MESSAGE(num_jobs << " jobs, " << num_faults << " runs that ended with exit code 9: nothing lost, twice or changed");
}

TEST_CASE("a rank that is stopped before its first line has run ends with its job, which is killed") {
  const TemporaryDirectory dir;
  write_file(dir.file("in.jsonl"), greedy_lines(4));
  for (int i = 0; i < 5; ++i) {
    StartedRun run({dir.file("in.jsonl"), "-o", dir.file("out.jsonl"), "--tensor-parallel-size", "2"}, "cpu");
    std::vector<pid_t> ranks;
    while ((ranks = run.ranks()).empty() && !run.has_ended()) continue;
    REQUIRE(ranks.size() == 1);
    ::kill(ranks[0], SIGSTOP);
    ::kill(run.pid(), SIGKILL);
    CHECK(run.wait().exit_code == 137);
    // Nothing is left to be stopped: who ends is gone, or waits to be looked at by whoever adopted it.
    const std::string stat = "/proc/" + std::to_string(ranks[0]) + "/stat";
    const auto lives = [&] {
      const std::string text = read_file(stat);
      return !text.empty() && text.find(") Z ") == std::string::npos;
    };
    for (int j = 0; j < 500 && lives(); ++j) ::usleep(10'000);
    CHECK_FALSE(lives());
    ::kill(ranks[0], SIGKILL);
  }
}

TEST_CASE("a rank that finds other files than rank 0 found says so by its name, before anything is answered") {
  const TemporaryDirectory dir;
  write_file(dir.file("in.jsonl"), greedy_lines(4));
  const std::string model = dir.file("model"), weights = model + "/model.safetensors";
  fs::copy(kModel, model);
  ProcessResult result;
  for (int attempt = 0; attempt < 20; ++attempt) {
    const auto run = StartedRun::of({kProgram, "-m", model, "--progress", "none", "--device", "cpu", dir.file("in.jsonl"),
                                     "-o", dir.file("out.jsonl"), "--restart", "--tensor-parallel-size", "2"});
    while (run->ranks().empty() && !run->has_ended()) continue;
    REQUIRE(run->ranks().size() == 1);
    const pid_t rank = run->ranks()[0];
    ::kill(rank, SIGSTOP);
    fs::last_write_time(weights, fs::last_write_time(weights) + std::chrono::seconds(1));
    ::kill(rank, SIGCONT);
    result = run->wait();
    // On a busy machine it may have looked before it was stopped: then it refuses in other words, or not.
    if (result.err.find("rank 1: the model's files have changed since the job began") != std::string::npos) break;
  }
  CHECK(result.exit_code == 4);
  CHECK_MESSAGE(result.err.find("rank 1: the model's files have changed since the job began") != std::string::npos,
                result.err);
}

TEST_CASE("a rank that is stopped while it loads: exit code 9 within the watchdog, and its name") {
  const TemporaryDirectory dir;
  write_file(dir.file("in.jsonl"), greedy_lines(60));
  for (const int after_ms : {0, 10, 30}) {
    CAPTURE(after_ms);
    const std::string out = dir.file("out-" + std::to_string(after_ms) + ".jsonl");
    // Rows arrive for about six seconds: a busy machine may stop the rank late, but not behind the last row.
    StartedRun run({dir.file("in.jsonl"), "-o", out, "--tensor-parallel-size", "2", "--watchdog-timeout", "2",
                    "--request-rate", "10"},
                   "cpu");
    while (run.ranks().empty() && !run.has_ended()) ::usleep(1000);
    ::usleep(static_cast<useconds_t>(1000 * after_ms));
    REQUIRE_FALSE(run.ranks().empty());
    ::kill(run.ranks()[0], SIGSTOP);
    const ProcessResult result = run.wait();
    CHECK(result.exit_code == 9);
    CHECK_MESSAGE(result.err.find("rank 1 ") != std::string::npos, result.err);
    CHECK_MESSAGE(result.err.find("does not answer") != std::string::npos, result.err);
  }
}

}  // namespace llmb::test
