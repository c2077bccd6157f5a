// Bound by the latency of a launch. A thread is an entry.
#include "kernels/cuda/state_entries.h"

#include "core/types.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/ptx.h"

namespace llmb::cuda {

namespace {

constexpr int kThreads = 128;

__global__ void __launch_bounds__(kThreads)
    resolve_states_kernel(const StateRows* __restrict__ rows, int32_t count, const int32_t* __restrict__ positions,
                          float* pool, int64_t slot_floats, StateEntry* entries) {
  ptx::follow_previous_grid();
  const auto i = static_cast<int32_t>(blockIdx.x * kThreads + threadIdx.x);
  if (i >= count) return;
  const StateRows own = rows[i];
  StateEntry entry;
  if (own.num_rows > 0) {
    entry.slot = pool + own.slot * slot_floats;
    entry.first_row = own.first_row;
    entry.num_rows = own.num_rows;
    entry.first_position = positions[own.first_row];
    auto* const border = reinterpret_cast<int32_t*>(entry.slot);
    entry.border = entry.first_position == 0 ? 0 : *border;
    entry.next_border = state_border(entry.first_position + own.num_rows, own.num_drafts);
    *border = entry.next_border;
  }
  entries[i] = entry;
}

}  // namespace

void resolve_states(const StateRows* rows, int32_t count, const int32_t* positions, float* pool, int64_t slot_floats,
                    StateEntry* entries, cudaStream_t stream) {
  if (count == 0) return;
  launch_ahead({dim3(static_cast<unsigned>(ceil_div(count, kThreads))), dim3(kThreads), 0, stream},
               resolve_states_kernel, rows, count, positions, pool, slot_floats, entries);
}

}  // namespace llmb::cuda
