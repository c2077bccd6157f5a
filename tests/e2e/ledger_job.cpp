#include "tests/e2e/ledger_job.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <sstream>
#include <utility>

#include "tests/e2e/run.h"
#include "tests/support/records.h"

namespace llmb::test {

std::string ledger_command(const std::string& arguments) {
  return kProgram + " -m " + kModel + " --progress none --device ledger " + arguments;
}

std::string make_input(int begin, int end, int max_tokens, int every_bad) {
  std::string text;
  for (int i = begin; i < end; ++i) {
    const std::string number = std::to_string(i), tokens = std::to_string(max_tokens);
    if (every_bad > 0 && i % every_bad == every_bad - 1) text += R"({"id":)" + number + R"(,"prompt":5})";
    else if (i % 3 == 2)
      text += R"({"custom_id":")" + number +
              R"(","method":"POST","url":"/v1/completions","body":{"model":"m","prompt":"Story )" + number +
              R"(","max_tokens":)" + tokens + "}}";
    else
      text +=
          R"({"id":)" + number + R"(,"prompt":"Tale )" + number + R"(","ignore_eos":true,"max_tokens":)" + tokens + "}";
    text += "\n";
  }
  return text;
}

std::vector<std::string> sorted_records(const std::string& path) {
  std::vector<std::pair<int64_t, std::string>> records;
  std::stringstream lines(read_file(path));
  for (std::string line; std::getline(lines, line);)
    records.emplace_back(nlohmann::json::parse(line)["index"], without_created(line));
  std::sort(records.begin(), records.end());
  std::vector<std::string> sorted;
  for (auto& [index, line] : records) sorted.push_back(std::move(line));
  return sorted;
}

nlohmann::json report(const ProcessResult& result) {
  const std::string text = result.err.substr(0, result.err.find_last_not_of('\n') + 1);
  return nlohmann::json::parse(text.substr(text.rfind('\n') + 1), nullptr, false);
}

ProcessResult Job::run(std::vector<std::string> more) const {
  more.insert(more.begin(), {in, "-o", out});
  return run_ledger(std::move(more));
}

void Job::check_refused(const std::string& message, std::vector<std::string> more) const {
  const std::string before[] = {read_file(out), read_file(partial), read_file(manifest)};
  const ProcessResult result = run(std::move(more));
  INFO(result.err);
  CHECK(result.exit_code == 7);
  CHECK(contains(result.err, message));
  CHECK(report(result)["exit_code"] == 7);
  CHECK(report(result)["resumable"] == false);
  CHECK(read_file(out) == before[0]);
  CHECK(read_file(partial) == before[1]);
  CHECK(read_file(manifest) == before[2]);
}

void Job::cut_to(size_t num_bytes) const {
  const std::string records = read_file(std::filesystem::exists(out) ? out : partial);
  std::filesystem::remove(out);
  write_file(partial, records.substr(0, num_bytes));
  set_state("running");
}

void Job::set_state(const std::string& state) const {
  auto json = nlohmann::ordered_json::parse(read_file(manifest));
  json["state"] = state;
  write_file(manifest, json.dump());
}

}  // namespace llmb::test
