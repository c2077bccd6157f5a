// An output of sums of int8 products. Device code only.
#pragma once

#include <cstdint>

namespace llmb::cuda {

// Not one fused multiply and add: the CPU's bits. bias: or nullptr
__device__ __forceinline__ float int8_output(int32_t sum, float scale, float x_scale, const float* bias) {
  const float value = __fmul_rn(__fmul_rn(static_cast<float>(sum), scale), x_scale);
  return bias == nullptr ? value : __fadd_rn(value, *bias);
}

}  // namespace llmb::cuda
