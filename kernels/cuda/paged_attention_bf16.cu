#include "kernels/cuda/paged_attention_launch.h"

namespace llmb::cuda {

template void paged_attention(const __nv_bfloat16*, int64_t, __nv_bfloat16*, const __nv_bfloat16*, const __nv_bfloat16*,
                              const BlockId*, const AttentionWork&, const AttentionParams&, cudaStream_t);
template void paged_attention(const __nv_bfloat16*, int64_t, __nv_bfloat16*, const Int8Kv&, const BlockId*,
                              const AttentionWork&, const AttentionParams&, cudaStream_t);
template void paged_attention(const __nv_bfloat16*, int64_t, __nv_bfloat16*, const Fp8Kv&, const BlockId*,
                              const AttentionWork&, const AttentionParams&, cudaStream_t);

}  // namespace llmb::cuda
