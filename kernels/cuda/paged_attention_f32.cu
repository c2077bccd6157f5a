#include "kernels/cuda/paged_attention_launch.h"

namespace llmb::cuda {

template void paged_attention(const float*, int64_t, float*, const float*, const float*, const BlockId*,
                              const AttentionWork&, const AttentionParams&, cudaStream_t);
template void paged_attention(const float*, int64_t, float*, const Int8Kv&, const BlockId*, const AttentionWork&,
                              const AttentionParams&, cudaStream_t);
template void paged_attention(const float*, int64_t, float*, const Fp8Kv&, const BlockId*, const AttentionWork&,
                              const AttentionParams&, cudaStream_t);

}  // namespace llmb::cuda
