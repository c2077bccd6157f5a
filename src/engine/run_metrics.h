// What a run measured: per-request latencies, steps, KV use; and what follows from them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "base/status.h"
#include "core/completion.h"
#include "core/model_config.h"
#include "core/step_plan.h"
#include "engine/quantile_sketch.h"
#include "scheduler/scheduler.h"

namespace llmb {

// Latency targets that a request must meet to count for goodput. Names as in vLLM's bench: ttft, tpot, e2el.
struct SloTargets {
  std::optional<double> ttft_ms, tpot_ms, e2el_ms;
  bool any() const { return ttft_ms || tpot_ms || e2el_ms; }
};

// "ttft=200ms,tpot=50ms,e2el=2s" (units ms or s; none: ms).
Result<SloTargets> parse_slo(const std::string& text);

// Constant memory. Not thread-safe: filled by the engine's thread.
class RunMetrics {
 public:
  RunMetrics(const ModelConfig& config, const SloTargets& slo) : config_(config), slo_(slo) {}

  void add_completion(const Completion& completion, const std::vector<float>& itl_ms);
  void add_step(const StepPlan& plan, double duration_ms, const KvUsage& kv);

  int64_t num_completed = 0;   // answered lines without an error
  int64_t num_failed = 0;      // error records
  int64_t num_unanswered = 0;  // left when the run was interrupted
  int64_t num_steps = 0;
  int64_t num_preemptions = 0;
  int64_t num_input_tokens = 0, num_output_tokens = 0;
  int64_t num_good = 0;                          // requests that met every target
  double busy_ms = 0;                            // in steps
  double batch_size_sum = 0;                     // sequences, summed over steps
  double flops = 0;                              // of the matrix products and attention
  double num_context_tokens_read = 0;            // from the KV cache, summed over steps and sequences
  double kv_used_sum = 0, kv_allocated_sum = 0;  // slots, summed over steps
  int64_t kv_allocated_max = 0;
  QuantileSketch ttft_ms, tpot_ms, itl_ms, e2el_ms, queue_ms;

  const SloTargets& slo() const { return slo_; }

 private:
  const ModelConfig config_;
  const SloTargets slo_;
};

// What the summary needs besides the metrics.
struct RunContext {
  double wall_ms = 0;  // from the first read to the last record
  BackendInfo backend;
  MachineLimits limits;
  bool limits_were_given = false;
};

// The summary as a table for people.
std::string summary_table(const RunMetrics& metrics, const RunContext& context);
// The summary as one JSON line, metric names as in vLLM's bench. `extra_json_members` ("\"a\":1,…" or "") come first.
std::string summary_json(const RunMetrics& metrics, const RunContext& context, const std::string& extra_json_members);

}  // namespace llmb
