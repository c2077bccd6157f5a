#include "engine/work_counter.h"

namespace llmb {

StepRows WorkCounter::add_step(const StepPlan& plan) {
  StepRows rows;
  for (int32_t e = 0; e < plan.num_entries(); ++e) {
    const int32_t num_rows = plan.num_rows(e);
    const auto at = sequences_.find(plan.entries[e].seq);
    if (at == sequences_.end()) {  // it ended while this plan was in flight
      rows.num_output += num_rows;
      continue;
    }
    Progress& p = at->second;
    const int32_t base = plan.entries[e].max_base();
    // Behind the known tokens stand drafts.
    const int32_t end = std::min(base + num_rows, p.num_prompt_tokens + p.num_output_tokens);
    const int32_t num_recomputed = std::max(0, std::min(p.end, end) - base);
    const int32_t num_prompt = std::max(0, std::min(end, p.num_prompt_tokens) - std::max(base, p.end));
    rows.num_recomputed += num_recomputed;
    rows.num_prompt += num_prompt;
    rows.num_output += num_rows - num_recomputed - num_prompt;
    num_tokens_ -= p.num_tokens();
    p.end = std::max(p.end, end);
    num_tokens_ += p.num_tokens();
  }
  return rows;
}

void WorkCounter::add_output_token(SeqId seq) {
  const auto at = sequences_.find(seq);
  if (at == sequences_.end()) return;
  ++at->second.num_output_tokens;
  ++num_tokens_;
  ++num_output_tokens_;
}

void WorkCounter::remove(SeqId seq) {
  const auto at = sequences_.find(seq);
  if (at == sequences_.end()) return;
  num_tokens_ -= at->second.num_tokens();
  num_output_tokens_ -= at->second.num_output_tokens;
  sequences_.erase(at);
}

}  // namespace llmb
