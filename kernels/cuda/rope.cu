// Bound by bytes: q is read and written, k and v are read from the row and written to the pool. A block is a token.
// Threads are (pack of pairs within a head, head): a thread loads its cosines and sines once for all its heads.
#include "kernels/cuda/rope.h"

#include <algorithm>

#include "base/check.h"
#include "core/types.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/pack.h"
#include "kernels/cuda/ptx.h"
#include "kernels/cuda/warp.h"
#include "kernels/cuda/widen_codes.h"

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
                             const int32_t* __restrict__ slots, RopeShape shape, int64_t row_width,
                             const float* __restrict__ cos, const float* __restrict__ sin, T* __restrict__ k_pool,
                             T* __restrict__ v_pool) {
  ptx::follow_previous_grid();
  const int64_t token = blockIdx.x;
  const int32_t slot = slots[token];
  if (slot < 0) return;
  const int32_t head_dim = shape.head_dim, half = shape.rotary_dim / 2, num_q = shape.num_heads;
  T* row = qkv + token * row_width;
  // A slot's vectors in the pool: KV head h's begins h * head_stride on.
  const int64_t block = slot / shape.block_size, offset = slot % shape.block_size;
  const int64_t head_stride = int64_t{shape.block_size} * head_dim;
  const int64_t slot_base = block * shape.block_stride + offset * head_dim;

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
      if (v_pool != nullptr) copy_pack<kWidth>(v + from + i, v_pool + to + i);
      if (i >= 2 * half) copy_pack<kWidth>(k + from + i, k_pool + to + i);
    }
  }
}

// A head of q, k or v as it is after the rotation, channel by channel.
template <class T>
struct RotatedHead {
  const T* x;
  const float *cos, *sin;  // of its position
  int32_t half;            // of what is rotated; 0: nothing

  __device__ float operator[](int32_t i) const {
    const float own = to_float(x[i]);
    if (i >= 2 * half) return own;
    const bool is_first = i < half;
    const int32_t angle = is_first ? i : i - half;
    const float other = to_float(x[is_first ? i + half : angle]);
    return fmaf(is_first ? -other : other, sin[angle], own * cos[angle]);
  }
};

__device__ int8_t to_code(float x, int8_t) { return static_cast<int8_t>(__float2int_rn(x)); }
__device__ E4m3 to_code(float x, E4m3) { return to_e4m3(x); }

// A head's key or value, by a warp: once for the largest magnitude, once to write it.
template <class T, class Code>
__device__ void write_codes(const RotatedHead<T>& head, int32_t head_dim, Code* out, float* scale) {
  constexpr float kLargest = kCodeOf<Code> == KvCode::kInt8 ? 127 : kLargestE4m3;
  const int32_t lane = threadIdx.x % kWarp;
  uint32_t largest = 0;  // as bits without the sign, in the order of magnitudes, infinity and NaN last
  for (int32_t i = lane; i < head_dim; i += kWarp) largest = ::max(largest, __float_as_uint(head[i]) & 0x7fffffffu);
  for (int offset = kWarp / 2; offset > 0; offset /= 2)
    largest = ::max(largest, __shfl_xor_sync(kAllLanes, largest, offset));
  const float max = __uint_as_float(largest);
  const bool is_finite = max < INFINITY, is_zero = max < 0x1p-100f;
  const float inverse = is_finite && !is_zero ? __fdiv_rn(kLargest, max) : 0.0f;
  if (lane == 0) *scale = !is_finite ? NAN : is_zero ? 0.0f : __fdiv_rn(max, kLargest);
  for (int32_t i = lane; i < head_dim; i += kWarp)
    out[i] = is_finite ? to_code(__fmul_rn(head[i], inverse), Code()) : Code();
}

// A block is a token, a warp takes one head after the other.
template <class T, class Code>
__global__ void __launch_bounds__(kThreads)
    rope_and_code_write_kernel(T* __restrict__ qkv, const int32_t* __restrict__ positions,
                               const int32_t* __restrict__ slots, RopeShape shape, int64_t row_width,
                               const float* __restrict__ cos, const float* __restrict__ sin, ScaledKv<Code> pool) {
  ptx::follow_previous_grid();
  const int64_t token = blockIdx.x;
  const int32_t slot = slots[token];
  if (slot < 0) return;
  const int32_t head_dim = shape.head_dim, half = shape.rotary_dim / 2;
  const int32_t num_q = shape.num_heads, num_kv = shape.num_kv_heads;
  T* const row = qkv + token * row_width;
  const int64_t block = slot / shape.block_size, offset = slot % shape.block_size;
  const int64_t angles = int64_t{positions[token]} * half;
  for (int32_t h = threadIdx.x / kWarp; h < num_q + 2 * num_kv; h += kThreads / kWarp) {
    T* const x = row + int64_t{h} * head_dim;
    const bool is_value = h >= num_q + num_kv;
    const RotatedHead<T> head{x, cos + angles, sin + angles, is_value ? 0 : half};
    if (h < num_q) {  // in place: a lane turns whole pairs
      for (int32_t i = threadIdx.x % kWarp; i < half; i += kWarp) {
        const float a = head[i], b = head[i + half];
        x[i] = from_float<T>(a);
        x[i + half] = from_float<T>(b);
      }
      continue;
    }
    const int64_t at = (block * num_kv + (h - num_q) % num_kv) * shape.block_size + offset;
    write_codes(head, head_dim, (is_value ? pool.v : pool.k) + at * head_dim,
               (is_value ? pool.v_scales : pool.k_scales) + at);
  }
}

}  // namespace

template <class T>
void rope_and_kv_write(T* qkv, const int32_t* positions, const int32_t* slots, int64_t num_tokens,
                       const RopeShape& shape, const float* cos, const float* sin, T* k_pool, T* v_pool,
                       cudaStream_t stream) {
  LLMB_CHECK(shape.rotary_dim % 2 == 0 && shape.rotary_dim >= 0 && shape.rotary_dim <= shape.head_dim);
  if (num_tokens == 0) return;
  RopeShape strided = shape;
  if (shape.block_stride == 0) strided.block_stride = int64_t{shape.num_kv_heads} * shape.block_size * shape.head_dim;
  T* const values = shape.has_values ? v_pool : nullptr;
  const int32_t half = shape.rotary_dim / 2;
  const auto run = [&](auto kernel, int32_t width) {
    const int32_t x = std::clamp(half / width, 1, 32);
    const int32_t heads = std::max(shape.num_heads + shape.num_kv_heads, 1);
    const int32_t turns = static_cast<int32_t>(ceil_div(heads, kThreads / x));
    const auto y = static_cast<int32_t>(ceil_div(heads, turns));  // so that the last turn is as full as the others
    const dim3 block(static_cast<unsigned>(x), static_cast<unsigned>(y));
    launch_ahead({dim3(static_cast<unsigned>(num_tokens)), block, 0, stream}, kernel, qkv, positions, slots,
                 strided, shape.row_width(), cos, sin, k_pool, values);
  };
  if (can_pack(half, qkv, cos, sin, k_pool, values) && shape.head_dim % kPackWidth == 0 &&
      strided.block_stride % kPackWidth == 0 && shape.row_stride % kPackWidth == 0)
    run(rope_and_kv_write_kernel<T, kPackWidth>, kPackWidth);
  else run(rope_and_kv_write_kernel<T, 1>, 1);
}

template <class T, class Code>
void rope_and_kv_write(T* qkv, const int32_t* positions, const int32_t* slots, int64_t num_tokens,
                       const RopeShape& shape, const float* cos, const float* sin, const ScaledKv<Code>& pool,
                       cudaStream_t stream) {
  LLMB_CHECK(shape.rotary_dim % 2 == 0 && shape.rotary_dim >= 0 && shape.rotary_dim <= shape.head_dim);
  LLMB_CHECK(shape.has_values && shape.block_stride == 0);
  if (num_tokens == 0) return;
  launch_ahead({dim3(static_cast<unsigned>(num_tokens)), dim3(kThreads), 0, stream},
               rope_and_code_write_kernel<T, Code>, qkv, positions, slots, shape, shape.row_width(), cos, sin, pool);
}

template void rope_and_kv_write(float*, const int32_t*, const int32_t*, int64_t, const RopeShape&, const float*,
                                const float*, const Int8Kv&, cudaStream_t);
template void rope_and_kv_write(__nv_bfloat16*, const int32_t*, const int32_t*, int64_t, const RopeShape&, const float*,
                                const float*, const Int8Kv&, cudaStream_t);
template void rope_and_kv_write(__half*, const int32_t*, const int32_t*, int64_t, const RopeShape&, const float*,
                                const float*, const Int8Kv&, cudaStream_t);
template void rope_and_kv_write(float*, const int32_t*, const int32_t*, int64_t, const RopeShape&, const float*,
                                const float*, const Fp8Kv&, cudaStream_t);
template void rope_and_kv_write(__nv_bfloat16*, const int32_t*, const int32_t*, int64_t, const RopeShape&, const float*,
                                const float*, const Fp8Kv&, cudaStream_t);
template void rope_and_kv_write(__half*, const int32_t*, const int32_t*, int64_t, const RopeShape&, const float*,
                                const float*, const Fp8Kv&, cudaStream_t);
template void rope_and_kv_write(float*, const int32_t*, const int32_t*, int64_t, const RopeShape&, const float*,
                                const float*, float*, float*, cudaStream_t);
template void rope_and_kv_write(__nv_bfloat16*, const int32_t*, const int32_t*, int64_t, const RopeShape&, const float*,
                                const float*, __nv_bfloat16*, __nv_bfloat16*, cudaStream_t);
template void rope_and_kv_write(__half*, const int32_t*, const int32_t*, int64_t, const RopeShape&, const float*,
                                const float*, __half*, __half*, cudaStream_t);

}  // namespace llmb::cuda
