// resolve_step: a thread is a row, then an attention item, then a sample row; none waits for another. give_tokens and
// count_unseen_tokens: a warp is a group, or a row. Bound by the latency of a launch.
#include "kernels/cuda/resolve_step.h"

#include <algorithm>

#include "kernels/cuda/device.h"
#include "kernels/cuda/ptx.h"
#include "kernels/cuda/warp.h"

namespace llmb::cuda {

namespace {

constexpr int kThreads = 128;
constexpr int64_t kMinBlocks = 4, kMaxBlocks = 128;  // some hundred items, also where there are few rows

// Tokens between the entry's base and its first row.
__device__ int32_t tokens_ahead(const StepEntry& entry, const GivenOnDevice& before) {
  return entry.follows == kNoGroup ? 0 : max(1, before.counts[entry.follows]);
}

__device__ void resolve_row(const UnresolvedStep& step, const GivenOnDevice& before, int32_t i) {
  const StepRow row = step.rows[i];
  const bool is_padding = row.entry < 0;
  const TokenId token = step.tokens[i];
  if (token < 0) step.tokens[i] = before.last[-1 - token];
  const int32_t first = is_padding ? 0 : step.entries[row.entry].base + tokens_ahead(step.entries[row.entry], before);
  step.positions[i] = first + row.depth;
  const int32_t at = first + row.index;
  for (int32_t g = 0; g < step.num_layer_groups; ++g) {
    int32_t slot = -1;
    if (!is_padding) {
      const int32_t block = step.block_start[row.entry] + at / step.block_size;
      slot = step.block_ids[block * step.num_layer_groups + g] * step.block_size + at % step.block_size;
    }
    step.slots[int64_t{g} * step.num_tokens + i] = slot;
  }
}

__device__ void clip_item(const UnresolvedStep& step, const GivenOnDevice& before, const WorkList& list, int32_t i) {
  AttentionItem* const item = list.items + i;
  const StepEntry& entry = step.entries[step.rows[item->query_start].entry];
  const int32_t missing = entry.max_ahead - tokens_ahead(entry, before);
  if (missing == 0) return;
  item->first_position -= missing;
  const int32_t last_token = (item->row_begin + item->num_rows - 1) / list.attention_group;
  item->kv_end = max(item->kv_begin, min(item->kv_end, item->first_position + last_token + 1));
}

__device__ void place_sample(const UnresolvedStep& step, const GivenOnDevice& before, int32_t i) {
  const int32_t token_row = step.samples[i].token_row;
  if (token_row < 0) return;
  const StepRow row = step.rows[token_row];
  const StepEntry& entry = step.entries[row.entry];
  step.samples[i].position = static_cast<uint32_t>(entry.base + tokens_ahead(entry, before) + row.depth + 1);
}

__global__ void __launch_bounds__(kThreads) resolve_step_kernel(UnresolvedStep step, GivenOnDevice before) {
  ptx::follow_previous_grid();
  const auto first = static_cast<int32_t>(blockIdx.x * kThreads + threadIdx.x);
  const auto stride = static_cast<int32_t>(gridDim.x * kThreads);
  for (int32_t i = first; i < step.num_tokens; i += stride) resolve_row(step, before, i);
  for (const WorkList& list : step.lists) {
    const int32_t num_items = list.num_items != nullptr ? *list.num_items : 0;
    for (int32_t i = first; i < num_items; i += stride) clip_item(step, before, list, i);
  }
  for (int32_t i = first; i < step.num_samples; i += stride) place_sample(step, before, i);
}

__global__ void __launch_bounds__(kThreads)
    count_unseen_tokens_kernel(SampleRow* rows, int32_t num_rows, TokenPenalty* penalty, const TokenId* last_given) {
  const int32_t row = static_cast<int32_t>(blockIdx.x * (kThreads / kWarp) + threadIdx.x / kWarp);
  if (row >= num_rows) return;
  const int lane = threadIdx.x % kWarp;
  const int32_t begin = rows[row].penalty_begin, last = rows[row].penalty_end - 1;
  if (last < begin || penalty[last].token >= 0) return;
  const TokenId token = last_given[-1 - penalty[last].token];
  bool is_mine = false;
  for (int32_t i = begin + lane; i < last; i += kWarp) {
    if (penalty[i].token != token) continue;
    ++penalty[i].output_count;
    is_mine = true;
  }
  const bool found = __any_sync(kAllLanes, is_mine);
  if (lane != 0) return;
  if (found) rows[row].penalty_end = last;
  else penalty[last].token = token;
}

// The first row of the group behind `row` that is its child and holds `token`; -1: none. One warp asks.
__device__ int32_t child_with(const GroupsToGive& step, int32_t row, int32_t end, TokenId token) {
  if (step.parent_rows == nullptr) return row + 1 < end && step.tokens[row + 1] == token ? row + 1 : -1;
  for (int32_t first = row + 1; first < end; first += kWarp) {
    const int32_t child = first + static_cast<int32_t>(threadIdx.x % kWarp);
    const bool is_it = child < end && step.parent_rows[child] == row && step.tokens[child] == token;
    const unsigned found = __ballot_sync(kAllLanes, is_it);
    if (found != 0) return first + __ffs(static_cast<int>(found)) - 1;
  }
  return -1;
}

struct Given {
  int32_t count = 0;
  TokenId last = 0, before_last = 0;
};

__device__ Given give_best(const GroupsToGive& step, int32_t i) {
  if (!step.is_finite[i]) return {};
  const int32_t count = min(step.samples[i].num_logprobs, step.vocab);
  return {count, step.top_tokens[int64_t{i} * step.max_top + count - 1]};
}

__device__ Given give_drawn(const GroupsToGive& step, const SampleGroup& group) {
  const int32_t first = step.samples[group.row_begin].token_row, end = first + group.row_end - group.row_begin;
  Given given;
  for (int32_t row = first; row >= 0;) {
    const int32_t i = group.row_begin + (row - first);
    if (!step.is_finite[i]) break;
    given = {given.count + 1, step.sampled[i], step.tokens[row]};
    row = child_with(step, row, end, given.last);
  }
  return given;
}

// The tokens between the base of the group's entry, which drafts, and its first row; 1 where there are none.
__device__ int32_t passed_on(const GroupsToGive& step, const SampleGroup& group) {
  const int32_t row = step.samples[group.row_begin].token_row;
  const StepRow place = step.rows[row];
  return max(1, step.positions[row] - place.depth - step.entries[place.entry].base);
}

__global__ void __launch_bounds__(kThreads) give_tokens_kernel(GroupsToGive step, GivenOnDevice given) {
  ptx::follow_previous_grid();
  const int32_t g = static_cast<int32_t>(blockIdx.x * (kThreads / kWarp) + threadIdx.x / kWarp);
  if (g >= step.num_groups) return;
  const SampleGroup& group = step.groups[g];
  Given own;
  if (group.row_begin < group.row_end) {
    own = group.mode == SampleMode::kBest ? give_best(step, group.row_begin) : give_drawn(step, group);
    if (step.entries != nullptr) own.count = passed_on(step, group);
  }
  if (threadIdx.x % kWarp != 0) return;
  given.counts[g] = own.count;
  given.last[g] = own.last;
  given.before_last[g] = own.before_last;
}

LaunchShape warps(int32_t count, cudaStream_t stream) {
  return {dim3(static_cast<unsigned>(ceil_div(count, kThreads / kWarp))), dim3(kThreads), 0, stream};
}

}  // namespace

void resolve_step(const UnresolvedStep& step, const GivenOnDevice& before, cudaStream_t stream) {
  const int64_t blocks =
      std::clamp(ceil_div(std::max(step.num_tokens, step.num_samples), kThreads), kMinBlocks, kMaxBlocks);
  launch_ahead({dim3(static_cast<unsigned>(blocks)), dim3(kThreads), 0, stream}, resolve_step_kernel, step, before);
}

void count_unseen_tokens(SampleRow* rows, int32_t num_rows, TokenPenalty* penalty, const TokenId* last_given,
                         cudaStream_t stream) {
  if (num_rows == 0) return;
  launch(warps(num_rows, stream), count_unseen_tokens_kernel, rows, num_rows, penalty, last_given);
}

void give_tokens(const GroupsToGive& step, const GivenOnDevice& given, cudaStream_t stream) {
  if (step.num_groups == 0) return;
  launch_ahead(warps(step.num_groups, stream), give_tokens_kernel, step, given);
}

}  // namespace llmb::cuda
