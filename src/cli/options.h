// The command line: flags, their defaults, and what they become.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "core/request.h"
#include "job/request_metrics.h"
#include "job/result_stream.h"
#include "scheduler/scheduler_config.h"

namespace llmb {

enum class ProgressKind { kAuto, kBar, kPlain, kNone };

// Flags as given. Unset optionals leave the decision to the model's files or to the backend.
struct Options {
  // model
  std::string model_dir;                     // as given; find_model_dirs() puts a directory in place of a name
  std::string tokenizer_dir;                 // likewise; "": model_dir
  std::string model_name;                    // model_dir as given
  std::string model_commit;                  // where it came from the cache
  std::string revision, tokenizer_revision;  // of names in the Hugging Face cache; "": main
  std::string chat_template_file;            // "": the model's own
  std::string load_format = "auto";
  std::string device = "auto";
  std::string dtype = "auto";
  std::string arithmetic = "auto";
  Quantization quantization = Quantization::kNone;
  std::string weight_cache;  // "": none
  std::string kv_cache_dtype = "auto";
  std::optional<int32_t> max_model_len;

  // input and output
  std::vector<std::string> inputs;  // empty: stdin
  std::string output = "-";
  std::string metrics_file;  // "": beside the output
  OutputOrder order = OutputOrder::kCompletion;
  bool no_metrics = false;
  bool dry_run = false;
  bool restart = false;
  std::string retry_errors;  // error codes, separated by commas; "*": all; "": none
  std::optional<int64_t> max_errors;
  std::string error_file;
  double grace_s = 30;
  std::optional<double> watchdog_timeout_s;  // 0: never

  // batching
  BatchingMode batching = BatchingMode::kContinuous;
  int32_t max_num_seqs = 64;
  int32_t max_num_batched_tokens = 1024;
  double batch_window_ms = 50;
  int32_t block_size = 16;
  std::optional<int64_t> kv_cache_bytes;
  std::optional<int32_t> num_blocks;
  std::optional<double> request_rate;
  double gpu_memory_utilization = 0.92;
  bool deterministic = false;
  int32_t threads = 0;
  uint64_t seed = 0;

  // defaults for lines that do not say
  std::optional<int32_t> max_tokens, min_tokens, top_k, logprobs;
  std::optional<double> temperature, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty;
  std::vector<std::string> stop;
  std::vector<TokenId> stop_token_ids;
  std::string logit_bias_json;
  std::optional<TruncateSide> truncate;
  bool ignore_eos = false, include_stop_str_in_output = false, no_skip_special_tokens = false, return_token_ids = false;

  // report
  ProgressKind progress = ProgressKind::kAuto;
  std::string slo;
  std::optional<double> peak_flops, peak_bandwidth;

  // Where the metrics line goes; "" for nowhere.
  std::string metrics_path() const;
};

// What to do after parsing: run, or exit at once with this code (help, version, usage error: already printed).
struct ParsedCommandLine {
  Options options;
  std::optional<int> exit_code;
};

ParsedCommandLine parse_command_line(int argc, const char* const* argv);

}  // namespace llmb
