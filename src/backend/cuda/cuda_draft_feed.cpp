#include "backend/cuda/cuda_draft_feed.h"

#include "backend/checks.h"
#include "backend/cuda/device.h"
#include "base/check.h"

namespace llmb {

Status CudaDraftFeed::keep(int32_t first, int32_t count) {
  LLMB_CHECK(first >= 0 && count >= 0 && first + count <= num_slots() && draft_->vocab_size() <= target_->vocab_size());
  return guarded(status_of_cuda_error, [&] {
    cuda::check(cudaSetDevice(index_), "cudaSetDevice");
    cuda::check(cudaMemcpyAsync(target_->drafted() + first, draft_->given_by_drafts().last, count * sizeof(TokenId),
                                cudaMemcpyDeviceToDevice, stream_->get()),
                "cudaMemcpyAsync");
    return Status();
  });
}

Status CudaDraftFeed::keep_best(int32_t first, int32_t count, int32_t num_best) {
  const cuda::SampleResult& sampled = draft_->sampled();
  LLMB_CHECK(first >= 0 && count >= 0 && first + count * num_best <= num_slots() && num_best <= sampled.max_top &&
             draft_->vocab_size() <= target_->vocab_size());
  return guarded(status_of_cuda_error, [&] {
    cuda::check(cudaSetDevice(index_), "cudaSetDevice");
    const size_t width = num_best * sizeof(TokenId), pitch = sampled.max_top * sizeof(TokenId);
    cuda::check(cudaMemcpy2DAsync(target_->drafted() + first, width, sampled.top_tokens, pitch, width, count,
                                  cudaMemcpyDeviceToDevice, stream_->get()),
                "cudaMemcpy2DAsync");
    return Status();
  });
}

}  // namespace llmb
