#include "kernels/cuda/paged_attention_expanded.h"

namespace llmb::cuda {

template void expanded_attention(const float*, int64_t, float*, int64_t, const float*, const BlockId*, const AttentionWork&,
                                 const AttentionParams&, cudaStream_t);

}  // namespace llmb::cuda
