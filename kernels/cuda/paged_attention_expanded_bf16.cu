#include "kernels/cuda/paged_attention_expanded.h"

namespace llmb::cuda {

template void expanded_attention(const __nv_bfloat16*, int64_t, __nv_bfloat16*, int64_t, const __nv_bfloat16*, const BlockId*, const AttentionWork&,
                                 const AttentionParams&, cudaStream_t);

}  // namespace llmb::cuda
