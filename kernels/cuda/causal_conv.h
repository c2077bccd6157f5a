// causal_conv: each channel's short convolution over a sequence's newest tokens, then SiLU where that is wanted (the
// depthwise convolution of Mamba, Gated DeltaNet, LFM2). What the next tokens need of a sequence's inputs is kept in
// its state slot. A token's result depends on its sequence alone, not on how steps cut it.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "core/state_layout.h"
#include "kernels/cuda/state_entries.h"

namespace llmb::cuda {

// Tokens that a convolution sees, at most.
inline constexpr int32_t kMaxConvWidth = 8;

// T: float, __nv_bfloat16 or __half. Throws CudaError. REQUIRES: layout.config.conv_width <= kMaxConvWidth
template <class T>
void causal_conv(const StateLayout& layout, int32_t state_layer,  // among the layers that have a state
                 const T* x,                                      // [num_tokens, channels]
                 const float* weight,                             // [width, channels]  the newest token's last
                 const float* bias,                               // [channels]  nullptr: none
                 bool has_silu, const StateEntry* entries, int32_t num_entries, int64_t num_tokens,
                 T* out,  // [num_tokens, channels]
                 cudaStream_t stream);

}  // namespace llmb::cuda
