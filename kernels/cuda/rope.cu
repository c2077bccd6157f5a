// Bound by bytes: q is read and written, k and v are read from the row and written to the pool. A block is a token.
// Threads are (pack of pairs within a head, head): a thread loads its cosines and sines once for all its heads.
#include "kernels/cuda/rope.h"

#include <algorithm>

#include "base/check.h"
#include "core/types.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/pack.h"
#include "kernels/cuda/ptx.h"

namespace llmb::cuda {

namespace {

constexpr int kThreads = 256;

// Pairs (a, b) turned by their angles: (a cos - b sin, b cos + a sin).
template <int kWidth>
__device__ void rotate_pairs(float (&a)[kWidth], float (&b)[kWidth], const float (&c)[kWidth],
                             const float (&s)[kWidth]) {
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    const float x = a[i], y = b[i];
    a[i] = fmaf(-y, s[i], x * c[i]);
    b[i] = fmaf(x, s[i], y * c[i]);
  }
}

template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    rope_and_kv_write_kernel(T* __restrict__ qkv, const int32_t* __restrict__ positions,
                             const int32_t* __restrict__ slots, RopeShape shape, const float* __restrict__ cos,
                             const float* __restrict__ sin, T* __restrict__ k_pool, T* __restrict__ v_pool) {
  ptx::follow_previous_grid();
  const int64_t token = blockIdx.x;
  const int32_t slot = slots[token];
  if (slot < 0) return;
  const int32_t head_dim = shape.head_dim, half = shape.rotary_dim / 2, num_q = shape.num_heads;
  T* row = qkv + token * (int64_t{num_q} + 2 * shape.num_kv_heads) * head_dim;
  // A slot's vectors in the pool: KV head h's begins h * head_stride on.
  const int64_t block = slot / shape.block_size, offset = slot % shape.block_size;
  const int64_t head_stride = int64_t{shape.block_size} * head_dim;
  const int64_t slot_base = block * shape.num_kv_heads * head_stride + offset * head_dim;

  const int64_t angles = int64_t{positions[token]} * half;
  for (int32_t i = threadIdx.x * kWidth; i < half; i += blockDim.x * kWidth) {
    float c[kWidth], s[kWidth];
    load_floats(cos + angles + i, c);
    load_floats(sin + angles + i, s);
    for (int32_t head = threadIdx.y; head < num_q + shape.num_kv_heads; head += blockDim.y) {
      T* from = row + int64_t{head} * head_dim + i;
      T* to = head < num_q ? from : k_pool + slot_base + (head - num_q) * head_stride + i;
      float a[kWidth], b[kWidth];
      load_floats(from, a);
      load_floats(from + half, b);
      rotate_pairs(a, b, c, s);
      store_floats(a, to);
      store_floats(b, to + half);
    }
  }

  // Copies v, and the channels of k that are not rotated.
  const T* k = row + int64_t{num_q} * head_dim;
  const T* v = k + int64_t{shape.num_kv_heads} * head_dim;
  for (int32_t head = threadIdx.y; head < shape.num_kv_heads; head += blockDim.y) {
    const int64_t from = int64_t{head} * head_dim, to = slot_base + head * head_stride;
    for (int32_t i = threadIdx.x * kWidth; i < head_dim; i += blockDim.x * kWidth) {
      copy_pack<kWidth>(v + from + i, v_pool + to + i);
      if (i >= 2 * half) copy_pack<kWidth>(k + from + i, k_pool + to + i);
    }
  }
}

}  // namespace

template <class T>
void rope_and_kv_write(T* qkv, const int32_t* positions, const int32_t* slots, int64_t num_tokens,
                       const RopeShape& shape, const float* cos, const float* sin, T* k_pool, T* v_pool,
                       cudaStream_t stream) {
  LLMB_CHECK(shape.rotary_dim % 2 == 0 && shape.rotary_dim >= 0 && shape.rotary_dim <= shape.head_dim);
  if (num_tokens == 0) return;
  const int32_t half = shape.rotary_dim / 2;
  const auto run = [&](auto kernel, int32_t width) {
    const int32_t x = std::clamp(half / width, 1, 32);
    const int32_t heads = std::max(shape.num_heads + shape.num_kv_heads, 1);
    const int32_t turns = static_cast<int32_t>(ceil_div(heads, kThreads / x));
    const auto y = static_cast<int32_t>(ceil_div(heads, turns));  // so that the last turn is as full as the others
    const dim3 block(static_cast<unsigned>(x), static_cast<unsigned>(y));
    launch_ahead({dim3(static_cast<unsigned>(num_tokens)), block, 0, stream}, kernel, qkv, positions, slots, shape, cos,
                 sin, k_pool, v_pool);
  };
  if (can_pack(half, qkv, cos, sin, k_pool, v_pool) && shape.head_dim % kPackWidth == 0)
    run(rope_and_kv_write_kernel<T, kPackWidth>, kPackWidth);
  else run(rope_and_kv_write_kernel<T, 1>, 1);
}

template void rope_and_kv_write(float*, const int32_t*, const int32_t*, int64_t, const RopeShape&, const float*,
                                const float*, float*, float*, cudaStream_t);
template void rope_and_kv_write(__nv_bfloat16*, const int32_t*, const int32_t*, int64_t, const RopeShape&, const float*,
                                const float*, __nv_bfloat16*, __nv_bfloat16*, cudaStream_t);
template void rope_and_kv_write(__half*, const int32_t*, const int32_t*, int64_t, const RopeShape&, const float*,
                                const float*, __half*, __half*, cudaStream_t);

}  // namespace llmb::cuda
