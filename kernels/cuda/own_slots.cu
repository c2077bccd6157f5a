// own_slots: a thread is a row of a layer group. Bound by the latency of a launch.
#include "kernels/cuda/own_slots.h"

#include "core/types.h"
#include "kernels/cuda/device.h"

namespace llmb::cuda {

namespace {

constexpr int kThreads = 128;

__global__ void __launch_bounds__(kThreads)
    own_slots_kernel(const int32_t* slots, int32_t num_tokens, const SliceGroup* groups, const BlockPair* blocks,
                     int32_t rank, int32_t slice_tokens, int32_t* own) {
  const auto row = static_cast<int32_t>(blockIdx.x * kThreads + threadIdx.x);
  if (row >= num_tokens) return;
  const SliceGroup group = groups[blockIdx.y];
  const int64_t at = int64_t{blockIdx.y} * num_tokens + row;
  const int32_t slot = slots[at], place = slot / slice_tokens - rank * group.count;
  const bool is_own = slot >= 0 && place >= 0 && place < group.count;
  own[at] = is_own ? blocks[group.first + place].from * slice_tokens + slot % slice_tokens : -1;
}

}  // namespace

void own_slots(const int32_t* slots, int32_t num_tokens, const SliceGroup* groups, int32_t num_groups,
               const BlockPair* blocks, int32_t rank, int32_t slice_tokens, int32_t* own, cudaStream_t stream) {
  if (num_tokens == 0 || num_groups == 0) return;
  const dim3 grid(static_cast<unsigned>(ceil_div(num_tokens, kThreads)), static_cast<unsigned>(num_groups));
  launch({grid, dim3(kThreads), 0, stream}, own_slots_kernel, slots, num_tokens, groups, blocks, rank, slice_tokens,
         own);
}

}  // namespace llmb::cuda
