#include "kernels/cuda/paged_attention_expanded.h"

namespace llmb::cuda {

template void expanded_attention(const __half*, int64_t, __half*, int64_t, const __half*, const BlockId*, const AttentionWork&,
                                 const AttentionParams&, cudaStream_t);

}  // namespace llmb::cuda
