#include "job/request_metrics.h"

#include <string>

namespace llmb {

void RequestMetrics::add(const FinishedItem& item) {
  const Completion& c = item.completion;
  if (c.error) {
    num_failed++;
    return;
  }
  num_completed++;
  num_input_tokens += c.num_prompt_tokens;
  num_output_tokens += c.num_output_tokens();
  if (c.scores_prompt()) {
    num_scored_tokens += static_cast<int64_t>(c.prompt_logprobs.size());
    scored_logprob += c.prompt_logprob();
  }
  if (c.adapter != kNoAdapter) {
    AdapterTotals& totals = adapters[c.adapter];
    totals.num_completed++;
    totals.num_input_tokens += c.num_prompt_tokens;
    totals.num_output_tokens += c.num_output_tokens();
  }
  const RequestLatency& l = c.latency;
  ttft_ms.add(l.ttft_ms);
  queue_ms.add(l.queue_ms);
  e2el_ms.add(l.e2e_ms);
  if (c.num_output_tokens() > 1) tpot_ms.add(l.tpot_ms);
  for (const float gap : item.itl_ms) itl_ms.add(gap);
  input_tokens.add(c.num_prompt_tokens);
  output_tokens.add(static_cast<double>(c.num_output_tokens()));
  sample.add({c.line.source + ":" + std::to_string(c.line.line_number), c.id_json, c.num_prompt_tokens,
              c.num_output_tokens(), l.queue_ms, l.ttft_ms, l.e2e_ms});
  num_preemptions += l.num_preemptions;
  const auto meets = [](const std::optional<double>& target, double value) { return !target || value <= *target; };
  if (meets(slo.ttft_ms, l.ttft_ms) && meets(slo.tpot_ms, l.tpot_ms) && meets(slo.e2el_ms, l.e2e_ms)) num_good++;
}

}  // namespace llmb
