// Shared by the end-to-end tests: the program on the bundled model, and its records as JSON.
#pragma once

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/process.h"
#include "tests/support/source_dir.h"

namespace llmb::test {

inline const std::string kProgram = binary_dir() + "/llm-batch";
inline const std::string kModel = source_dir() + "/data/model";

// Shell: waits until the process $pid handles SIGTERM and SIGUSR1, however slowly it starts.
inline const std::string kUntilSignalsAreHandled =
    "until grep -q '^SigCgt:.*[4-7c-f]...$' /proc/$pid/status; do sleep 0.02; kill -0 $pid || break; done; ";

// llm-batch -m data/model --progress none <arguments>, with `input` on stdin.
ProcessResult run_llm_batch(std::vector<std::string> arguments, const std::string& input = "");
// The same with --device ledger.
ProcessResult run_ledger(std::vector<std::string> arguments, const std::string& input = "");

// Arguments of a command, and more of them.
std::vector<std::string> with(std::vector<std::string> arguments, const std::vector<std::string>& more);

std::vector<nlohmann::json> parse_lines(const std::string& text);

// Begins a job of a file, kills it and continues it, until it ends with exit code 0: before file call first_call of the
// first run, twice first_call of the second, and so on. Returns how often it was killed. arguments: with -o FILE
int run_killed(const std::vector<std::string>& arguments, int first_call);

// Records sorted by index, without their metrics and when their job began: what must not depend on the schedule.
std::string stable_output(const std::string& text);

// One native line in, its record out.
nlohmann::json answer(const std::string& line, std::vector<std::string> arguments = {});

}  // namespace llmb::test
