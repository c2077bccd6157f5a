#include "engine/run_metrics.h"

#include <algorithm>
#include <cstdlib>
#include <sstream>

namespace llmb {

Result<SloTargets> parse_slo(const std::string& text) {
  SloTargets slo;
  std::stringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    const size_t equals = part.find('=');
    const std::string name = part.substr(0, equals);
    char* end = nullptr;
    const double value = equals == std::string::npos ? -1 : std::strtod(part.c_str() + equals + 1, &end);
    const std::string unit = end != nullptr ? end : "";
    std::optional<double>* target = name == "ttft"                      ? &slo.ttft_ms
                                    : name == "tpot"                    ? &slo.tpot_ms
                                    : (name == "e2el" || name == "e2e") ? &slo.e2el_ms
                                                                        : nullptr;
    if (target == nullptr || !(value > 0) || !(value < 1e12) || (unit != "ms" && unit != "s" && !unit.empty()))
      return invalid_argument("--slo: '" + part + "': expected ttft=, tpot= or e2el= and a time such as 200ms or 2s");
    *target = unit == "s" ? value * 1000 : value;
  }
  if (!slo.any()) return invalid_argument("--slo: no target; expected for example ttft=200ms,tpot=50ms");
  return slo;
}

void RunMetrics::add_completion(const Completion& c, const std::vector<float>& itl) {
  if (c.error) {
    num_failed++;
    return;
  }
  num_completed++;
  num_input_tokens += c.num_prompt_tokens;
  num_output_tokens += c.num_output_tokens;
  const RequestLatency& l = c.latency;
  ttft_ms.add(l.ttft_ms);
  queue_ms.add(l.queue_ms);
  e2el_ms.add(l.e2e_ms);
  if (c.num_output_tokens > 1) tpot_ms.add(l.tpot_ms);
  for (const float gap : itl) itl_ms.add(gap);
  num_preemptions += l.num_preemptions;
  const auto meets = [](const std::optional<double>& target, double value) { return !target || value <= *target; };
  if (meets(slo_.ttft_ms, l.ttft_ms) && meets(slo_.tpot_ms, l.tpot_ms) && meets(slo_.e2el_ms, l.e2e_ms)) num_good++;
}

void RunMetrics::add_step(const StepPlan& plan, double duration_ms, const KvUsage& kv) {
  num_steps++;
  busy_ms += duration_ms;
  batch_size_sum += plan.num_entries();
  kv_used_sum += static_cast<double>(kv.used_slots);
  kv_allocated_sum += static_cast<double>(kv.allocated_slots);
  kv_allocated_max = std::max(kv_allocated_max, kv.allocated_slots);
  const double lm_head_params = double{1} * config_.vocab_size * config_.hidden_size;
  flops += 2 * (static_cast<double>(config_.num_matmul_params()) - lm_head_params) * plan.num_tokens();
  flops += 2 * lm_head_params * plan.num_samples();
  double attended = 0;  // (query, position) pairs, at most
  for (int32_t e = 0; e < plan.num_entries(); ++e) {
    const double n = plan.num_rows(e);
    attended += n * plan.entries[e].max_base() + n * (n + 1) / 2;
    num_context_tokens_read += plan.max_context_len(e);
  }
  flops += 4 * attended * static_cast<double>(config_.q_size()) * config_.num_hidden_layers;
}

}  // namespace llmb
