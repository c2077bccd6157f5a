#include "backend/cpu/hidden_rows.h"

#include <cstring>

#include "base/float_formats.h"
#include "kernels/cpu/block_copy.h"

namespace llmb {

HiddenRows::HiddenRows(const KvLayout& layout)
    : layout_(layout),
      memory_(ceil_div(int64_t{layout.num_blocks} * layout.block_size * layout.hidden_bytes(), sizeof(float))) {}

void HiddenRows::store(const float* x, const int32_t* slots, int64_t rows, ThreadPool& pool) {
  const int64_t width = layout_.hidden_size;
  pool.parallel_for(rows, [&](int64_t i, int) {
    if (slots[i] < 0) return;
    const float* const from = x + i * width;
    if (!is_bf16()) {
      std::memcpy(row(slots[i]), from, static_cast<size_t>(width) * sizeof(float));
      return;
    }
    auto* const to = reinterpret_cast<uint16_t*>(row(slots[i]));
    for (int64_t j = 0; j < width; ++j) to[j] = f32_to_bf16(from[j]);
  });
}

void HiddenRows::load(const int32_t* slots, int64_t rows, float* out, ThreadPool& pool) const {
  const int64_t width = layout_.hidden_size;
  pool.parallel_for(rows, [&](int64_t i, int) {
    float* const to = out + i * width;
    if (slots[i] < 0 || !is_bf16()) {
      const size_t bytes = static_cast<size_t>(width) * sizeof(float);
      if (slots[i] < 0) std::memset(to, 0, bytes);
      else std::memcpy(to, row(slots[i]), bytes);
      return;
    }
    const auto* const from = reinterpret_cast<const uint16_t*>(row(slots[i]));
    for (int64_t j = 0; j < width; ++j) to[j] = bf16_to_f32(from[j]);
  });
}

void HiddenRows::copy_blocks_to(HiddenRows& other, std::span<const BlockCopy> copies, ThreadPool& pool) {
  const int64_t bytes = layout_.block_size * layout_.hidden_bytes();
  cpu::block_copy({row(0), 0, bytes}, {other.row(0), 0, bytes}, 1, bytes, copies, pool);
}

void find_previous_slots(const StepPlan& plan, const ResolvedStep& step, int32_t layer_group,
                         std::vector<int32_t>* slots) {
  const int32_t* const own = step.slots.data() + int64_t{layer_group} * plan.num_tokens();
  slots->resize(plan.tokens.size());
  for (int32_t e = 0; e < plan.num_entries(); ++e) {
    const int32_t begin = plan.query_start[e], last = step.positions[begin] - 1;
    const BlockId* const table = plan.block_ids.data() + plan.block_start[e * plan.num_layer_groups + layer_group];
    (*slots)[begin] = last < 0 ? -1 : table[last / plan.block_size] * plan.block_size + last % plan.block_size;
    for (int32_t row = begin + 1; row < plan.query_start[e + 1]; ++row)
      (*slots)[row] = own[plan.parent_rows.empty() ? row - 1 : plan.parent_rows[row]];
  }
}

}  // namespace llmb
