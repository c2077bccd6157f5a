// The kernel for steps with trees: see paged_attention_mma.h.
#include "kernels/cuda/paged_attention_mma.h"

namespace llmb::cuda::attention {

template void launch_mma<__nv_bfloat16, __nv_bfloat16, ItemKind::kTree>(const Args<__nv_bfloat16>&, int32_t,
                                                                        cudaStream_t);

}  // namespace llmb::cuda::attention
