// --workers: several processes answer one job with the bytes of one, whichever of them dies, and when.
#include <doctest/doctest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <set>

#include "tests/e2e/ledger_job.h"
#include "tests/e2e/run.h"
#include "tests/e2e/started_run.h"
#include "tests/support/source_dir.h"
#include "tests/support/test_rng.h"

namespace llmb::test {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

// Greedy and sampled lines of every kind, errors among them, some equal to others, groups with a common prefix.
std::string mixed_lines() {
  std::string lines;
  for (int i = 0; i < 40; ++i) {
    json line = {{"id", i}, {"max_tokens", 3 + i % 9}};
    line["prompt"] = i % 5 == 0 ? "Once upon a time there was"
                                : "In group " + std::to_string(i / 8) + " of the long list of stories, number " +
                                      std::to_string(i) + " tells that";
    if (i % 3 == 0) line["temperature"] = 0;
    if (i % 7 == 1) line["n"] = 3;
    if (i % 7 == 2) line["logprobs"] = 2;
    if (i % 7 == 3) line["choice"] = {"yes", "no"};
    if (i % 11 == 4) line["best_of"] = 3;
    if (i % 11 == 5) line["seed"] = i;
    if (i % 13 == 6) line = {{"messages", {{{"role", "user"}, {"content", "Tell me of a cat"}}}}, {"max_tokens", 6}};
    if (i % 13 == 7) line["prompt"] = 5;
    if (i % 13 == 8) line["prompt_token_ids"] = {1, 2, 99999999}, line.erase("prompt");
    lines += line.dump() + "\n";
    if (i % 13 == 9) lines += "not JSON\n\n";
  }
  return lines;
}

// Slow enough that a test can look at it and send signals.
const std::vector<std::string> kSlowly = {"--request-rate", "150", "--max-num-seqs", "4"};

}  // namespace

TEST_CASE("the bundled model: one, two and three workers give the bytes of one process") {
  const TemporaryDirectory dir;
  write_file(dir.file("in.jsonl"), mixed_lines());
  const std::vector<std::string> arguments = {dir.file("in.jsonl"), "--max-num-seqs", "5"};
  const ProcessResult plain = run_llm_batch(arguments);
  REQUIRE_MESSAGE(plain.exit_code == 3, plain.err);
  const std::string expected = stable_output(plain.out);
  for (const std::string workers : {"1", "2", "3"}) {
    CAPTURE(workers);
    const ProcessResult result = run_llm_batch(with(arguments, {"--workers", workers}));
    CHECK_MESSAGE(result.exit_code == 3, result.err);
    CHECK(stable_output(result.out) == expected);
  }
  const ProcessResult in_order = run_llm_batch(with(arguments, {"--workers", "2", "--order", "input"}));
  CHECK(stable_output(in_order.out) == expected);
  const auto records = parse_lines(in_order.out);
  CHECK(std::is_sorted(records.begin(), records.end(),
                       [](const json& a, const json& b) { return a["index"] < b["index"]; }));
}

TEST_CASE("scores, vectors and adapters are those of one process, too") {
  const std::string lines = mixed_lines();
  for (const std::string task : {"score", "embed"}) {
    CAPTURE(task);
    const std::vector<std::string> arguments = {"--task", task, "--pooling", "last"};
    const std::vector<std::string> asked = task == "embed" ? arguments : std::vector<std::string>{"--task", task};
    const ProcessResult plain = run_llm_batch(asked, lines),
                        result = run_llm_batch(with(asked, {"--workers", "2"}), lines);
    CHECK(plain.exit_code == 3);
    CHECK_MESSAGE(result.exit_code == 3, result.err);
    CHECK(stable_output(result.out) == stable_output(plain.out));
  }
  std::string adapted;
  for (int i = 0; i < 12; ++i) {
    json line = {
        {"prompt_token_ids", {5, 6, 7 + i}}, {"max_tokens", 4}, {"ignore_eos", true}, {"return_token_ids", true}};
    if (i % 3 > 0) line["adapter"] = i % 3 == 1 ? "rank-8" : "rank-1";
    adapted += line.dump() + "\n";
  }
  const std::vector<std::string> arguments = {kProgram,
                                              "-m",
                                              source_dir() + "/data/fixtures/models/llama-gqa",
                                              "--tokenizer",
                                              kModel,
                                              "--progress",
                                              "none",
                                              "--adapter-dir",
                                              source_dir() + "/data/fixtures/adapters/llama-gqa"};
  const ProcessResult plain = run_process(arguments, adapted),
                      result = run_process(with(arguments, {"--data-parallel-size", "2"}), adapted);
  CHECK(plain.exit_code == 0);
  CHECK_MESSAGE(result.exit_code == 0, result.err);
  CHECK(stable_output(result.out) == stable_output(plain.out));
}

TEST_CASE("the ledger device: every batching mode, few rows and none, and the figures of all workers") {
  const Job job;
  for (const int num_rows : {0, 1, 2, 90}) {
    write_file(job.in, make_input(0, num_rows, 6, 7));
    const ProcessResult plain = run_ledger({job.in});
    for (const std::string batching : {"none", "static", "dynamic", "continuous"}) {
      CAPTURE(num_rows);
      CAPTURE(batching);
      const ProcessResult result =
          run_ledger({job.in, "--workers", "3", "--batching", batching, "--max-num-seqs", "8"});
      CHECK_MESSAGE(result.exit_code == plain.exit_code, result.err);
      CHECK(stable_output(result.out) == stable_output(plain.out));
    }
  }
  const std::string metrics = job.dir.file("metrics.jsonl");
  const ProcessResult measured = run_ledger({job.in, "-o", job.out, "--workers", "2", "--metrics", metrics});
  CHECK_MESSAGE(measured.exit_code == 3, measured.err);
  const json line = parse_lines(read_file(metrics)).at(0);
  CHECK(line["completed"] == 78);
  CHECK(line["unanswered"] == 0);
  CHECK(line["num_steps"] > 0);
  CHECK(line["prompt_tokens_asked"] > 0);
  CHECK(line["settings"]["device"].get<std::string>().starts_with("2 workers"));
}

TEST_CASE("killed workers cost nothing but time, whatever is killed and when") {
  const Job job;
  const char* const asked = std::getenv("LLMB_NUM_KILLS");
  const int num_wanted = asked != nullptr ? std::atoi(asked) : 12;
  const int num_rows = asked != nullptr ? 3000 : 300;
  write_file(job.in, make_input(0, num_rows, 12, 50));
  const std::string reference = job.dir.file("reference.jsonl");
  REQUIRE(run_ledger({job.in, "-o", reference}).exit_code == 3);
  const std::vector<std::string> expected = sorted_records(reference);
  TestRng rng(asked != nullptr ? 7 : 1);
  std::map<std::string, int> num_killed;
  int num_kills = 0, num_jobs = 0;
  while (num_kills < num_wanted) {
    for (const std::string& path : {job.out, job.partial, job.manifest}) fs::remove(path);
    ++num_jobs;
    for (int exit_code = -1; exit_code != 3 && exit_code != 0;) {  // 0: it was complete before
      // Any number of workers continues, none included.
      const int num_workers = rng.between(0, 4);
      std::vector<std::string> flags = {"--request-rate", "400", "--max-num-seqs", std::to_string(rng.between(1, 9))};
      if (num_workers > 0) flags = with(flags, {"--workers", std::to_string(num_workers)});
      StartedRun run(with({job.in, "-o", job.out}, flags));
      const auto begin = std::chrono::steady_clock::now();
      while (!run.has_ended()) {
        ::usleep(static_cast<useconds_t>(1000 * rng.between(1, 250)));
        const std::vector<pid_t> workers = run.workers();
        const bool has_begun = std::chrono::steady_clock::now() - begin > std::chrono::milliseconds(200);
        const bool kills_job = rng.chance(0.1) && has_begun;
        if ((workers.empty() && !kills_job) || run.has_ended() || num_kills >= num_wanted) continue;
        const auto index = static_cast<size_t>(rng.between(0, std::max(0, static_cast<int>(workers.size()) - 1)));
        const pid_t victim = kills_job ? run.pid() : workers[index];
        if (::kill(victim, SIGKILL) == 0) ++num_kills, ++num_killed[kills_job ? "job" : "worker"];
      }
      const ProcessResult result = run.wait();
      exit_code = result.exit_code;
      REQUIRE_MESSAGE((exit_code == 3 || exit_code == 0 || exit_code == 9 || exit_code == 137), result.err);
      if (exit_code == 9) CHECK_MESSAGE(contains(result.err, "no worker is left"), result.err);
    }
    const std::vector<std::string> records = sorted_records(job.out);
    REQUIRE(records.size() == expected.size());
    CHECK(stable_output(read_file(job.out)) == stable_output(read_file(reference)));
    CHECK_FALSE(fs::exists(job.partial));
  }
  if (asked != nullptr)
    MESSAGE(num_kills << " kills, " << num_killed["job"] << " of them of the job, in " << num_jobs
                      << " jobs: nothing lost, twice or changed");
}

TEST_CASE(
    "workers that hang: the others go on; where each does, exit 9 within the watchdog, and the job is continued") {
  const Job job;
  write_file(job.in, make_input(0, 200, 8));
  const ProcessResult plain = run_ledger({job.in});
  {
    StartedRun run(with({job.in, "-o", job.out, "--workers", "2", "--watchdog-timeout", "1"}, kSlowly));
    REQUIRE(run.wait_for_workers(2));
    ::usleep(300000);
    ::kill(run.workers().at(0), SIGSTOP);
    const ProcessResult result = run.wait();
    CHECK_MESSAGE(result.exit_code == 0, result.err);
    CHECK_MESSAGE(contains(result.err, "no sign of life for 1 s"), result.err);
    CHECK(stable_output(read_file(job.out)) == stable_output(plain.out));
  }
  const std::string second = job.dir.file("second.jsonl");
  {
    StartedRun run(with({job.in, "-o", second, "--workers", "2", "--watchdog-timeout", "1"}, kSlowly));
    std::set<pid_t> stopped;
    while (!run.has_ended()) {
      for (const pid_t worker : run.workers())
        if (fs::exists(second + ".partial") && stopped.insert(worker).second) ::kill(worker, SIGSTOP);
      ::usleep(20000);
    }
    const ProcessResult result = run.wait();
    CHECK_MESSAGE(result.exit_code == 9, result.err);
    CHECK_MESSAGE(contains(result.err, "no worker is left; the last: worker "), result.err);
    CHECK_MESSAGE(contains(result.err, ", step "), result.err);
    CHECK(report(result)["resumable"] == true);
  }
  const ProcessResult again = run_ledger({job.in, "-o", second, "--workers", "3"});
  CHECK_MESSAGE(again.exit_code == 0, again.err);
  CHECK(stable_output(read_file(second)) == stable_output(plain.out));
}

TEST_CASE("a signal lets what runs end, and nobody is left behind") {
  const Job job;
  write_file(job.in, make_input(0, 300, 8));
  const ProcessResult plain = run_ledger({job.in});
  for (const int signal : {SIGTERM, SIGINT, SIGKILL}) {
    CAPTURE(signal);
    fs::remove(job.out), fs::remove(job.manifest), fs::remove(job.partial);
    StartedRun run(with({job.in, "-o", job.out, "--workers", "2"}, kSlowly));
    REQUIRE(run.wait_for_workers(2));
    for (int i = 0; i < 2000 && !(fs::exists(job.partial) && fs::file_size(job.partial) > 0); ++i) ::usleep(5000);
    const std::vector<pid_t> workers = run.workers();
    ::kill(run.pid(), signal);
    const ProcessResult result = run.wait();
    CHECK_MESSAGE(result.exit_code == 128 + signal, result.err);
    if (signal != SIGKILL) CHECK(report(result)["left"] > 0);
    for (const pid_t worker : workers) {
      for (int i = 0; i < 2000 && ::kill(worker, 0) == 0; ++i) ::usleep(5000);
      CHECK(::kill(worker, 0) != 0);
    }
    const ProcessResult again = run_ledger({job.in, "-o", job.out, "--workers", "1"});
    CHECK_MESSAGE(again.exit_code == 0, again.err);
    CHECK(stable_output(read_file(job.out)) == stable_output(plain.out));
  }
}

TEST_CASE("workers that cannot load say so once; what cannot be combined is refused") {
  const ProcessResult refused =
      run_process({kProgram, "-m", source_dir() + "/data/fixtures/models/llama-gqa", "--tokenizer", kModel,
                   "--progress", "none", "--workers", "2", "--quantization", "int8", "--dtype", "bfloat16"},
                  "{\"prompt\":\"a\"}\n");
  CHECK_MESSAGE(refused.exit_code == 4, refused.err);
  CHECK(contains(run_ledger({"--workers", "2", "--autotune"}).err, "--autotune"));
  const ProcessResult device = run_llm_batch({"--workers", "2", "--device", "cuda:1"});
  CHECK(device.exit_code == 2);
  CHECK_MESSAGE(contains(device.err, "CUDA_VISIBLE_DEVICES"), device.err);
}

}  // namespace llmb::test
