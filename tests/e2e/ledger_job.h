// A job on the ledger device with an output file, for tests that run it again and again: its inputs, its records sorted
// by index, its final report, and what a killed run leaves.
#pragma once

#include <doctest/doctest.h>

#include <filesystem>

#include "tests/e2e/run.h"
#include "tests/support/records.h"

namespace llmb::test {

// With metrics: on this device they depend on the request alone.
inline const std::vector<std::string> kLedger = {"--device", "ledger"};

inline ProcessResult run_ledger(std::vector<std::string> arguments, const std::string& input = "") {
  arguments.insert(arguments.begin(), kLedger.begin(), kLedger.end());
  return run_llm_batch(std::move(arguments), input);
}

// As a shell command, for tests that send signals.
inline std::string ledger_command(const std::string& arguments) {
  return kProgram + " -m " + kModel + " --progress none --device ledger " + arguments;
}

// Native and OpenAI lines, one error in `every_bad` (0: none).
inline std::string make_input(int begin, int end, int max_tokens, int every_bad = 0) {
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

// The lines of a file, sorted by their record's index.
inline std::vector<std::string> sorted_records(const std::string& path) {
  std::vector<std::pair<int64_t, std::string>> records;
  std::stringstream lines(read_file(path));
  for (std::string line; std::getline(lines, line);)
    records.emplace_back(nlohmann::json::parse(line)["index"], without_created(line));
  std::sort(records.begin(), records.end());
  std::vector<std::string> sorted;
  for (auto& [index, line] : records) sorted.push_back(std::move(line));
  return sorted;
}

// The report: the last line on stderr.
inline nlohmann::json report(const ProcessResult& result) {
  const std::string text = result.err.substr(0, result.err.find_last_not_of('\n') + 1);
  return nlohmann::json::parse(text.substr(text.rfind('\n') + 1), nullptr, false);
}

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

struct Job {
  TemporaryDirectory dir;
  std::string in = dir.file("in.jsonl"), out = dir.file("out.jsonl"), partial = out + ".partial",
              manifest = out + ".manifest.json";

  ProcessResult run(std::vector<std::string> more = {}) const {
    more.insert(more.begin(), {in, "-o", out});
    return run_ledger(std::move(more));
  }

  // Every refusal leaves every byte as it was.
  void check_refused(const std::string& message, std::vector<std::string> more = {}) const {
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

  // Leaves what a killed run does: the first records, and a manifest that says running.
  void cut_to(size_t num_bytes) const {
    const std::string records = read_file(std::filesystem::exists(out) ? out : partial);
    std::filesystem::remove(out);
    write_file(partial, records.substr(0, num_bytes));
    set_state("running");
  }

  void set_state(const std::string& state) const {
    auto json = nlohmann::ordered_json::parse(read_file(manifest));
    json["state"] = state;
    write_file(manifest, json.dump());
  }
};

}  // namespace llmb::test
