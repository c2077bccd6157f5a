// Rows of a step that what is sampled depends on, behind the last layer with keys and values of its own.
#include <algorithm>

#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/step_graphs.h"
#include "kernels/cuda/gather.h"

namespace llmb {

// Ranks that have parts of layers, or share out rows, trees and adapters look at all rows.
int32_t CudaOps::num_kept(const StepPlan& plan) {
  const bool is_divided = ranks_ != nullptr || context_rows() != nullptr;
  const bool needs_all = is_divided || llmb::has_adapters(plan) || plan.is_mtp;
  if (needs_all || plan.sample_rows.empty() || !plan.parent_rows.empty() || !plan.hidden_rows.empty()) return 0;
  return stage_.keep(plan);
}

// Nothing is written to the cache any more, so slots stay those of all rows.
std::optional<int64_t> CudaOps::narrow_step() {
  const int64_t num_kept = step_.shape.num_kept;
  if (num_kept == 0) return std::nullopt;
  cuda::keep_rows(step_.positions, step_.kept_rows, num_kept, sizeof(int32_t), stream_);
  step_.rows = step_.kept_places;
  step_.sample_rows = step_.kept_sample_rows;
  step_.kind.sharing = Sharing::kNone;  // shared prefixes were scheduled for all rows
  std::copy(std::begin(step_.lists[1]), std::end(step_.lists[1]), std::begin(step_.lists[0]));
  return num_kept;
}

void CudaOps::keep_rows(Rows x) {
  const int64_t row_bytes = x.width * dtype_bytes(x.dtype);
  cuda::keep_rows(x.data, step_.kept_rows, step_.shape.num_kept, row_bytes, stream_);
}

}  // namespace llmb
