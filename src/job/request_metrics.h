// Figures of a run's requests: how many were answered, and how long each waited and computed.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

#include "base/quantile_sketch.h"
#include "core/request_sample.h"
#include "engine/completion_sink.h"

namespace llmb {

// Latency targets that a request must meet to count for goodput. Names as in vLLM's bench: ttft, tpot, e2el.
struct SloTargets {
  std::optional<double> ttft_ms, tpot_ms, e2el_ms;
  bool any() const { return ttft_ms || tpot_ms || e2el_ms; }
};

// Figures of the rows that an adapter answered.
struct AdapterTotals {
  int64_t num_completed = 0, num_input_tokens = 0, num_output_tokens = 0;
};

// A value in constant memory, but for the adapters.
struct RequestMetrics {
  void add(const FinishedItem& item);

  SloTargets slo;
  int64_t num_completed = 0;  // answered lines without an error
  int64_t num_failed = 0;     // error records
  int64_t num_preemptions = 0;
  int64_t num_input_tokens = 0, num_output_tokens = 0;
  int64_t num_good = 0;  // requests that met every target
  QuantileSketch ttft_ms, tpot_ms, itl_ms, e2el_ms, queue_ms;
  QuantileSketch input_tokens, output_tokens;  // of a request
  int64_t num_scored_tokens = 0;               // of prompts that were scored as a whole
  double scored_logprob = 0;                   // of these tokens
  std::map<int32_t, AdapterTotals> adapters;   // by their ids
  RequestSample sample;                        // of those answered
};

}  // namespace llmb
