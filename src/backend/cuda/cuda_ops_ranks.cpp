// The ops in which ranks meet (cuda_ranks.h): each has a part of a sum, of the vocabulary or of a norm's columns.
#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/cuda_weights.h"
#include "kernels/cuda/embedding.h"

namespace llmb {

void CudaOps::linear(const LinearWeight& weight, Rows x, int64_t rows, Rows out) {
  multiply(cuda_linear(weight), x, rows, out);
  if (cuda_linear(weight).is_partial_sum()) sum_over_ranks(out, rows);
}

// A rank's part of a sum is added to by adapters before it is summed.
void CudaOps::adapted_linear(const AdaptedProduct& product, const LinearWeight& weight, Rows x, int64_t rows, Rows out) {
  multiply(cuda_linear(weight), x, rows, out);
  lora(product, x, rows, out);
  if (cuda_linear(weight).is_partial_sum()) sum_over_ranks(out, rows);
}

// Each row is one rank's; zeros of the others leave it as it is.
void CudaOps::embedding(const LinearWeight& table, int64_t rows, Rows out) {
  const TokenId* const tokens = ranks_ != nullptr ? ranks_->own_tokens(step_.tokens, rows) : step_.tokens;
  if (const CudaLinear& linear = cuda_linear(table); linear.is_int8()) {
    const cuda::Int8View int8 = linear.int8_view();
    cuda::embedding_int8(int8.weight, int8.scales, tokens, rows, out.width, data<float>(out), stream_);
  } else {
    with_type(options_.dtype, [&]<typename T>(T) {
      cuda::embedding(static_cast<const T*>(view(table).weight), tokens, rows, out.width, data<float>(out), stream_);
    });
  }
  if (ranks_ == nullptr) return;
  ranks_->clear_other_rows(step_.tokens, rows, out);
  ranks_->sum(out, rows);
}

void CudaOps::rms_norm_over_ranks(Rows x, int64_t first_column, const DeviceBuffer& weight, float eps, int64_t rows) {
  if (ranks_ == nullptr) return Ops::rms_norm_over_ranks(x, first_column, weight, eps, rows);
  ranks_->rms_norm(x, first_column, weight, eps, rows);
}

}  // namespace llmb
