// The kernels for steps with shared prefixes and e4m3 keys and values: see paged_attention_mma.h.
#include "kernels/cuda/paged_attention_mma.h"

namespace llmb::cuda::attention {

template void launch_mma<__half, E4m3, ItemKind::kShared>(const Args<__half>&, int32_t, cudaStream_t);
template void launch_mma<__half, E4m3, ItemKind::kContinued>(const Args<__half>&, int32_t, cudaStream_t);

}  // namespace llmb::cuda::attention
