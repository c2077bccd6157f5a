// A job on the ledger device with an output file, for tests that run it again and again: its inputs, its records sorted
// by index, its final report, and what a killed run leaves.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/process.h"

namespace llmb::test {

// With metrics: on this device they depend on the request alone.
inline const std::vector<std::string> kLedger = {"--device", "ledger"};

// As a shell command, for tests that send signals.
std::string ledger_command(const std::string& arguments);

// Native and OpenAI lines, one error in `every_bad` (0: none).
std::string make_input(int begin, int end, int max_tokens, int every_bad = 0);

// The lines of a file, sorted by their record's index.
std::vector<std::string> sorted_records(const std::string& path);

// The report: the last line on stderr.
nlohmann::json report(const ProcessResult& result);

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

struct Job {
  TemporaryDirectory dir;
  std::string in = dir.file("in.jsonl"), out = dir.file("out.jsonl"), partial = out + ".partial",
              manifest = out + ".manifest.json";

  ProcessResult run(std::vector<std::string> more = {}) const;

  // Every refusal leaves every byte as it was.
  void check_refused(const std::string& message, std::vector<std::string> more = {}) const;

  // Leaves what a killed run does: the first records, and a manifest that says running.
  void cut_to(size_t num_bytes) const;

  void set_state(const std::string& state) const;
};

}  // namespace llmb::test
