// Slots of an expert stand in the order of rows, and rows of a sequence beside each other, so neighbours mostly have the
// same matrices: runs of these, cut at multiples of kLoraItemRows, are the items. Where a run ends early, its item's
// other places stay empty.
#include "kernels/cuda/expert_lora.h"

#include <algorithm>

#include "core/types.h"
#include "kernels/cuda/device.h"

namespace llmb::cuda {

namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    find_products_kernel(const ExpertLoraTables* __restrict__ of_row, int32_t layer, ExpertSlots slots,
                         const LoraProduct** __restrict__ of_slot) {
  const auto pair = static_cast<int32_t>(blockIdx.x * kThreads + threadIdx.x);
  if (pair >= slots.num_pairs) return;
  const int32_t slot = slots.slot_of_pair[pair];
  const ExpertLoraTables tables = of_row[pair / slots.top_k];
  if (slot < 0 || tables == nullptr) return;
  const LoraProduct* const of_layer = tables[layer];
  if (of_layer != nullptr) of_slot[slot] = of_layer + 2 * slots.chosen[pair];
}

// max_slots: of a turn, from whose first slot an item's rows are counted.
__global__ void __launch_bounds__(kThreads)
    cut_items_kernel(const LoraProduct* const* __restrict__ of_slot, int32_t num_slots, int32_t max_slots,
                     LoraItem* __restrict__ items) {
  const auto slot = static_cast<int32_t>(blockIdx.x * kThreads + threadIdx.x);
  if (slot >= num_slots) return;
  const LoraProduct* const own = of_slot[slot];
  LoraItem item;
  if (own != nullptr && (slot % kLoraItemRows == 0 || of_slot[slot - 1] != own)) {
    const int32_t last = min(num_slots, (slot / kLoraItemRows + 1) * kLoraItemRows);
    int32_t end = slot + 1;
    while (end < last && of_slot[end] == own) ++end;
    item = {own, slot % max_slots, slot % max_slots + end - slot};
  }
  items[slot] = item;
}

}  // namespace

void cut_expert_items(const ExpertAdapters& adapters, const ExpertSlots& slots, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(ceil_div(slots.num_pairs, kThreads));
  const size_t bytes = static_cast<size_t>(slots.num_pairs) * sizeof(const LoraProduct*);
  check(cudaMemsetAsync(adapters.of_slot, 0, bytes, stream), "cudaMemsetAsync");
  launch({dim3(blocks), dim3(kThreads), 0, stream}, find_products_kernel, adapters.of_row, adapters.layer, slots,
         adapters.of_slot);
  launch({dim3(blocks), dim3(kThreads), 0, stream}, cut_items_kernel, adapters.of_slot, slots.num_pairs,
         adapters.max_slots, adapters.items);
}

template <class T>
void add_expert_lora(const ExpertAdapters& adapters, const ExpertSlots& slots, bool is_down, const T* x,
                     const int32_t* x_rows, int64_t in_features, T* out, int64_t out_features, cudaStream_t stream) {
  for (int32_t first = 0; first < slots.num_pairs; first += adapters.max_slots) {
    LoraRows rows;
    rows.items = adapters.items + first;
    rows.num_items = std::min(adapters.max_slots, slots.num_pairs - first);
    rows.x_row_ids = x_rows != nullptr ? x_rows + first : nullptr;
    rows.has_new_items = true;
    const T* const from = x_rows != nullptr ? x : x + first * in_features;
    lora(rows, is_down ? 1 : 0, adapters.can_pack, from, in_features, out + first * out_features, out_features,
         adapters.t, stream);
  }
}

template void add_expert_lora(const ExpertAdapters&, const ExpertSlots&, bool, const float*, const int32_t*, int64_t,
                              float*, int64_t, cudaStream_t);
template void add_expert_lora(const ExpertAdapters&, const ExpertSlots&, bool, const __nv_bfloat16*, const int32_t*,
                              int64_t, __nv_bfloat16*, int64_t, cudaStream_t);
template void add_expert_lora(const ExpertAdapters&, const ExpertSlots&, bool, const __half*, const int32_t*, int64_t,
                              __half*, int64_t, cudaStream_t);

}  // namespace llmb::cuda
