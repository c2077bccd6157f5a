#include "job/request_metrics.h"

#include <algorithm>

namespace llmb {

namespace {

void count_error(const LineRef& line, const RequestError& error, std::vector<ErrorCount>* errors) {
  constexpr size_t kMaxCodes = 16, kMaxMessageBytes = 400;
  const auto known = std::find_if(errors->begin(), errors->end(), [&](const auto& e) { return e.code == error.code; });
  if (known != errors->end()) {
    ++known->count;
  } else if (errors->size() < kMaxCodes) {
    errors->push_back({error.code, 1, line.source + ":" + std::to_string(line.line_number),
                       error.message.substr(0, kMaxMessageBytes)});
  }
}

}  // namespace

void RequestMetrics::add(const FinishedItem& item) {
  const Completion& c = item.completion;
  if (c.error) {
    num_failed++;
    count_error(c.line, *c.error, &errors);
    return;
  }
  num_completed++;
  num_input_tokens += c.num_prompt_tokens;
  num_output_tokens += c.num_output_tokens();
  const RequestLatency& l = c.latency;
  ttft_ms.add(l.ttft_ms);
  queue_ms.add(l.queue_ms);
  e2el_ms.add(l.e2e_ms);
  if (c.num_output_tokens() > 1) tpot_ms.add(l.tpot_ms);
  for (const float gap : item.itl_ms) itl_ms.add(gap);
  num_preemptions += l.num_preemptions;
  const auto meets = [](const std::optional<double>& target, double value) { return !target || value <= *target; };
  if (meets(slo.ttft_ms, l.ttft_ms) && meets(slo.tpot_ms, l.tpot_ms) && meets(slo.e2el_ms, l.e2e_ms)) num_good++;
}

}  // namespace llmb
