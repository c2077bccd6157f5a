// The kernel for steps with trees: see paged_attention_mma.h.
#include "kernels/cuda/paged_attention_mma.h"

namespace llmb::cuda::attention {

template void launch_mma<__half, __half, ItemKind::kTree>(const Args<__half>&, int32_t, cudaStream_t);

}  // namespace llmb::cuda::attention
