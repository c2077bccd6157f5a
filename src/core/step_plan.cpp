#include "core/step_plan.h"

#include "base/check.h"

namespace llmb {

void StepPlan::clear() {
  num_layers = 0;
  is_mtp = false;
  tokens.clear();
  parent_rows.clear();
  hidden_rows.clear();
  entries.clear();
  query_start.assign(1, 0);
  block_start.assign(1, 0);
  block_ids.clear();
  block_copies.clear();
  state_copies.clear();
  swaps_out.clear();
  swaps_in.clear();
  shared_prefixes.clear();
  shared_entries.clear();
  groups.clear();
  sample_rows.clear();
  bias.clear();
  penalty.clear();
  masks.clear();
  mask_words = 0;
}

void StepOutput::clear() {
  token_start.assign(1, 0);
  tokens.clear();
  logprobs.clear();
  top_start.assign(1, 0);
  top_tokens.clear();
  top_logprobs.clear();
  is_finite.clear();
  hidden.clear();
  drawn.clear();
  device_ms = 0;
}

int32_t max_tokens_given(const StepPlan& plan, const SampleGroup& group) {
  if (group.mode == SampleMode::kBest) return plan.sample_rows[group.row_begin].num_logprobs;
  return group.num_rows();
}

bool is_tree(const StepPlan& plan, const SampleGroup& group) {
  if (plan.parent_rows.empty()) return false;
  const int32_t first = plan.sample_rows[group.row_begin].token_row;
  for (int32_t row = first + 1; row < first + group.num_rows(); ++row)
    if (plan.parent_rows[row] != row - 1) return true;
  return false;
}

int32_t num_in_place(const StepPlan& plan, const SampleGroup& group, std::span<const TokenId> given) {
  const auto num_given = static_cast<int32_t>(given.size());
  LLMB_CHECK(num_given >= 1);
  if (!is_tree(plan, group)) return num_given;
  // The row before is in place, so the one behind it is the only one that can be.
  const int32_t first = plan.sample_rows[group.row_begin].token_row;
  int32_t count = 1;
  while (count < num_given && plan.parent_rows[first + count] == first + count - 1 &&
         plan.tokens[first + count] == given[count - 1])
    ++count;
  return count;
}

namespace {

std::string describe(const StepPlan& p, const SampleGroup& group) {
  static const char* const kModes[] = {"sample", "verify", "best", "score", "pool"};
  return std::string("  ") + kModes[static_cast<int32_t>(group.mode)] + " for seq " + std::to_string(group.seq) + ": " +
         std::to_string(group.num_rows()) + " rows from " + std::to_string(p.sample_rows[group.row_begin].token_row) +
         ", choice " + std::to_string(p.sample_rows[group.row_begin].choice) + '\n';
}

}  // namespace

std::string to_string(const StepPlan& p) {
  std::string out = "step " + std::to_string(p.step) + ": " + std::to_string(p.num_entries()) + " entries, " +
                    std::to_string(p.num_tokens()) + " tokens, " + std::to_string(p.num_samples()) + " samples\n";
  for (int32_t e = 0; e < p.num_entries(); ++e) {
    const StepEntry& entry = p.entries[e];
    out += "  seq " + std::to_string(entry.seq) + ": query " + std::to_string(p.num_rows(e)) + " at " +
           std::to_string(entry.base);
    if (entry.follows != kNoGroup)
      out += " + up to " + std::to_string(entry.max_ahead) + " of group " + std::to_string(entry.follows);
    if (entry.state_slot >= 0) out += ", state " + std::to_string(entry.state_slot);
    out += ", blocks";
    for (int32_t b = p.block_start[e * p.num_layer_groups]; b < p.block_start[(e + 1) * p.num_layer_groups]; ++b)
      out += ' ' + std::to_string(p.block_ids[b]);
    out += '\n';
  }
  for (const SampleGroup& group : p.groups) out += describe(p, group);
  for (const BlockCopy& copy : p.block_copies)
    out += "  copy " + std::to_string(copy.from) + " to " + std::to_string(copy.to) + '\n';
  for (const StateCopy& copy : p.state_copies)
    out += "  copy state " + std::to_string(copy.from) + " to " + std::to_string(copy.to) + '\n';
  for (const SharedPrefix& prefix : p.shared_prefixes) {
    out += "  " + std::to_string(prefix.num_blocks) + " blocks shared by entries";
    for (int32_t i = prefix.entry_begin; i < prefix.entry_end; ++i) out += ' ' + std::to_string(p.shared_entries[i]);
    out += '\n';
  }
  return out;
}

}  // namespace llmb
