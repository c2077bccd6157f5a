#include "engine/swap_cost.h"

namespace llmb {

bool swap_pays(const BackendInfo& backend, const StepCost& cost, int32_t num_rows) {
  if (backend.swap_bytes_per_s <= 0) return false;
  // A token has keys and values in a block of each layer group.
  const double bytes = static_cast<double>(backend.kv.bytes_per_block() * backend.kv.groups.num_groups()) /
                       static_cast<double>(backend.kv.block_size);
  const double ms_to_move = 2 * 1000 * bytes / backend.swap_bytes_per_s;
  return ms_to_move < cost.ms(num_rows) / num_rows;
}

}  // namespace llmb
