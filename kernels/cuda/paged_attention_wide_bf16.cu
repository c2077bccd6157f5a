#include "kernels/cuda/paged_attention_wide.h"

namespace llmb::cuda::attention {

template void launch_wide(const Args<__nv_bfloat16>&, cudaStream_t);

}  // namespace llmb::cuda::attention
