// The kernels for steps with shared prefixes: see paged_attention_mma.h and _wgmma.h.
#include "kernels/cuda/paged_attention_mma.h"
#include "kernels/cuda/paged_attention_wgmma.h"

namespace llmb::cuda::attention {

template void launch_mma<__half, __half, ItemKind::kShared>(const Args<__half>&, int32_t, cudaStream_t);
template void launch_wgmma<__half, ItemKind::kShared>(const Args<__half>&, cudaStream_t);
template void launch_mma<__half, __half, ItemKind::kContinued>(const Args<__half>&, int32_t, cudaStream_t);

}  // namespace llmb::cuda::attention
