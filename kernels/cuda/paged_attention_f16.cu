#include "kernels/cuda/paged_attention_launch.h"

namespace llmb::cuda {

template void paged_attention(const __half*, int64_t, __half*, const __half*, const __half*, const BlockId*,
                              const AttentionWork&, const AttentionParams&, cudaStream_t);
template void paged_attention(const __half*, int64_t, __half*, const Int8Kv&, const BlockId*, const AttentionWork&,
                              const AttentionParams&, cudaStream_t);
template void paged_attention(const __half*, int64_t, __half*, const Fp8Kv&, const BlockId*, const AttentionWork&,
                              const AttentionParams&, cudaStream_t);

}  // namespace llmb::cuda
