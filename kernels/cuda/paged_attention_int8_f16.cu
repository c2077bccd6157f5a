// The kernels for int8 keys and values, but for shared prefixes: see paged_attention_mma.h.
#include "kernels/cuda/paged_attention_mma.h"

namespace llmb::cuda::attention {

template void launch_mma<__half, int8_t, ItemKind::kChain>(const Args<__half>&, int32_t, cudaStream_t);
template void launch_mma<__half, int8_t, ItemKind::kTree>(const Args<__half>&, int32_t, cudaStream_t);

}  // namespace llmb::cuda::attention
