// The command line: flags, their defaults, and what they become.
#pragma once

#include <optional>
#include <string>

#include "job/job_options.h"

namespace llmb {

enum class ProgressKind { kAuto, kBar, kPlain, kNone };

// Values that CLI11 does not bring into their final form.
struct FlagTexts {
  std::string load_format = "auto", dtype = "auto", arithmetic = "auto", kv_cache_dtype = "auto";
  std::string logit_bias, slo;
  std::string input_format = "auto", prompt_template, keep;
  std::string speculative, speculative_config;
  std::string json_schema, regex, grammar;  // of the files, their names
  std::vector<std::string> choices;
  std::vector<std::string> adapters, lora_modules;
  std::string tool_call_parser = "auto", reasoning_parser = "auto";
  std::string policy = "fcfs";
  std::string shard;
  ShardBy shard_by = ShardBy::kRows;
  bool no_skip_special_tokens = false;
};

// The plain call, or the command that the first argument names.
enum class Command { kRun, kReport, kCompare, kMerge, kInspect };

struct Options {
  Command command = Command::kRun;
  JobOptions job;
  FlagTexts texts;  // parse_command_line() reads them into `job`
  bool dry_run = false;
  bool autotune = false;
  bool enable_dbo = false;  // make_splitting_backend()
  ProgressKind progress = ProgressKind::kAuto;
  std::optional<double> peak_flops, peak_bandwidth;
  std::optional<double> price_per_hour;  // of the machine, in any currency
  std::optional<int64_t> sample;         // lines that compare runs; none: so many that it takes about a minute
  std::string report;                    // an HTML file; "": none
};

// To be done after parsing: run, or exit at once with this code (help, version, usage error: already printed).
struct ParsedCommandLine {
  Options options;
  std::optional<int> exit_code;
};

ParsedCommandLine parse_command_line(int argc, const char* const* argv);

}  // namespace llmb
