#include "job/request_metrics.h"

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

void RequestMetrics::add(const FinishedItem& item) {
  const Completion& c = item.completion;
  if (c.error) {
    num_failed++;
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
