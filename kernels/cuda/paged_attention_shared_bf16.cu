// The kernels for steps with shared prefixes: see paged_attention_mma.h and _wgmma.h.
#include "kernels/cuda/paged_attention_mma.h"
#include "kernels/cuda/paged_attention_wgmma.h"

namespace llmb::cuda::attention {

template void launch_mma<__nv_bfloat16, __nv_bfloat16, ItemKind::kShared>(const Args<__nv_bfloat16>&, int32_t,
                                                                          cudaStream_t);
template void launch_wgmma<__nv_bfloat16, ItemKind::kShared>(const Args<__nv_bfloat16>&, cudaStream_t);
template void launch_mma<__nv_bfloat16, __nv_bfloat16, ItemKind::kContinued>(const Args<__nv_bfloat16>&, int32_t,
                                                                             cudaStream_t);

}  // namespace llmb::cuda::attention
