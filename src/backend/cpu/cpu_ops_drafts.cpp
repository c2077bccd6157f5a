// The ops of layers that draft behind the last one.
#include <algorithm>
#include <span>

#include "backend/cpu/cpu_ops.h"
#include "backend/cpu/cpu_weights.h"
#include "backend/cpu/hidden_rows.h"

namespace llmb {

void CpuOps::store_hidden(Rows x, int64_t rows) {
  const int64_t group = groups_.group(config_.num_hidden_layers);
  kv_.hidden().store(floats(x), step_.slots.data() + group * plan_->num_tokens(), rows, pool_);
}

void CpuOps::previous_hidden(int64_t rows, Rows out) {
  find_previous_slots(*plan_, step_, groups_.group(config_.num_hidden_layers), &previous_slots_);
  kv_.hidden().load(previous_slots_.data(), rows, floats(out), pool_);
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
