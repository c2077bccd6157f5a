#include "backend/cuda/cuda_draft_feed.h"

#include "backend/checks.h"
#include "backend/cuda/device.h"
#include "base/check.h"

namespace llmb {

Status CudaDraftFeed::keep(int32_t first, int32_t count) {
  LLMB_CHECK(first >= 0 && count >= 0 && first + count <= num_slots() && draft_->vocab_size() <= target_->vocab_size());
  return guarded(status_of_cuda_error, [&] {
    cuda::check(cudaSetDevice(index_), "cudaSetDevice");
    cuda::check(cudaMemcpyAsync(target_->drafted() + first, draft_->given().last, count * sizeof(TokenId),
                                cudaMemcpyDeviceToDevice, stream_->get()),
                "cudaMemcpyAsync");
    return Status();
  });
}

}  // namespace llmb
