#include "backend/cuda/slice_states.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "core/rank_part.h"

namespace llmb {

using cuda::check;

namespace {

int64_t padded(int64_t bytes) { return ceil_div(bytes, int64_t{256}) * 256; }

// The number of a sequence's first positions that lie in the slices of a rank.
int32_t num_own_positions(int32_t num_positions, int32_t rank, int32_t num_ranks) {
  const int32_t block = num_ranks * kSliceTokens, in_last = num_positions % block - rank * kSliceTokens;
  return num_positions / block * kSliceTokens + std::clamp(in_last, 0, kSliceTokens);
}

// Whether a row of this kind of attention sees all positions up to its own.
bool takes(const cuda::AttentionShape& shape) { return shape.chunk == 0 && shape.joined_value_dim == 0; }

// Puts what `values` hold behind `end` and moves that on; where it is.
template <typename Values>
int64_t put(const Values& values, uint8_t* host, int64_t* end) {
  const int64_t at = *end, bytes = static_cast<int64_t>(values.size() * sizeof(values[0]));
  if (bytes > 0) std::memcpy(host + at, values.data(), static_cast<size_t>(bytes));
  *end = at + padded(bytes);
  return at;
}

}  // namespace

SliceStates::SliceStates(DeviceCollectives& ranks, std::vector<AttentionKind> kinds, const Limits& limits,
                         cudaStream_t stream)
    : ranks_(ranks), kinds_(std::move(kinds)), limits_(limits), stream_(stream), lists_(kinds_.size()) {
  int64_t bytes = padded(limits.max_step_blocks * limits.num_layer_groups * int64_t{sizeof(BlockId)});
  int64_t rows = 0, values = 0, splits = 0, states = 0;
  for (const AttentionKind& kind : kinds_) {
    if (!takes(kind.shape)) continue;
    const auto of = cuda::attention_limits(kind.shape, kind.num_ctas, limits.max_num_seqs, limits.max_num_seqs);
    const int64_t heads = int64_t{limits.max_num_seqs} * kind.shape.num_heads;
    bytes += list_bytes(kind);
    rows = std::max(rows, of.max_partial_rows + heads);
    values = std::max(values, (of.max_partial_rows + heads) * kind.shape.value_dim());
    splits = std::max(splits, of.max_splits + of.max_items);
    states = std::max(states, heads * (kind.shape.value_dim() + 2));
  }
  constexpr int64_t kNumber = sizeof(float);
  memory_ = cuda::DeviceMemory(bytes);
  for (int32_t i = 0; i < limits.max_plans_in_flight; ++i) host_.emplace_back(bytes);
  partials_ = cuda::DeviceMemory(values * kNumber);
  stats_ = cuda::DeviceMemory(2 * rows * kNumber);
  counters_ = cuda::DeviceMemory(splits * kNumber);
  states_ = cuda::DeviceMemory(ranks.size() * states * kNumber);
}

int64_t SliceStates::list_bytes(const AttentionKind& kind) const {
  const auto of = cuda::attention_limits(kind.shape, kind.num_ctas, limits_.max_num_seqs, limits_.max_num_seqs);
  const int64_t heads = int64_t{limits_.max_num_seqs} * kind.shape.num_heads;
  return padded(of.max_items * int64_t{sizeof(cuda::AttentionItem)}) +
         padded((kind.num_ctas + 1) * int64_t{sizeof(int32_t)}) + padded(heads * int64_t{sizeof(cuda::RowPieces)});
}

// A row behind a token in flight lies one position behind its base where that is the only one.
bool SliceStates::begin_step(const StepPlan& plan) {
  const auto is_known = [](const StepEntry& entry) { return entry.max_ahead <= 1; };
  const bool is_taken = plan.num_tokens() == plan.num_entries() && plan.parent_rows.empty() &&
                        plan.num_entries() <= limits_.max_num_seqs &&
                        std::all_of(plan.entries.begin(), plan.entries.end(), is_known);
  if (!is_taken) return false;
  num_rows_ = plan.num_tokens();
  place_tables(plan);
  turn_ = (turn_ + 1) % host_.size();
  uint8_t* const host = host_[turn_].data<uint8_t>();
  int64_t end = 0;
  ids_ = put(joined_ids_, host, &end);
  for (size_t kind = 0; kind < kinds_.size(); ++kind)
    if (takes(kinds_[kind].shape)) make_list(kind, host, &end);
  LLMB_CHECK(end <= memory_.bytes());
  check(cudaMemcpyAsync(memory_.data(), host, static_cast<size_t>(end), cudaMemcpyHostToDevice, stream_),
        "cudaMemcpyAsync");
  check(cudaMemsetAsync(counters_.data(), 0, static_cast<size_t>(counters_.bytes()), stream_), "cudaMemsetAsync");
  return true;
}

// A rank's slices of a sequence are its blocks in order, so tables are the plan's.
void SliceStates::place_tables(const StepPlan& plan) {
  const int32_t num_groups = plan.num_layer_groups;
  joined_ids_.clear();
  query_start_.assign(1, 0);
  context_len_.clear();
  block_start_.clear();
  sees_nothing_.clear();
  for (int32_t e = 0; e < plan.num_entries(); ++e) {
    const int32_t num_positions = plan.max_context_len(e);
    query_start_.push_back(e + 1);
    context_len_.push_back(num_own_positions(num_positions, ranks_.rank(), ranks_.size()));
    sees_nothing_.push_back(context_len_.back() == 0);
    block_start_.push_back(static_cast<int32_t>(joined_ids_.size()) / num_groups);
    for (int64_t i = 0; i < ceil_div(num_positions, plan.block_size); ++i)
      for (int32_t g = 0; g < num_groups; ++g)
        joined_ids_.push_back(plan.block_ids[static_cast<size_t>(plan.block_start[e * num_groups + g] + i)]);
  }
}

// Every unit is in pieces, and waits for more than there are: so nobody makes a result of them.
void SliceStates::make_list(size_t kind, uint8_t* host, int64_t* end) {
  const cuda::AttentionShape& shape = kinds_[kind].shape;
  cuda::AttentionBatch batch{num_rows_, query_start_.data(), context_len_.data(), block_start_.data()};
  batch.is_left_out = sees_nothing_.data();
  cuda::schedule_attention(batch, shape, kinds_[kind].num_ctas, &schedule_);
  rows_.assign(static_cast<size_t>(num_rows_) * shape.num_heads, {});
  List& list = lists_[kind];
  list.has_wgmma = false;
  for (const auto& unit : schedule_.units) list.has_wgmma |= unit.wgmma;
  for (cuda::AttentionItem& item : schedule_.items) {
    if (item.partial < 0) {
      item.partial = item.first_partial = schedule_.num_partial_rows;
      item.num_pieces = 1;
      item.split = schedule_.num_splits++;
      schedule_.num_partial_rows += item.num_rows;
    }
    for (int32_t r = 0; r < item.num_rows; ++r) {
      const int32_t head = item.kv_head * shape.group() + item.row_begin + r;
      rows_[static_cast<size_t>(item.query_start) * shape.num_heads + head] = {item.first_partial + r, item.num_pieces,
                                                                               item.num_rows};
    }
    item.num_pieces = INT32_MAX;
  }
  LLMB_CHECK(int64_t{schedule_.num_partial_rows} * 2 * int64_t{sizeof(float)} <= stats_.bytes() &&
             int64_t{schedule_.num_splits} * int64_t{sizeof(int32_t)} <= counters_.bytes());
  list.items = put(schedule_.items, host, end);
  list.cta_start = put(schedule_.cta_start, host, end);
  list.rows = put(rows_, host, end);
}

cuda::AttentionWork SliceStates::work(size_t kind, int32_t num_blocks) const {
  const auto* const base = memory_.data<const uint8_t>();
  const List& list = lists_[kind];
  cuda::AttentionWork work{};
  work.num_ctas = kinds_[kind].num_ctas;
  work.items = reinterpret_cast<const cuda::AttentionItem*>(base + list.items);
  work.cta_start = reinterpret_cast<const int32_t*>(base + list.cta_start);
  work.partials = partials_.data<float>(), work.partial_stats = stats_.data<float>();
  work.counters = counters_.data<int32_t>();
  work.has_wgmma_items = list.has_wgmma;
  work.num_blocks = num_blocks;
  work.num_tables = limits_.num_layer_groups;
  return work;
}

const BlockId* SliceStates::block_ids(int32_t group) const {
  return reinterpret_cast<const BlockId*>(memory_.data<const uint8_t>() + ids_) + group;
}

template <class T>
void SliceStates::merge(size_t kind, const float* sinks, T* out) {
  const cuda::AttentionShape& shape = kinds_[kind].shape;
  const int64_t rows = int64_t{num_rows_} * shape.num_heads, size = rows * (shape.value_dim() + 2);
  const auto* const pieces =
      reinterpret_cast<const cuda::RowPieces*>(memory_.data<const uint8_t>() + lists_[kind].rows);
  float *const all = states_.data<float>(), *const own = all + ranks_.rank() * size;
  cuda::join_pieces(pieces, partials_.data<const float>(), stats_.data<const float>(), rows, shape.value_dim(), own,
                    stream_);
  ranks_.all_gather(own, size * int64_t{sizeof(float)}, all, stream_);
  cuda::merge_states(all, ranks_.size(), rows, shape.num_heads, shape.value_dim(), sinks, out, stream_);
}

template void SliceStates::merge(size_t, const float*, float*);
template void SliceStates::merge(size_t, const float*, __nv_bfloat16*);
template void SliceStates::merge(size_t, const float*, __half*);

}  // namespace llmb
