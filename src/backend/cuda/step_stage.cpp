#include "backend/cuda/step_stage.h"

#include <algorithm>
#include <cstring>

#include "backend/cuda/step_layout.h"
#include "base/check.h"
#include "core/draft_counts.h"
#include "core/drafted_tokens.h"

namespace llmb {

using cuda::check;

namespace {

constexpr int64_t kAlignment = 256;

int64_t aligned(int64_t bytes) { return ceil_div(bytes, kAlignment) * kAlignment; }

// The tables hold biases first, then penalties.
int64_t penalty_offset(const StepLimits& limits) { return aligned(limits.max_num_biases * int64_t{sizeof(TokenBias)}); }

int64_t table_bytes(const StepLimits& limits) {
  return penalty_offset(limits) + limits.max_num_penalties * int64_t{sizeof(TokenPenalty)};
}

template <typename Values>
int64_t bytes_of(const Values& values) {
  return static_cast<int64_t>(values.size() * sizeof(values[0]));
}

template <typename Values>
void copy(const Values& values, void* out) {
  if (!values.empty()) std::memcpy(out, values.data(), values.size() * sizeof(values[0]));
}

// The values, then `pad` up to `size`.
template <typename T>
void copy_padded(const std::vector<T>& values, T pad, int64_t size, uint8_t* out) {
  copy(values, out);
  std::fill(reinterpret_cast<T*>(out) + values.size(), reinterpret_cast<T*>(out) + size, pad);
}

// Blocks that are copied or swapped.
int64_t num_pairs(const StepPlan& plan) {
  return static_cast<int64_t>(plan.block_copies.size() + plan.swaps_out.size() + plan.swaps_in.size());
}

// In recorded steps.
bool is_wgmma(const AttentionKind& kind) {
  return kind.shape.joined_value_dim == 0 && cuda::attention_tiling(kind.shape).wgmma;
}

}  // namespace

bool StepLimits::hold_copies_of(const StepPlan& plan) const {
  return static_cast<int64_t>(plan.block_copies.size()) <= max_num_copies() && num_pairs(plan) <= max_num_pairs();
}

StepShape shape_of(const StepPlan& plan) {
  // Rows behind their place are drafts, which are sampled.
  const int32_t num_out_of_place = plan.parent_rows.empty() ? 0 : plan.num_samples();
  const int32_t num_seqs = std::min(plan.num_entries() + num_out_of_place, plan.num_tokens());
  return {plan.num_tokens(), num_seqs, plan.num_samples()};
}

int64_t StepStage::Layout::copies(const StepPlan& plan) const { return block_ids + aligned(bytes_of(plan.block_ids)); }

int64_t StepStage::Layout::end(const StepPlan& plan) const {
  return copies(plan) + num_pairs(plan) * int64_t{sizeof(cuda::BlockPair)};
}

StepStage::Layout StepStage::layout(const StepShape& shape) const {
  int64_t end = 0;
  const auto place = [&](int64_t count, size_t size) {
    const int64_t at = end;
    end = at + aligned(count * static_cast<int64_t>(size));
    return at;
  };
  Layout at;
  at.tokens = place(shape.num_tokens, sizeof(TokenId));
  at.rows = place(shape.num_tokens, sizeof(cuda::StepRow));
  at.entries = place(shape.num_seqs, sizeof(StepEntry));
  at.states = place(limits_.has_states ? shape.num_seqs : 0, sizeof(cuda::StateRows));
  at.block_start = place(shape.num_seqs, sizeof(int32_t));
  at.sample_rows = place(shape.num_samples, sizeof(int32_t));
  at.samples = place(shape.num_samples, sizeof(SampleRow));
  at.groups = place(shape.num_samples, sizeof(SampleGroup));
  for (int list = 0; list < shape.num_lists(); ++list)
    for (size_t i = 0; i < kinds_.size(); ++i) {
      if (is_expanded(i) && shape.expanded.num_heads == 0) continue;
      const int32_t ctas = num_ctas(i, shape.is_split());
      const int32_t num_seqs = is_expanded(i) ? shape.expanded.num_seqs : shape.num_seqs;
      const int32_t num_rows = is_expanded(i) ? shape.expanded.num_rows : shape.num_tokens;
      at.cta_start[list][i] = place(ctas + 1, sizeof(int32_t));
      at.items[list][i] = place(cuda::attention_limits(attention_shape(i, shape), ctas, num_seqs, num_rows).max_items,
                                sizeof(cuda::AttentionItem));
    }
  at.expanded_blocks = place(shape.expanded.num_blocks, sizeof(cuda::ExpandedBlock));
  at.kept_rows = place(shape.num_kept, sizeof(int32_t));
  at.kept_places = place(shape.num_kept, sizeof(cuda::StepRow));
  at.kept_sample_rows = place(shape.num_kept > 0 ? shape.num_samples : 0, sizeof(int32_t));
  at.part_samples = place(shape.is_shared_out() ? shape.num_samples : 0, sizeof(int32_t));
  at.sample_places = place(shape.is_shared_out() ? shape.num_samples : 0, sizeof(int32_t));
  at.parent_rows = place(shape.num_tokens, sizeof(int32_t));
  at.block_ids = end;
  return at;
}

// The list of attention over shared prefixes has a place of its own, which most steps do not use.
struct StepStage::SharedLayout {
  int64_t cta_start, tokens, items, end;
};

StepStage::SharedLayout StepStage::shared_layout() const {
  const cuda::SharedAttentionLimits most = cuda::shared_attention_limits(
      attention_, num_ctas_, limits_.max_num_seqs, limits_.max_num_shared_tokens());
  SharedLayout at;
  at.cta_start = 0;
  at.tokens = aligned((num_ctas_ + 1) * int64_t{sizeof(int32_t)});
  at.items = at.tokens + aligned(most.max_tokens * int64_t{sizeof(int32_t)});
  at.end = aligned(at.items + most.max_items * int64_t{sizeof(cuda::AttentionItem)});
  return at;
}

StepStage::StepStage(const StepLimits& limits, const std::vector<AttentionKind>& kinds, const AttentionWindows& windows,
                     const ExpansionLimits& expansion)
    : limits_(limits),
      kinds_(kinds),
      attention_(kinds[0].shape),
      num_ctas_(kinds[0].num_ctas),
      windows_(windows),
      expansion_(expansion),
      may_share_(kinds.size() == 1 && cuda::can_share_positions(kinds[0].shape)),
      places_((1 + int64_t{limits.num_layer_groups}) * limits.max_num_tokens * int64_t{sizeof(int32_t)}) {
  for (auto& schedules : schedules_) schedules.resize(kinds.size());
  StepShape largest{limits.max_num_tokens, limits.max_num_seqs + limits.max_num_samples, limits.max_num_samples, {}};
  if (limits.part_sms > 0) ++largest.num_seqs, largest.second.row = 1;  // a prompt may be in both parts
  StepShape expanded = largest, kept = largest, shared = largest;
  expanded.second = kept.second = shared.second = {};
  shared.own = {0, limits.max_num_tokens};
  if (limits.narrows) kept.num_kept = limits.max_num_tokens;
  if (expansion.max_blocks > 0)
    expanded.expanded = {limits.max_num_seqs, limits.max_num_tokens, static_cast<int32_t>(expansion.max_blocks),
                         kinds.back().shape.num_heads};
  const int64_t num_blocks = int64_t{limits.max_num_seqs} * limits.max_blocks_per_seq * limits.num_layer_groups;
  const int64_t bytes = std::max({layout(largest).block_ids, layout(expanded).block_ids, layout(kept).block_ids,
                                  layout(shared).block_ids}) +
                        aligned(num_blocks * int64_t{sizeof(BlockId)}) +
                        limits.max_num_pairs() * int64_t{sizeof(cuda::BlockPair)};
  device_ = cuda::DeviceMemory(bytes);
  device_tables_ = cuda::DeviceMemory(table_bytes(limits));
  const int64_t mask_bytes = int64_t{limits.max_num_samples} * limits.mask_words * int64_t{sizeof(uint32_t)};
  device_masks_ = cuda::DeviceMemory(mask_bytes);
  const int num_lists = limits.part_sms > 0 ? kMaxStepParts : 1;
  for (int i = 0; i < limits.max_plans_in_flight; ++i) {
    host_.emplace_back(bytes);
    host_tables_.emplace_back(table_bytes(limits));
    host_masks_.emplace_back(mask_bytes);
    if (may_share()) host_shared_.emplace_back(num_lists * shared_layout().end);
  }
  if (may_share()) device_shared_ = cuda::DeviceMemory(num_lists * shared_layout().end);
}

int32_t StepStage::num_kinds(bool has_drafts, bool has_trees) const {
  const bool has_wgmma = std::any_of(kinds_.begin(), kinds_.end(), is_wgmma);
  const int32_t num_launches = static_cast<int32_t>(windows_.of_layers.size());  // one for each window that shares
  const int32_t num_sharings = !may_share() ? 1 : 1 + num_launches * (has_wgmma ? 2 : 1);
  const int32_t num_heights = has_wgmma && has_drafts ? 2 : 1;
  return (num_sharings + (has_trees ? 1 : 0)) * num_heights;
}

StepKind StepStage::decode_kind() const {
  return {.is_tall = std::any_of(kinds_.begin(), kinds_.end(), [](const AttentionKind& kind) {
            return is_wgmma(kind) && kind.shape.group() > cuda::AttentionTiling::kTileRows;
          })};
}

StepKind StepStage::fullest_decode_kind() const {
  StepKind kind = decode_kind();
  if (!may_share()) return kind;
  kind.sharing = Sharing::kMma;
  kind.least_window = windows_.of_layers.back();
  return kind;
}

StepArrays StepStage::arrays(const StepShape& shape, const StepKind& kind) const {
  const Layout at = layout(shape);
  auto* base = device_.data<uint8_t>();
  StepArrays arrays;
  arrays.shape = shape;
  arrays.kind = kind;
  arrays.tokens = reinterpret_cast<TokenId*>(base + at.tokens);
  arrays.rows = reinterpret_cast<const cuda::StepRow*>(base + at.rows);
  arrays.entries = reinterpret_cast<const StepEntry*>(base + at.entries);
  arrays.states = reinterpret_cast<const cuda::StateRows*>(base + at.states);
  arrays.block_start = reinterpret_cast<const int32_t*>(base + at.block_start);
  arrays.sample_rows = reinterpret_cast<const int32_t*>(base + at.sample_rows);
  arrays.samples = reinterpret_cast<SampleRow*>(base + at.samples);
  arrays.groups = reinterpret_cast<const SampleGroup*>(base + at.groups);
  for (int list = 0; list < shape.num_lists(); ++list)
    for (size_t i = 0; i < kinds_.size(); ++i) {
      if (is_expanded(i) && shape.expanded.num_heads == 0) continue;
      arrays.lists[list][i] = {num_ctas(i, shape.is_split()),
                               reinterpret_cast<const int32_t*>(base + at.cta_start[list][i]),
                               reinterpret_cast<cuda::AttentionItem*>(base + at.items[list][i])};
    }
  arrays.kept_rows = reinterpret_cast<const int32_t*>(base + at.kept_rows);
  arrays.kept_places = reinterpret_cast<const cuda::StepRow*>(base + at.kept_places);
  arrays.kept_sample_rows = reinterpret_cast<const int32_t*>(base + at.kept_sample_rows);
  arrays.part_samples = reinterpret_cast<const int32_t*>(base + at.part_samples);
  arrays.sample_places = reinterpret_cast<const int32_t*>(base + at.sample_places);
  arrays.expanded_blocks = reinterpret_cast<const cuda::ExpandedBlock*>(base + at.expanded_blocks);
  arrays.block_ids = reinterpret_cast<const BlockId*>(base + at.block_ids);
  arrays.positions = places_.data<int32_t>();
  arrays.slots = places_.data<int32_t>() + limits_.max_num_tokens;
  if (kind.has_tree) arrays.parent_rows = reinterpret_cast<const int32_t*>(base + at.parent_rows);
  const int num_parts = shape.is_split() ? kMaxStepParts : 1;
  for (int part = 0; part < num_parts && kind.sharing != Sharing::kNone; ++part) {
    const SharedLayout at_shared = shared_layout();
    const auto* const shared_base = device_shared_.data<uint8_t>() + part * at_shared.end;
    cuda::SharedAttentionWork& shared = arrays.shared[part];
    shared.uses_wgmma = kind.sharing == Sharing::kWgmma;
    shared.num_ctas = cuda::shared_ctas(cuda::attention_tiling(attention_), num_ctas(0, shape.is_split()), shared.uses_wgmma);
    shared.cta_start = reinterpret_cast<const int32_t*>(shared_base + at_shared.cta_start);
    shared.tokens = reinterpret_cast<const int32_t*>(shared_base + at_shared.tokens);
    shared.items = reinterpret_cast<const cuda::AttentionItem*>(shared_base + at_shared.items);
  }
  arrays.bias = device_tables_.data<const TokenBias>();
  arrays.penalty = reinterpret_cast<TokenPenalty*>(device_tables_.data<uint8_t>() + penalty_offset(limits_));
  arrays.masks = device_masks_.data<const uint32_t>();
  return arrays;
}

StepArrays StepStage::upload(const StepPlan& plan, const StepShape& shape, cudaStream_t stream) {
  const StepShape own = shape_of(plan);
  LLMB_CHECK(own.num_tokens <= shape.num_tokens && own.num_seqs <= shape.num_seqs &&
             own.num_samples <= shape.num_samples && plan.num_layer_groups == limits_.num_layer_groups);
  LLMB_CHECK(shape.num_tokens <= limits_.max_num_tokens && plan.num_entries() <= limits_.max_num_seqs &&
             shape.num_samples <= limits_.max_num_samples);
  LLMB_CHECK(limits_.hold_copies_of(plan));
  turn_ = (turn_ + 1) % host_.size();
  const Layout at = layout(shape);
  LLMB_CHECK(at.end(plan) <= host_[turn_].bytes());
  parts_ = split_samples(plan, limits_.max_num_biases, limits_.max_num_penalties);
  place_rows(plan);
  place_tables(plan);
  pack(plan, shape, at, host_[turn_].data<uint8_t>());
  check(cudaMemcpyAsync(device_.data(), host_[turn_].data(), at.end(plan), cudaMemcpyHostToDevice, stream),
        "cudaMemcpyAsync");
  const int num_parts = shape.is_split() ? kMaxStepParts : 1;
  StepKind kind = kind_of(shape);
  kind.is_mtp = plan.is_mtp;
  if (kind.sharing != Sharing::kNone) upload_shared(num_parts, stream);
  StepArrays result = arrays(shape, kind);
  result.copies = reinterpret_cast<const cuda::BlockPair*>(device_.data<uint8_t>() + at.copies(plan));
  result.num_copies = static_cast<int32_t>(plan.block_copies.size());
  result.num_swaps_out = static_cast<int32_t>(plan.swaps_out.size());
  result.num_swaps_in = static_cast<int32_t>(plan.swaps_in.size());
  if (shape.expanded.num_heads > 0) result.absorbed = absorbed_;
  if (shape.is_shared_out()) result.row_bounds = row_bounds_, result.sample_bounds = sampled_.bounds;
  upload_masks(plan, stream);
  if (parts_.size() == 1) upload_tables(staged(parts_[0]), stream);
  else result.parts = parts_;
  return result;
}

// All of a step's, whether or not its rows are sampled in parts.
void StepStage::upload_masks(const StepPlan& plan, cudaStream_t stream) {
  if (plan.masks.empty()) return;
  LLMB_CHECK(plan.mask_words == limits_.mask_words && plan.num_masks() <= limits_.max_num_samples);
  copy(plan.masks, host_masks_[turn_].data());
  check(cudaMemcpyAsync(device_masks_.data(), host_masks_[turn_].data(), bytes_of(plan.masks), cudaMemcpyHostToDevice,
                        stream),
        "cudaMemcpyAsync");
}

void StepStage::pack(const StepPlan& plan, const StepShape& shape, const Layout& at, uint8_t* out) {
  copy_padded(plan.tokens, TokenId{0}, shape.num_tokens, out + at.tokens);
  auto* const tokens = reinterpret_cast<TokenId*>(out + at.tokens);
  const int32_t max_groups = limits_.max_num_samples;
  for (TokenId& token : std::span(tokens, plan.tokens.size()))  // CudaOps has them behind groups' last tokens
    if (is_drafted(token)) token = unseen_token(2 * max_groups + drafted_slot(token));
    else if (is_before_unseen(token)) token = unseen_token(max_groups + group_before_unseen(token));
  copy_padded(rows_, cuda::StepRow(), shape.num_tokens, out + at.rows);
  copy(plan.entries, out + at.entries);
  if (limits_.has_states) pack_states(plan, shape, out + at.states);
  copy(table_start_.first(plan.entries.size()), out + at.block_start);
  pack_samples(plan, shape, at, out);
  pack_attention(plan, shape, at, out);
  if (shape.num_kept > 0) pack_kept(plan, shape, at, out);
  if (shape.is_shared_out()) copy(sampled_.rows, out + at.part_samples), copy(sampled_.places, out + at.sample_places);
  copy(block_ids_, out + at.block_ids);
  copy(plan.parent_rows, out + at.parent_rows);
  auto* copies = reinterpret_cast<cuda::BlockPair*>(out + at.copies(plan));
  for (const auto* list : {&plan.block_copies, &plan.swaps_out, &plan.swaps_in})
    for (const BlockCopy& copy : *list) *copies++ = {copy.from, copy.to};
}

void StepStage::pack_samples(const StepPlan& plan, const StepShape& shape, const Layout& at, uint8_t* out) const {
  SampleRow padding;
  padding.token_row = -1;
  copy_padded(plan.sample_rows, padding, shape.num_samples, out + at.samples);
  copy_padded(plan.groups, SampleGroup(), shape.num_samples, out + at.groups);
  auto* const samples = reinterpret_cast<SampleRow*>(out + at.samples);
  for (const SamplePart& part : parts_) {
    const auto first_bias = static_cast<int32_t>(part.bias.data() - plan.bias.data());
    const auto first_penalty = static_cast<int32_t>(part.penalty.data() - plan.penalty.data());
    for (int32_t i = part.begin; i < part.end; ++i) {
      samples[i].bias_begin -= first_bias, samples[i].bias_end -= first_bias;
      samples[i].penalty_begin -= first_penalty, samples[i].penalty_end -= first_penalty;
    }
  }
  auto* const rows = reinterpret_cast<int32_t*>(out + at.sample_rows);
  for (int32_t i = 0; i < shape.num_samples; ++i) rows[i] = samples[i].token_row;
  if (plan.hidden_rows.empty()) return;
  for (int32_t i = 0; i < plan.num_samples(); ++i) rows[i] = plan.hidden_rows[plan.sample_rows[i].token_row];
}

void StepStage::pack_states(const StepPlan& plan, const StepShape& shape, uint8_t* out) {
  count_drafts(plan, &num_drafts_);
  auto* const states = reinterpret_cast<cuda::StateRows*>(out);
  std::fill_n(states, shape.num_seqs, cuda::StateRows());
  for (int32_t e = 0; e < plan.num_entries(); ++e)
    states[e] = {plan.query_start[e], plan.num_rows(e), num_drafts_[e], plan.entries[e].state_slot};
}

void StepStage::pack_attention(const StepPlan& plan, const StepShape& shape, const Layout& at, uint8_t* out) {
  const StepSplit& second = shape.second;
  if (shape.is_shared_out()) add_own_sequences(plan, shape.own);
  else add_sequences(plan, second);
  if (shape.expanded.num_heads > 0) {
    const size_t kind = kinds_.size() - 1;
    pack_expanded(plan, shape, reinterpret_cast<cuda::ExpandedBlock*>(out + at.expanded_blocks));
    copy(schedules_[0][kind].cta_start, out + at.cta_start[0][kind]);
    copy(schedules_[0][kind].items, out + at.items[0][kind]);
  }
  const auto num_seqs = static_cast<int32_t>(context_len_.size());
  for (int part = 0; part < (shape.is_split() ? kMaxStepParts : 1); ++part) {
    const int32_t begin = part == 0 ? 0 : second_seq_, end = part == 0 && shape.is_split() ? second_seq_ : num_seqs;
    Entries entries{part == 0 ? 0 : second.entry, shape.is_shared_out() ? 0 : plan.num_entries()};
    if (part == 0 && shape.is_split()) entries.end = second.entry + (second.row > plan.query_start[second.entry] ? 1 : 0);
    cuda::AttentionBatch batch{end - begin, query_start_.data() + begin, context_len_.data() + begin,
                               block_start_.data() + begin};
    if (may_share() && schedule_shared(plan, batch, part, entries, num_ctas(0, shape.is_split())))
      batch.shared = shared_schedules_[part].states.data();
    if (shape.expanded.num_heads > 0) batch.is_left_out = expanded_seqs_.data();
    for (size_t i = 0; i < kinds_.size(); ++i) {
      if (is_expanded(i)) continue;
      cuda::AttentionSchedule& schedule = schedules_[part][i];
      cuda::schedule_attention(batch, kinds_[i].shape, num_ctas(i, shape.is_split()), &schedule);
      if (plan.is_mtp)  // which has no key of a sequence's first token
        for (cuda::AttentionItem& item : schedule.items) item.kv_begin = std::max(item.kv_begin, 1);
      copy(schedule.cta_start, out + at.cta_start[part][i]);
      copy(schedule.items, out + at.items[part][i]);
    }
  }
}

// A part without a list of its own has one without items.
void StepStage::upload_shared(int num_parts, cudaStream_t stream) {
  const SharedLayout at = shared_layout();
  for (int part = 0; part < num_parts; ++part) {
    const cuda::SharedAttentionSchedule& schedule = shared_schedules_[part];
    uint8_t* const out = host_shared_[turn_].data<uint8_t>() + part * at.end;
    if (schedule.items.empty()) std::memset(out + at.cta_start, 0, at.tokens - at.cta_start);
    else copy(schedule.cta_start, out + at.cta_start);
    copy(schedule.tokens, out + at.tokens);
    copy(schedule.items, out + at.items);
    check(cudaMemcpyAsync(device_shared_.data<uint8_t>() + part * at.end, out, at.items + bytes_of(schedule.items),
                          cudaMemcpyHostToDevice, stream),
          "cudaMemcpyAsync");
  }
}

SamplePart StepStage::staged(const SamplePart& part) {
  auto* const bias = host_tables_[turn_].data<TokenBias>();
  auto* const penalty = reinterpret_cast<TokenPenalty*>(host_tables_[turn_].data<uint8_t>() + penalty_offset(limits_));
  copy(part.bias, bias);
  copy(part.penalty, penalty);
  return {part.begin, part.end, {bias, part.bias.size()}, {penalty, part.penalty.size()}};
}

void StepStage::upload_tables(const SamplePart& part, cudaStream_t stream) {
  auto* const device = device_tables_.data<uint8_t>();
  const auto send = [&](const auto& values, int64_t at) {
    if (values.empty()) return;
    check(cudaMemcpyAsync(device + at, values.data(), values.size_bytes(), cudaMemcpyHostToDevice, stream),
          "cudaMemcpyAsync");
  };
  send(part.bias, 0);
  send(part.penalty, penalty_offset(limits_));
}

}  // namespace llmb
