#include "backend/cuda/gathered_slices.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "core/layer_groups.h"

namespace llmb {

using cuda::check;

GatheredSlices::GatheredSlices(DeviceCollectives& ranks, Limits limits, cudaStream_t stream)
    : ranks_(ranks), limits_(std::move(limits)), stream_(stream) {
  const auto num_groups = static_cast<int64_t>(limits_.windows.size());
  const int64_t bytes = num_groups * int64_t{sizeof(cuda::SliceGroup)} +
                        num_groups * limits_.max_step_blocks * int64_t{sizeof(cuda::BlockPair)};
  tables_ = cuda::DeviceMemory(bytes);
  for (int32_t i = 0; i < limits_.max_plans_in_flight; ++i) host_.emplace_back(bytes);
  own_slots_ = cuda::DeviceMemory(num_groups * limits_.max_num_tokens * int64_t{sizeof(int32_t)});
  groups_.resize(limits_.windows.size());
  num_stored_.resize(limits_.windows.size());
}

void GatheredSlices::set_pool(int64_t num_blocks) {
  memory_ = cuda::DeviceMemory();
  memory_ = cuda::DeviceMemory(std::min(num_blocks, limits_.max_step_blocks) * block_bytes());
  num_blocks_ = num_blocks;
  place_of_.assign(static_cast<size_t>(num_blocks), -1);
}

template <typename Body>
void GatheredSlices::for_seen_blocks(const StepPlan& plan, int32_t group, const Body& body) const {
  for (int32_t e = 0; e < plan.num_entries(); ++e) {
    const int32_t start = plan.block_start[e * plan.num_layer_groups + group];
    const int32_t least = plan.entries[e].base + (plan.entries[e].follows == kNoGroup ? 0 : 1);
    const int32_t first = first_seen(limits_.windows[static_cast<size_t>(group)], least);
    const auto end = static_cast<int32_t>(ceil_div(plan.max_context_len(e), plan.block_size));
    for (int32_t i = first / plan.block_size; i < end; ++i) body(e, i, plan.block_ids[start + i]);
  }
}

// Those with positions of before the step first, so that what a rank gives begins with them.
void GatheredSlices::find_blocks(const StepPlan& plan, int32_t group) {
  named_.clear();
  for_seen_blocks(plan, group, [&](int32_t e, int32_t i, BlockId block) {
    int32_t& place = place_of_[block];
    if (place < 0) {
      place = static_cast<int32_t>(named_.size());
      named_.push_back({block});
    }
    named_[place].has_stored |= plan.entries[e].max_base() > i * plan.block_size;
  });
  const auto end_of_stored = std::stable_partition(named_.begin(), named_.end(), [](const NamedBlock& named) {
    return named.has_stored;
  });
  const auto g = static_cast<size_t>(group);
  num_stored_[g] = static_cast<int32_t>(end_of_stored - named_.begin());
  groups_[g] = {static_cast<int32_t>(pairs_.size()), static_cast<int32_t>(named_.size())};
  LLMB_CHECK(groups_[g].count <= std::min(num_blocks_, limits_.max_step_blocks));
  for (int32_t place = 0; place < groups_[g].count; ++place) {
    pairs_.push_back({named_[place].block, place});
    place_of_[named_[place].block] = place;
  }
}

// Slices before every window have no place of their own, and nobody reads them.
void GatheredSlices::name_slices(const StepPlan& plan, int32_t group) {
  const int32_t size = ranks_.size(), count = groups_[static_cast<size_t>(group)].count;
  for_seen_blocks(plan, group, [&](int32_t e, int32_t i, BlockId block) {
    const int64_t at = plan.block_start[e * plan.num_layer_groups + group] + i;
    for (int32_t rank = 0; rank < size; ++rank)
      sliced_.block_ids[static_cast<size_t>(at * size + rank)] = rank * count + place_of_[block];
  });
  for (const NamedBlock& named : named_) place_of_[named.block] = -1;
}

const StepPlan& GatheredSlices::begin_step(const StepPlan& plan) {
  const int32_t size = ranks_.size();
  LLMB_CHECK(plan.block_size == size * kSliceTokens && plan.hidden_rows.empty() &&
             plan.num_layer_groups == static_cast<int32_t>(limits_.windows.size()));
  sliced_ = plan;
  sliced_.block_size = kSliceTokens;
  for (int32_t& start : sliced_.block_start) start *= size;
  sliced_.block_ids.assign(plan.block_ids.size() * static_cast<size_t>(size), 0);
  for (SharedPrefix& prefix : sliced_.shared_prefixes) prefix.num_blocks *= size;
  pairs_.clear();
  for (int32_t group = 0; group < plan.num_layer_groups; ++group) {
    find_blocks(plan, group);
    name_slices(plan, group);
  }
  upload();
  return sliced_;
}

void GatheredSlices::upload() {
  turn_ = (turn_ + 1) % host_.size();
  uint8_t* const host = host_[turn_].data<uint8_t>();
  const size_t group_bytes = groups_.size() * sizeof(cuda::SliceGroup);
  const size_t pair_bytes = pairs_.size() * sizeof(cuda::BlockPair);
  std::memcpy(host, groups_.data(), group_bytes);
  std::memcpy(host + group_bytes, pairs_.data(), pair_bytes);
  check(cudaMemcpyAsync(tables_.data(), host, group_bytes + pair_bytes, cudaMemcpyHostToDevice, stream_),
        "cudaMemcpyAsync");
}

void GatheredSlices::place_rows(const int32_t* slots, int32_t num_tokens) {
  LLMB_CHECK(num_tokens <= limits_.max_num_tokens);
  num_tokens_ = num_tokens;
  cuda::own_slots(slots, num_tokens, group_on_device(0), static_cast<int32_t>(groups_.size()), blocks_on_device(),
                  ranks_.rank(), kSliceTokens, own_slots_.data<int32_t>(), stream_);
}

void GatheredSlices::gather(int32_t group, std::span<const Arrays> arrays, bool has_new_rows) {
  const cuda::SliceGroup& of = groups_[static_cast<size_t>(group)];
  const int32_t count = has_new_rows ? of.count : num_stored_[static_cast<size_t>(group)];
  if (count == 0) return;
  const cuda::BlockPair* const pairs = blocks_on_device() + of.first;
  std::vector<DeviceCollectives::FirstBytes> parts;
  uint8_t* to = memory();
  for (const Arrays& a : arrays) {
    const int64_t of_rank = of.count * a.slice_bytes, of_all = ranks_.size() * of_rank;
    cuda::block_copy({a.pool, a.array_stride, a.block_stride},
                     {to + ranks_.rank() * of_rank, of_all, a.slice_bytes}, static_cast<int32_t>(a.num_arrays),
                     a.slice_bytes, pairs, count, stream_);
    for (int64_t i = 0; i < a.num_arrays; ++i, to += of_all) parts.push_back({to, of_rank, count * a.slice_bytes});
  }
  LLMB_CHECK(to <= memory() + memory_.bytes());
  ranks_.gather_first_bytes(parts, stream_);
}

}  // namespace llmb
