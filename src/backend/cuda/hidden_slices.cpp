#include "backend/cuda/hidden_slices.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "base/check.h"

namespace llmb {

HiddenSlices::HiddenSlices(DeviceCollectives& ranks, const Limits& limits)
    : ranks_(ranks),
      limits_(limits),
      own_(limits.max_num_tokens * limits.width * limits.number_bytes),
      given_(ranks.size() * limits.max_num_seqs * limits.width * limits.number_bytes) {}

template <class Stored>
void HiddenSlices::previous(const StepPlan& plan, const cuda::SlicedRows& step, const Range& wanted,
                            const Stored* pool, float* out, cudaStream_t stream) const {
  const int64_t num_entries = plan.num_entries(), width = limits_.width;
  LLMB_CHECK(num_entries <= limits_.max_num_seqs && wanted.end <= limits_.max_num_tokens);
  Stored *const given = given_.data<Stored>(), *const part = given + ranks_.rank() * num_entries * width;
  cuda::give_previous_hidden(step, pool, width, part, stream);
  ranks_.all_gather(part, num_entries * width * int64_t{sizeof(Stored)}, given, stream);
  cuda::SlicedRows rows = step;
  rows.step.num_rows = static_cast<int32_t>(wanted.count());
  rows.step.rows += wanted.begin, rows.step.positions += wanted.begin;
  cuda::take_previous_hidden(rows, own<const Stored>() + wanted.begin * width, given,
                             static_cast<int32_t>(num_entries), width, out, stream);
}

template void HiddenSlices::previous(const StepPlan&, const cuda::SlicedRows&, const Range&, const float*, float*,
                                     cudaStream_t) const;
template void HiddenSlices::previous(const StepPlan&, const cuda::SlicedRows&, const Range&, const __nv_bfloat16*,
                                     float*, cudaStream_t) const;
template void HiddenSlices::previous(const StepPlan&, const cuda::SlicedRows&, const Range&, const __half*, float*,
                                     cudaStream_t) const;

}  // namespace llmb
