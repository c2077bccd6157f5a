// The ops of layers that draft behind the last one.
#include <algorithm>
#include <span>

#include "backend/cpu/cpu_ops.h"
#include "backend/cpu/cpu_weights.h"
#include "backend/cpu/hidden_rows.h"

namespace llmb {

// Each rank stores the others' rows, too, as far as it has their slots.
void CpuOps::store_hidden(Rows x, int64_t rows) {
  const int32_t group = groups_.group(config_.num_hidden_layers);
  const int32_t* const slots =
      slices_ ? slices_->slots(group) : &step_.slots[static_cast<size_t>(group) * plan_->num_tokens()];
  kv_.hidden().store(floats(x), slots + first_row(), rows, pool_);
  if (has_part_of_rows())
    rows_->share_columns(floats(x), x.width, 0, x.width, [&](int64_t first, int64_t count, const float* columns) {
      kv_.hidden().store(columns, slots + first, count, pool_);
    });
}

void CpuOps::previous_hidden(int64_t rows, Rows out) {
  find_previous_slots(*plan_, step_, groups_.group(config_.num_hidden_layers), &previous_slots_);
  if (slices_)
    return slices_->load_hidden(kv_.hidden(), previous_slots_, {first_row(), first_row() + rows}, floats(out), pool_);
  kv_.hidden().load(previous_slots_.data() + first_row(), rows, floats(out), pool_);
}

void CpuOps::spread_logits(Rows from, std::span<const TokenId> tokens, int64_t rows, Rows to) {
  pool_.parallel_for(rows, [&](int64_t row, int) {
    const float* const x = floats(from.from(row));
    float* const y = floats(to.from(row));
    std::fill_n(y, to.width, -1e30f);
    for (size_t i = 0; i < tokens.size(); ++i)
      if (tokens[i] >= 0) y[tokens[i]] = x[i];
  });
}

}  // namespace llmb
