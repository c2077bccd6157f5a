// Kills llm-batch at random again and again and checks that every job comes out as if nothing had happened (what
// exactly: tests/support/crash_trial.h). Prints its seed; a failure says how to repeat it, and keeps the files.
#include <CLI/CLI.hpp>

#include <cstdio>
#include <filesystem>
#include <random>

#include "tests/support/crash_trial.h"
#include "tests/support/killed_process.h"

int main(int argc, char** argv) {
  CLI::App app("Random kills of llm-batch on the ledger device, with resume");
  llmb::test::CrashOptions options;
  options.seed = std::random_device{}();
  options.num_stops = 10000;
  app.add_option("--program", options.program, "llm-batch")->required();
  app.add_option("--model", options.model_dir, "model directory")->required();
  app.add_option("--seed", options.seed, "decides everything but the moment of a timed kill; random by itself");
  app.add_option("--first-scenario", options.first_scenario, "begin here, to repeat a failure");
  app.add_option("--runs", options.num_stops, "runs that are killed or interrupted")->capture_default_str();
  app.add_option("--budget-s", options.budget_s, "end after so many seconds");
  app.add_option("--dir", options.directory, "where to work; in memory by itself, where there is /dev/shm");
  CLI11_PARSE(app, argc, argv);
  namespace fs = std::filesystem;
  if (options.directory.empty()) {
    const fs::path base = fs::is_directory("/dev/shm") ? fs::path("/dev/shm") : fs::temp_directory_path();
    options.directory = (base / ("llm-batch-crash-" + std::to_string(options.seed))).string();
  }
  options.report = [](const std::string& line) { std::printf("%s\n", line.c_str()), std::fflush(stdout); };
  std::printf("seed %llu%s\n", static_cast<unsigned long long>(options.seed),
              llmb::test::can_count_file_calls() ? "" : " (no tracing here: kills after a time only)");
  std::fflush(stdout);
  const llmb::test::CrashResult result = run_crash_trials(options);
  if (result.failure) {
    std::printf("FAILED: %s\n", result.failure->c_str());
    return 1;
  }
  std::error_code ignored;
  fs::remove_all(options.directory, ignored);
  std::printf("ok: %s; 0 lost, 0 twice, 0 changed\n", describe(result.counts).c_str());
  return 0;
}
