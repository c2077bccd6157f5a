// The kernels for e4m3 keys and values, but for shared prefixes: see paged_attention_mma.h.
#include "kernels/cuda/paged_attention_mma.h"

namespace llmb::cuda::attention {

template void launch_mma<__nv_bfloat16, E4m3, ItemKind::kChain>(const Args<__nv_bfloat16>&, int32_t, cudaStream_t);
template void launch_mma<__nv_bfloat16, E4m3, ItemKind::kTree>(const Args<__nv_bfloat16>&, int32_t, cudaStream_t);

}  // namespace llmb::cuda::attention
