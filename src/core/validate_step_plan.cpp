// validate_step_plan: the invariants of step_plan.h, one function for each kind of thing in a plan.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "core/drafted_tokens.h"
#include "core/step_plan.h"

namespace llmb {

namespace {

Status broken(int invariant, int64_t seq, const std::string& what) {
  return internal_error("step plan invariant " + std::to_string(invariant) + " broken at sequence " +
                        std::to_string(seq) + ": " + what);
}

bool is_csr(const std::vector<int32_t>& start, size_t num_slices, size_t num_items) {
  return start.size() == num_slices + 1 && start.front() == 0 && start.back() == static_cast<int32_t>(num_items) &&
         std::is_sorted(start.begin(), start.end());
}

// Everything that the other checks index by.
Status check_arrays(const StepPlan& p) {
  if (p.block_size < 1) return broken(3, 0, "block_size");
  if (p.num_layer_groups < 1) return broken(3, 0, "num_layer_groups");
  if (!is_csr(p.query_start, p.entries.size(), p.tokens.size())) return broken(1, 0, "query_start");
  if (!is_csr(p.block_start, p.entries.size() * static_cast<size_t>(p.num_layer_groups), p.block_ids.size()))
    return broken(1, 0, "block_start");
  if (!p.parent_rows.empty() && p.parent_rows.size() != p.tokens.size()) return broken(5, 0, "parent_rows");
  if (p.mask_words < 0 || (p.mask_words == 0 ? !p.masks.empty() : p.masks.size() % p.mask_words != 0))
    return broken(7, 0, "mask_words");
  return {};
}

Status check_base(const StepEntry& entry, const StepPlan* in_flight, bool passes_on) {
  if (entry.base < 0) return broken(2, entry.seq, "negative base");
  if (entry.follows == kNoGroup)
    return entry.max_ahead == 0 ? Status() : broken(2, entry.seq, "tokens ahead, but it follows no group");
  if (in_flight == nullptr || entry.follows < 0 || entry.follows >= in_flight->num_groups())
    return broken(2, entry.seq, "follows a group that is not in flight");
  const SampleGroup& group = in_flight->groups[entry.follows];
  if ((group.mode != SampleMode::kSample && group.mode != SampleMode::kVerify) || is_tree(*in_flight, group))
    return broken(2, entry.seq, "follows a group that nothing can follow");
  const int32_t most = passes_on ? std::max(1, in_flight->entries[group.entry].max_ahead) : max_tokens_given(*in_flight, group);
  if (entry.max_ahead != most) return broken(2, entry.seq, "max_ahead");
  return {};
}

Status check_blocks(const StepPlan& p, int32_t e, int32_t num_blocks) {
  const StepEntry& entry = p.entries[e];
  for (int32_t table = e * p.num_layer_groups; table < (e + 1) * p.num_layer_groups; ++table) {
    const int32_t begin = p.block_start[table], end = p.block_start[table + 1];
    if (int64_t{end - begin} * p.block_size < int64_t{entry.max_base()} + p.num_rows(e))
      return broken(3, entry.seq, "too few blocks");
    for (int32_t b = begin; b < end; ++b)
      if (p.block_ids[b] < 0 || p.block_ids[b] >= num_blocks) return broken(3, entry.seq, "block id out of range");
  }
  return {};
}

Status check_rows(const StepPlan& p, int32_t e, int32_t num_unseen, int32_t num_drafted) {
  const int32_t begin = p.query_start[e], end = p.query_start[e + 1];
  if (end <= begin) return broken(1, p.entries[e].seq, "no tokens");
  for (int32_t row = begin; row < end; ++row) {
    const TokenId token = p.tokens[row];
    const bool is_before = is_before_unseen(token) && row == begin && end == begin + 2 && p.entries[e].follows != kNoGroup &&
                           p.entries[e].follows == group_before_unseen(token);
    const bool is_there = is_drafted(token) ? row > begin && drafted_slot(token) < num_drafted
                                            : is_before || token >= unseen_token(num_unseen - 1);
    if (!is_there) return broken(6, p.entries[e].seq, "a token that nothing in flight samples");
  }
  if (p.parent_rows.empty()) return {};
  for (int32_t row = begin; row < end; ++row)
    if (p.parent_rows[row] >= row || p.parent_rows[row] < begin - 1 ||
        (p.parent_rows[row] == begin - 1) != (row == begin))
      return broken(5, p.entries[e].seq, "a parent that is not a row before");
  return {};
}

// Blocks that the entry writes in a layer group, to `written`.
void append_written(const StepPlan& p, int32_t e, int32_t layer_group, std::vector<BlockId>* written) {
  const StepEntry& entry = p.entries[e];
  const int32_t table = p.block_start[e * p.num_layer_groups + layer_group];
  const int32_t first = entry.base + (entry.follows == kNoGroup ? 0 : 1);
  for (int32_t b = first / p.block_size; b <= (p.max_context_len(e) - 1) / p.block_size; ++b)
    written->push_back(p.block_ids[table + b]);
}

Status check_writers(const StepPlan& p) {
  std::vector<BlockId> written;
  for (int32_t layer_group = 0; layer_group < p.num_layer_groups; ++layer_group) {
    written.clear();
    for (int32_t e = 0; e < p.num_entries(); ++e) append_written(p, e, layer_group, &written);
    std::sort(written.begin(), written.end());
    const auto twice = std::adjacent_find(written.begin(), written.end());
    if (twice != written.end()) return broken(4, 0, "block " + std::to_string(*twice) + " has two writers");
  }
  return {};
}

Status check_sample_row(const StepPlan& p, const SampleRow& row, SeqId seq, int32_t num_unseen) {
  if (row.mask < -1 || row.mask >= p.num_masks()) return broken(7, seq, "mask out of range");
  if (row.bias_begin < 0 || row.bias_end < row.bias_begin || row.bias_end > static_cast<int32_t>(p.bias.size()) ||
      row.penalty_begin < 0 || row.penalty_end < row.penalty_begin ||
      row.penalty_end > static_cast<int32_t>(p.penalty.size()))
    return broken(7, seq, "slice out of range");
  for (int32_t i = row.penalty_begin; i < row.penalty_end; ++i)
    if (p.penalty[i].token < (i + 1 < row.penalty_end ? 0 : unseen_token(num_unseen - 1)))
      return broken(8, seq, "a penalty for a token that nothing in flight samples, or not the last one");
  return {};
}

Status check_group(const StepPlan& p, int32_t g, int32_t num_unseen) {
  const SampleGroup& group = p.groups[g];
  if (group.mode == SampleMode::kPool)
    return broken(7, group.seq, "a mode that is reserved");
  if (group.row_end <= group.row_begin || group.row_end > p.num_samples()) return broken(7, group.seq, "no rows");
  if (group.entry < 0 || group.entry >= p.num_entries()) return broken(7, group.seq, "an unknown entry");
  const bool has_rows = group.mode == SampleMode::kVerify || group.mode == SampleMode::kScore;
  if (!has_rows && group.num_rows() != 1) return broken(7, group.seq, "more than one row");
  const int32_t first = p.sample_rows[group.row_begin].token_row;
  const int32_t begin = p.query_start[group.entry], end = p.query_start[group.entry + 1];
  if (first < begin || first + group.num_rows() > end) return broken(7, group.seq, "samples rows of another entry");
  if (group.mode == SampleMode::kVerify && first + group.num_rows() != end)
    return broken(7, group.seq, "does not verify the last rows");
  if (group.mode == SampleMode::kBest && p.sample_rows[group.row_begin].num_logprobs < 1)
    return broken(7, group.seq, "the best none");
  for (int32_t i = group.row_begin; i < group.row_end; ++i) {
    if (p.sample_rows[i].group != g || p.sample_rows[i].token_row != first + (i - group.row_begin))
      return broken(7, group.seq, "rows that are not consecutive");
    LLMB_RETURN_IF_ERROR(check_sample_row(p, p.sample_rows[i], group.seq, num_unseen));
  }
  if (p.parent_rows.empty()) return {};
  // A draft's parent is a draft, or the known token in front of them.
  for (int32_t row = first + 1; row < first + group.num_rows(); ++row)
    if (p.parent_rows[row] < first) return broken(5, group.seq, "a draft that branches off before the known tokens' end");
  return {};
}

Status check_groups(const StepPlan& p, int32_t num_unseen) {
  int32_t next_row = 0;
  for (int32_t g = 0; g < p.num_groups(); ++g) {
    if (p.groups[g].row_begin != next_row) return broken(7, p.groups[g].seq, "sample rows between groups");
    LLMB_RETURN_IF_ERROR(check_group(p, g, num_unseen));
    next_row = p.groups[g].row_end;
  }
  if (next_row != p.num_samples()) return broken(7, 0, "sample rows of no group");
  return {};
}

// Rows that no group verifies form chains.
Status check_chains(const StepPlan& p) {
  if (p.parent_rows.empty()) return {};
  std::vector<int32_t> chain_end(p.query_start.begin() + 1, p.query_start.end());  // of each entry
  for (const SampleGroup& group : p.groups)
    if (group.mode == SampleMode::kVerify) chain_end[group.entry] = p.sample_rows[group.row_begin].token_row + 1;
  for (int32_t e = 0; e < p.num_entries(); ++e)
    for (int32_t row = p.query_start[e] + 1; row < chain_end[e]; ++row)
      if (p.parent_rows[row] != row - 1) return broken(5, p.entries[e].seq, "known tokens that are not a chain");
  return {};
}

// Checks a copy between, or within, pools of so many blocks.
Status check_copy(const StepPlan& p, const BlockCopy& copy, int32_t num_from, int32_t num_to) {
  if (copy.layer_group >= 0 && copy.layer_group < p.num_layer_groups && copy.from >= 0 && copy.from < num_from &&
      copy.to >= 0 && copy.to < num_to)
    return {};
  return broken(9, 0, "a copy out of range");
}

Status check_copies(const StepPlan& p, int32_t num_blocks, int32_t num_host_blocks) {
  const auto key = [](int32_t layer_group, BlockId block) { return int64_t{layer_group} << 32 | block; };
  std::vector<int64_t> from, to, to_host;
  for (const BlockCopy& copy : p.swaps_out) {
    LLMB_RETURN_IF_ERROR(check_copy(p, copy, num_blocks, num_host_blocks));
    to_host.push_back(copy.to);
  }
  for (const BlockCopy& copy : p.block_copies) {
    LLMB_RETURN_IF_ERROR(check_copy(p, copy, num_blocks, num_blocks));
    from.push_back(key(copy.layer_group, copy.from));
    to.push_back(key(copy.layer_group, copy.to));
  }
  for (const BlockCopy& copy : p.swaps_in) {
    LLMB_RETURN_IF_ERROR(check_copy(p, copy, num_host_blocks, num_blocks));
    to.push_back(key(copy.layer_group, copy.to));
  }
  for (std::vector<int64_t>* targets : {&to, &to_host}) {
    std::sort(targets->begin(), targets->end());
    if (std::adjacent_find(targets->begin(), targets->end()) != targets->end())
      return broken(9, 0, "a block is copied to twice");
  }
  for (const int64_t block : from)
    if (std::binary_search(to.begin(), to.end(), block)) return broken(9, 0, "a block is copied from and to");
  return {};
}

// Rows of heads have no keys and values.
Status check_hidden_rows(const StepPlan& p) {
  const auto num_entries = static_cast<size_t>(p.num_entries());
  if (p.hidden_rows.size() != p.tokens.size() || num_entries != p.tokens.size())
    return broken(12, 0, "not one hidden row for each entry");
  if (std::any_of(p.hidden_rows.begin(), p.hidden_rows.end(), [](int32_t row) { return row < 0; }))
    return broken(12, 0, "a negative hidden row");
  if (!p.block_ids.empty() || !p.block_copies.empty() || !p.swaps_out.empty() || !p.swaps_in.empty())
    return broken(12, 0, "blocks");
  if (p.groups.empty() || p.groups.size() % num_entries != 0) return broken(12, 0, "not every head for every entry");
  for (size_t g = 0; g < p.groups.size(); ++g)
    if (p.groups[g].entry != static_cast<int32_t>(g % num_entries))
      return broken(12, p.groups[g].seq, "groups out of turn");
  for (const StepEntry& entry : p.entries)
    if (entry.follows != kNoGroup) return broken(12, entry.seq, "follows a group");
  return {};
}

Status check_mtp(const StepPlan& p, bool may_follow) {
  for (int32_t e = 0; e < p.num_entries(); ++e)
    if (p.num_rows(e) != 1 || p.entries[e].base < 1 || (p.entries[e].follows != kNoGroup && !may_follow))
      return broken(13, p.entries[e].seq, "not one row behind others that are known");
  return {};
}

Status check_state_slots(const StepPlan& p) {
  std::vector<int32_t> slots;
  for (const StepEntry& entry : p.entries) {
    if (entry.state_slot < -1 || entry.adapter < -1) return broken(10, entry.seq, "a negative state slot or adapter");
    if (entry.state_slot >= 0) slots.push_back(entry.state_slot);
  }
  std::sort(slots.begin(), slots.end());
  if (std::adjacent_find(slots.begin(), slots.end()) != slots.end()) return broken(10, 0, "a state slot of two entries");
  std::vector<int32_t> to;
  for (const StateCopy& copy : p.state_copies) to.push_back(copy.to);
  std::sort(to.begin(), to.end());
  if (std::adjacent_find(to.begin(), to.end()) != to.end()) return broken(10, 0, "two copies to a state slot");
  for (const StateCopy& copy : p.state_copies) {
    if (copy.from < 0 || copy.to < 0) return broken(10, 0, "a copy of a negative state slot");
    if (std::binary_search(to.begin(), to.end(), copy.from)) return broken(10, 0, "a copy of a state slot that gets one");
  }
  return {};
}

Status check_shared_prefix(const StepPlan& p, const SharedPrefix& prefix) {
  const auto num_listed = static_cast<int32_t>(p.shared_entries.size());
  if (prefix.layer_group < 0 || prefix.layer_group >= p.num_layer_groups || prefix.num_blocks < 1 ||
      prefix.entry_begin < 0 || prefix.entry_end - prefix.entry_begin < 2 || prefix.entry_end > num_listed)
    return broken(11, 0, "a shared prefix out of range");
  const auto first_block = [&](int32_t i) {
    return p.block_ids.begin() + p.block_start[p.shared_entries[i] * p.num_layer_groups + prefix.layer_group];
  };
  const auto first = first_block(prefix.entry_begin);
  for (int32_t i = prefix.entry_begin; i < prefix.entry_end; ++i) {
    const int32_t table = p.shared_entries[i] * p.num_layer_groups + prefix.layer_group;
    if (p.block_start[table + 1] - p.block_start[table] < prefix.num_blocks ||
        !std::equal(first, first + prefix.num_blocks, first_block(i)))
      return broken(11, p.entries[p.shared_entries[i]].seq, "does not share the prefix");
  }
  return {};
}

Status check_shared_prefixes(const StepPlan& p) {
  for (const int32_t e : p.shared_entries)
    if (e < 0 || e >= p.num_entries()) return broken(11, 0, "an unknown entry shares a prefix");
  std::vector<const SharedPrefix*> open;            // each encloses the next
  std::vector<std::pair<int32_t, int32_t>> listed;  // layer group and entry
  for (const SharedPrefix& prefix : p.shared_prefixes) {
    LLMB_RETURN_IF_ERROR(check_shared_prefix(p, prefix));
    while (!open.empty() && open.back()->entry_end <= prefix.entry_begin) open.pop_back();
    if (open.empty()) {
      for (int32_t i = prefix.entry_begin; i < prefix.entry_end; ++i)
        listed.emplace_back(prefix.layer_group, p.shared_entries[i]);
    } else if (prefix.layer_group != open.back()->layer_group || prefix.num_blocks <= open.back()->num_blocks ||
               prefix.entry_begin < open.back()->entry_begin || prefix.entry_end > open.back()->entry_end) {
      return broken(11, 0, "shared prefixes that overlap");
    }
    open.push_back(&prefix);
  }
  std::sort(listed.begin(), listed.end());
  if (std::adjacent_find(listed.begin(), listed.end()) != listed.end())
    return broken(11, 0, "an entry is listed twice");
  const auto by_layer_group = [](const SharedPrefix& a, const SharedPrefix& b) {
    return a.layer_group < b.layer_group;
  };
  if (!std::is_sorted(p.shared_prefixes.begin(), p.shared_prefixes.end(), by_layer_group))
    return broken(11, 0, "shared prefixes that are not by layer group");
  return {};
}

}  // namespace

Status validate_step_plan(const StepPlan& p, int32_t num_blocks, const StepPlan* in_flight, int32_t num_host_blocks) {
  return validate_step_plan(p, num_blocks, in_flight, num_host_blocks, DraftRules());
}

Status validate_step_plan(const StepPlan& p, int32_t num_blocks, const StepPlan* in_flight, int32_t num_host_blocks,
                          const DraftRules& drafts) {
  const int32_t num_unseen = in_flight == nullptr ? 0 : in_flight->num_groups();
  LLMB_RETURN_IF_ERROR(check_arrays(p));
  for (int32_t e = 0; e < p.num_entries(); ++e) {
    LLMB_RETURN_IF_ERROR(check_rows(p, e, num_unseen, drafts.num_drafted));
    LLMB_RETURN_IF_ERROR(check_base(p.entries[e], in_flight, drafts.passes_on));
    if (p.hidden_rows.empty()) LLMB_RETURN_IF_ERROR(check_blocks(p, e, num_blocks));
  }
  LLMB_RETURN_IF_ERROR(p.hidden_rows.empty() ? check_writers(p) : check_hidden_rows(p));
  if (p.is_mtp) LLMB_RETURN_IF_ERROR(check_mtp(p, drafts.num_drafted > 0));
  LLMB_RETURN_IF_ERROR(check_groups(p, num_unseen));
  LLMB_RETURN_IF_ERROR(check_chains(p));
  LLMB_RETURN_IF_ERROR(check_copies(p, num_blocks, num_host_blocks));
  LLMB_RETURN_IF_ERROR(check_shared_prefixes(p));
  return check_state_slots(p);
}

}  // namespace llmb
