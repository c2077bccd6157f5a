#include "tests/e2e/run.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <utility>

#include "tests/support/killed_process.h"

namespace llmb::test {

ProcessResult run_llm_batch(std::vector<std::string> arguments, const std::string& input) {
  std::vector<std::string> argv = {kProgram, "-m", kModel, "--progress", "none"};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  return run_process(argv, input);
}

ProcessResult run_ledger(std::vector<std::string> arguments, const std::string& input) {
  arguments.insert(arguments.begin(), {"--device", "ledger"});
  return run_llm_batch(std::move(arguments), input);
}

std::vector<std::string> with(std::vector<std::string> arguments, const std::vector<std::string>& more) {
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

int run_killed(const std::vector<std::string>& arguments, int first_call) {
  constexpr double kMsPerCall = 5;  // where file calls cannot be counted
  const TemporaryDirectory dir;
  std::vector<std::string> argv = {kProgram, "-m", kModel, "--progress", "none"};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  for (int num_killed = 0;; ++num_killed) {
    StopPlan plan;
    plan.when = can_count_file_calls() ? StopPlan::When::kAtFileCall : StopPlan::When::kAfterTime;
    plan.file_call = int64_t{first_call} * (num_killed + 1);
    plan.after_ms = kMsPerCall * static_cast<double>(plan.file_call);
    const StoppedProcess run = run_and_stop(argv, "/dev/null", dir.file("err"), plan);
    if (run.exit_code == 0) return num_killed;
    REQUIRE_MESSAGE(run.exit_code == 137, run.exit_code << " " << run.err);
  }
}

std::vector<nlohmann::json> parse_lines(const std::string& text) {
  std::vector<nlohmann::json> records;
  std::stringstream lines(text);
  for (std::string line; std::getline(lines, line);) records.push_back(nlohmann::json::parse(line));
  return records;
}

std::string stable_output(const std::string& text) {
  std::vector<nlohmann::json> records = parse_lines(text);
  std::sort(records.begin(), records.end(), [](const auto& a, const auto& b) { return a["index"] < b["index"]; });
  std::string out;
  for (auto& record : records) {
    record.erase("metrics");
    for (const char* begun : {"created", "created_at"})
      if (record.contains("response") && record["response"]["body"].contains(begun))
        record["response"]["body"].erase(begun);
    out += record.dump() + "\n";
  }
  return out;
}

nlohmann::json answer(const std::string& line, std::vector<std::string> arguments) {
  const ProcessResult result = run_llm_batch(std::move(arguments), line + "\n");
  const auto records = parse_lines(result.out);
  return records.size() == 1 ? records[0] : nlohmann::json{{"failed", result.err}};
}

}  // namespace llmb::test
