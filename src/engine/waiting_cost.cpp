#include "engine/waiting_cost.h"

#include <algorithm>

namespace llmb {

std::optional<bool> waiting_alone_pays(const StepCost* cost, double host_ms, int32_t num_running,
                                       int32_t num_constrained, bool are_waiting) {
  if (cost == nullptr || num_running < 1 || cost->ms(num_running) <= 0) return std::nullopt;
  // Once they wait they stay twice as long, so that they become more.
  if (!are_waiting) num_constrained = 2 * num_constrained * num_running / (num_running + num_constrained);
  const int32_t num_others = num_running - num_constrained;
  const double step_ms = cost->ms(num_running);
  // Two steps, the second without them; and one with all. A host that is slower than the steps delays both.
  const double alone_ms = step_ms + std::max(cost->ms(std::max(1, num_others)), host_ms);
  const double together_ms = step_ms + host_ms;
  return (num_running + num_others) * together_ms > num_running * alone_ms;
}

}  // namespace llmb
