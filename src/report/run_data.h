// One run as a report shows it: plain values, from a metrics line and from records. What is absent was not there.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/quantile_sketch.h"

namespace llmb {

// A latency, or a length.
struct Distribution {
  double mean = 0, p50 = 0, p90 = 0, p95 = 0, p99 = 0, max = 0;
  Histogram histogram;
};

struct RunTimeline {
  double bin_s = 0;
  std::vector<double> input_tokens, output_tokens;  // [num_bins]  of each bin
  std::vector<double> running, waiting, kv_use;     // [num_bins]  means; kv_use in [0, 1]
};

struct RunTimes {  // seconds
  double prefill = 0, decode = 0, recomputed = 0, tail = 0, gap = 0;
};

struct RunRanks {
  double step_s = 0;           // while steps were in flight
  std::vector<double> idle_s;  // of these, each rank
};

struct RunRequest {
  std::string line, id;
  double input_tokens = 0, output_tokens = 0, queue_ms = 0, ttft_ms = 0, e2e_ms = 0;
};

struct RunError {
  std::string code, message, first_at;
  int64_t count = 0;
};

struct RunEnergy {
  std::string source, absent_because;
  std::optional<double> joules;
};

struct RunSpeculation {
  std::string drafter;
  double drafted = 0, accepted = 0;
};

struct RunData {
  std::string name;                                       // in legends, where there are several
  std::vector<std::pair<std::string, std::string>> facts;  // what ran
  int64_t completed = 0, failed = 0, unanswered = 0;
  std::optional<double> duration_s;
  double input_tokens = 0, output_tokens = 0;
  std::optional<double> mean_batch, num_preemptions;
  std::optional<Distribution> ttft_ms, tpot_ms, itl_ms, e2e_ms, queue_ms, input_lengths, output_lengths;
  std::optional<RunTimeline> timeline;
  std::optional<RunTimes> times;
  RunRanks ranks;
  std::optional<double> prompt_tokens_asked, prompt_tokens_saved, equal_rows, recomputed_tokens;
  std::vector<RunSpeculation> drafters;
  std::optional<double> speculation_saved_s;
  std::optional<double> mfu, mbu, peak_flops, peak_bandwidth, kv_use_mean, kv_use_peak;
  bool limits_were_given = false;
  std::vector<RunEnergy> energy;  // empty: nothing is known about it
  std::vector<RunRequest> sample, slowest;
  std::vector<RunError> errors;
};

}  // namespace llmb
