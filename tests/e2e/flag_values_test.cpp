// FAULTS 46: values at and beyond the type of every flag that takes a number are refused before anything is loaded.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <regex>
#include <set>

#include "cli/flag_names.h"
#include "tests/e2e/run.h"
#include "tests/support/source_dir.h"

namespace llmb::test {

namespace {

struct NumericFlag {
  std::vector<std::string> good;  // at the borders
  std::vector<std::string> bad;   // just beyond them
};

// Each flag whose value is a number, as --help names it.
const std::map<std::string, NumericFlag> kFlags = {
    {"--max-errors", {{"0", "9007199254740992"}, {"-1", "9007199254740993"}}},
    {"--grace", {{"0", "1e6", "0.5"}, {"-1", "1000001"}}},
    {"--watchdog-timeout", {{"0", "1000000"}, {"-0.1", "1e7"}}},
    {"--max-model-len", {{"1", "16777216", "2k", "16M"}, {"0", "-1", "16777217", "17M", "1x", "k"}}},
    {"--max-num-seqs", {{"1", "65536"}, {"0", "-1", "65537"}}},
    {"--max-num-batched-tokens", {{"1", "1048576", "1K"}, {"0", "-5", "1048577"}}},
    {"--batch-window-ms", {{"0", "1e9"}, {"-1", "1.1e9"}}},
    {"--request-rate", {{"0.001", "1e9"}, {"0", "-1", "2e9"}}},
    {"--block-size", {{"8", "128"}, {"0", "-8", "12", "256"}}},
    {"--kv-cache-memory-bytes", {{"1", "2G", "1125899906842624"}, {"0", "-1", "1125899906842625"}}},
    {"--adapter-memory", {{"1", "512M", "1099511627776"}, {"0", "-1", "1099511627777"}}},
    {"--plan-memory", {{"1", "512M", "1099511627776"}, {"0", "-1", "1099511627777"}}},
    {"--num-speculative-tokens", {{"1", "16"}, {"0", "-1", "17"}}},
    {"--num-gpu-blocks-override", {{"1", "2147483647"}, {"0", "-1", "2147483648"}}},
    {"--swap-space", {{"0", "0.5", "1048576"}, {"-1", "1048577"}}},
    {"--gpu-memory-utilization", {{"0.01", "1"}, {"0", "-1", "1.01"}}},
    {"--threads", {{"1", "1024"}, {"0", "-1", "1025"}}},
    {"--workers", {{"1", "3"}, {"0", "-1", "257"}}},
    {"--prefill-workers", {{"1", "2"}, {"0", "-1", "129"}}},
    {"--decode-workers", {{"1", "2"}, {"0", "-1", "129"}}},
    {"--tensor-parallel-size", {{"1", "64"}, {"0", "-1", "65"}}},
    {"--pipeline-parallel-size", {{"1", "64"}, {"0", "-1", "65"}}},
    {"--prefill-context-parallel-size", {{"1", "64"}, {"0", "-1", "65"}}},
    {"--decode-context-parallel-size", {{"1", "16"}, {"0", "-1", "17"}}},
    {"--data-parallel-size", {{"1", "2"}, {"0", "-1", "257"}}},
    {"--max-tokens", {{"1", "2147483647"}, {"0", "-1", "2147483648"}}},
    {"--min-tokens", {{"0", "1"}, {"-1", "2147483648"}}},
    {"--temperature", {{"0", "100", "7e-1"}, {"-0.1", "100.1"}}},
    {"--top-p", {{"0.0001", "1"}, {"0", "-1", "1.0001"}}},
    {"--top-k", {{"-1", "0", "2147483647"}, {"-2", "2147483648"}}},
    {"--min-p", {{"0", "1"}, {"-0.1", "1.1"}}},
    {"--repetition-penalty", {{"0.01", "100"}, {"0", "-1", "101"}}},
    {"--presence-penalty", {{"-2", "2"}, {"-2.1", "2.1"}}},
    {"--frequency-penalty", {{"-2", "2"}, {"-2.1", "2.1"}}},
    {"--seed", {{"0", "9223372036854775808", "18446744073709551615"}, {"-1", "18446744073709551616"}}},
    {"--stop-token-ids", {{"0", "5,7"}, {"-1", "2147483648", "1,-1"}}},
    {"--dimensions", {{"1", "2147483647"}, {"0", "-1", "2147483648"}}},
    {"--logprobs", {{"0", "20"}, {"-1", "21"}}},
    {"--stop-repetition", {{"8", "4096"}, {"0", "-1", "7", "4097"}}},
    {"--n", {{"1", "256"}, {"0", "257"}}},
    {"--best-of", {{"1", "256"}, {"0", "257"}}},
    {"--price-per-hour", {{"0", "1e9", "2.5"}, {"-1", "1.1e9"}}},
    {"--peak-flops", {{"1", "1e24"}, {"0", "-1", "2e24"}}},
    {"--peak-bandwidth", {{"1", "1e24"}, {"0", "-1", "2e24"}}},
};

// No flag takes these for a number.
const std::vector<std::string> kNever = {"",    " ",   "010", "00",  "0x10", " 4",  "4 ",  "+4",   "4\t",  "nan",
                                         "inf", "-inf", "1e999", "x", "4x", "1,5", "--", "0b1", "\u0664",
                                         "123456789012345678901234567890"};

// Model and input are not there: a value that is let through ends otherwise.
ProcessResult run_with(const std::string& flag, const std::string& value) {
  std::vector<std::string> argv = {kProgram, "-m", "/nowhere", "/nowhere/in.jsonl"};
  if (flag == "--dimensions") argv.insert(argv.end(), {"--task", "embed"});
  argv.push_back(value.empty() ? flag : flag + "=" + value);
  if (value.empty()) argv.push_back(value);
  return run_process(argv);
}

}  // namespace

TEST_CASE("FAULTS 46: a value that no flag's number is ends with 2, naming the flag and what is expected") {
  for (const auto& [flag, values] : kFlags) {
    std::vector<std::string> refused = kNever;
    refused.insert(refused.end(), values.bad.begin(), values.bad.end());
    for (const std::string& value : refused) {
      if (flag == "--stop-token-ids" && value == "1,5") continue;
      const ProcessResult result = run_with(flag, value);
      CAPTURE(flag);
      CAPTURE(value);
      CAPTURE(result.err);
      CHECK(result.exit_code == 2);
      CHECK(result.err.find(flag) != std::string::npos);
      CHECK(result.err.find("/nowhere") == std::string::npos);
      const bool says_range = result.err.find(" to ") != std::string::npos || result.err.find("[") != std::string::npos ||
                              result.err.find("(") != std::string::npos || result.err.find("one of") != std::string::npos;
      CHECK(says_range);
    }
  }
}

TEST_CASE("FAULTS 46: values at the borders are taken") {
  for (const auto& [flag, values] : kFlags) {
    for (const std::string& value : values.good) {
      CAPTURE(flag);
      CAPTURE(value);
      const ProcessResult result = run_with(flag, value);
      CHECK_MESSAGE(result.exit_code != 2, result.err);
    }
  }
}

TEST_CASE("FAULTS 46: every flag of --help that takes a number is in this table") {
  const std::set<std::string> not_numbers = {
      "--output", "--output-format", "--order", "--retry-errors", "--error-file", "--model", "--tokenizer", "--revision", "--tokenizer-revision",
      "--chat-template", "--load-format", "--device", "--dtype", "--arithmetic", "--quantization", "--gguf-activations",
      "--weight-cache",
      "--batching", "--kv-cache-dtype", "--logit-bias", "--stop", "--truncate", "--progress", "--metrics", "--report", "--sample", "--slo",
      "--input-format", "--prompt-field", "--template", "--system", "--keep", "--schedule", "--policy", "--preemption", "--speculative",
      "--speculative-corpus", "--speculative-config", "--json-schema", "--regex", "--choice", "--grammar",
      "--tool-call-parser", "--reasoning-parser", "--shard", "--shard-by", "--done", "--task", "--pooling", "--classifier-from-token", "--adapter", "--adapter-dir",
      "--default-adapter", "--lora-modules", "--served-model-name", "--merge-adapters"};
  const std::string help = run_process({kProgram, "--help"}).out;
  const std::regex with_value(R"(\n  (?:-\w,)?(--[a-z-]+) +([^ \n]+))");
  int num_flags = 0;
  for (auto it = std::sregex_iterator(help.begin(), help.end(), with_value); it != std::sregex_iterator(); ++it) {
    const std::string flag = (*it)[1], placeholder = (*it)[2];
    // Flags without a value are followed by their description, which begins with a capital letter and a small one.
    const bool is_description = placeholder.size() > 1 && std::islower(static_cast<unsigned char>(placeholder[1])) &&
                                std::isupper(static_cast<unsigned char>(placeholder[0]));
    if (is_description || flag == "--deterministic") continue;
    ++num_flags;
    CHECK_MESSAGE((kFlags.count(flag) + not_numbers.count(flag)) == 1, flag);
  }
  CHECK(num_flags >= static_cast<int>(kFlags.size()));
}

TEST_CASE("an option that a message of src/job names is shown as its flag, which there is; nothing else is changed") {
  const std::string help = run_process({kProgram, "--help"}).out;
  const std::regex named("`([a-z_]+)`");
  int num_names = 0;
  for (const auto& entry : std::filesystem::directory_iterator(source_dir() + "/src/job")) {
    if (entry.path().extension() != ".cpp") continue;
    const std::string text = std::regex_replace(read_file(entry.path().string()), std::regex("//[^\n]*"), "");
    for (auto it = std::sregex_iterator(text.begin(), text.end(), named); it != std::sregex_iterator(); ++it) {
      std::string flag = "--" + (*it)[1].str();
      std::replace(flag.begin(), flag.end(), '_', '-');
      CHECK(with_flag_names((*it)[0].str()) == flag);
      CHECK_MESSAGE(std::regex_search(help, std::regex(flag + "[ =\n]")), flag);
      ++num_names;
    }
  }
  CHECK(num_names > 20);
  CHECK(with_flag_names("") == "");
  CHECK(with_flag_names("a `b` c: `error_file`, `restart`") == "a `b` c: --error-file, --restart");
  CHECK(with_flag_names("`open `restart`") == "`open --restart");
  CHECK(with_flag_names("`restart") == "`restart");
}

}  // namespace llmb::test
