// rope_and_kv_write: rotates q and k by their positions (RoPE, Su et al. 2021, in Hugging Face's rotate-half
// convention: channel i pairs with channel i + rotary_dim / 2) and stores the rotated k, and v, into their KV slots.
// The k part of qkv is left as it was; q is rotated in place. Elementwise in fp32, rounded once. Without KV heads only q
// is rotated; without heads there are k and v alone, of a row that another rank computes, or a second time.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/scaled_kv.h"

namespace llmb::cuda {

struct RopeShape {
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int32_t rotary_dim = 0;  // even, <= head_dim: only the first rotary_dim channels of a head are rotated
  int32_t block_size = 0;
  int64_t block_stride = 0;  // elements from a block to the next in the pools; 0: they are dense
  bool has_values = true;    // else qkv has no v, as with latents: v_pool is not written
  int64_t row_stride = 0;    // elements from a row of qkv to the next; 0: they are dense

  int64_t row_width() const {
    if (row_stride > 0) return row_stride;
    return (num_heads + (has_values ? 2 : 1) * int64_t{num_kv_heads}) * head_dim;
  }
};

// T: float, __nv_bfloat16 or __half. A token whose slot is negative, such as a padded one, is left alone altogether.
// REQUIRES: slots that are not negative differ. Throws CudaError.
template <class T>
void rope_and_kv_write(T* qkv,                    // [num_tokens, shape.row_width()]
                       const int32_t* positions,  // [num_tokens]
                       const int32_t* slots,      // [num_tokens]
                       int64_t num_tokens, const RopeShape& shape,
                       const float* cos,  // [max_position, rotary_dim / 2]
                       const float* sin,  // [max_position, rotary_dim / 2]
                       T* k_pool,         // [num_blocks, num_kv_heads, block_size, head_dim]
                       T* v_pool,         // the same; block b of each begins b * block_stride elements on
                       cudaStream_t stream);

// The same into a pool of bytes with scales, of int8_t or E4m3: of the fp32 values, without a rounding to T between.
// Padded tokens as above. REQUIRES: dense pools, and values.
template <class T, class Code>
void rope_and_kv_write(T* qkv, const int32_t* positions, const int32_t* slots, int64_t num_tokens,
                       const RopeShape& shape, const float* cos, const float* sin, const ScaledKv<Code>& pool,
                       cudaStream_t stream);

}  // namespace llmb::cuda
