// Bound by bytes: each element is read and written once. A thread moves one pack.
#include "kernels/cuda/elementwise.h"

#include "core/types.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/pack.h"
#include "kernels/cuda/ptx.h"

namespace llmb::cuda {

namespace {

constexpr int kThreads = 256;

// Calls run(kernel arguments' pack width as an integral constant, grid) for packs that cover `size`.
template <class Run, class... Pointers>
void for_packs(int64_t size, const Run& run, const Pointers*... arrays) {
  if (size == 0) return;
  const auto grid = [size](int width) {
    return dim3(static_cast<unsigned>(ceil_div(size, int64_t{kThreads} * width)));
  };
  if (can_pack(size, arrays...)) run(std::integral_constant<int, kPackWidth>(), grid(kPackWidth));
  else run(std::integral_constant<int, 1>(), grid(1));
}

__device__ inline int64_t pack_begin(int width) { return (int64_t{blockIdx.x} * kThreads + threadIdx.x) * width; }

template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads) add_kernel(float* __restrict__ residual, const T* __restrict__ delta,
                                                       float factor, int64_t size, T* __restrict__ out) {
  ptx::follow_previous_grid();
  const int64_t at = pack_begin(kWidth);
  if (at >= size) return;
  float r[kWidth];
  load_floats(residual + at, r);
  if (delta != nullptr) {
    float d[kWidth];
    load_floats(delta + at, d);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) r[i] = fmaf(factor, d[i], r[i]);
    store_floats(r, residual + at);
  }
  if (out != nullptr) store_floats(r, out + at);
}

struct Scale {
  float factor;
  __device__ float operator()(float x) const { return x * factor; }
};

struct Softcap {
  float cap;
  __device__ float operator()(float x) const { return cap * tanhf(x / cap); }
};

// By comparison: fmin and fmax drop NaN.
struct Clamp {
  float limit;
  __device__ float operator()(float x) const { return x > limit ? limit : x < -limit ? -limit : x; }
};

template <class T, int kWidth, class F>
__global__ void __launch_bounds__(kThreads) update_kernel(T* x, F f, int64_t size) {
  ptx::follow_previous_grid();
  const int64_t at = pack_begin(kWidth);
  if (at >= size) return;
  float v[kWidth];
  load_floats(x + at, v);
#pragma unroll
  for (int i = 0; i < kWidth; ++i) v[i] = f(v[i]);
  store_floats(v, x + at);
}

template <class T, class F>
void update(T* x, const F& f, int64_t size, cudaStream_t stream) {
  for_packs(
      size,
      [&](auto width, dim3 grid) {
        launch_ahead({grid, dim3(kThreads), 0, stream}, update_kernel<T, width(), F>, x, f, size);
      },
      x);
}

}  // namespace

template <class T>
void add(float* residual, const T* delta, float factor, int64_t size, T* out, cudaStream_t stream) {
  for_packs(
      size,
      [&](auto width, dim3 grid) {
        launch_ahead({grid, dim3(kThreads), 0, stream}, add_kernel<T, width()>, residual, delta, factor, size, out);
      },
      residual, delta, out);
}

void scale(float* x, float factor, int64_t size, cudaStream_t stream) { update(x, Scale{factor}, size, stream); }

void softcap(float* x, float cap, int64_t size, cudaStream_t stream) { update(x, Softcap{cap}, size, stream); }

template <class T>
void clamp(T* x, float limit, int64_t size, cudaStream_t stream) {
  update(x, Clamp{limit}, size, stream);
}

template void add(float*, const float*, float, int64_t, float*, cudaStream_t);
template void add(float*, const __nv_bfloat16*, float, int64_t, __nv_bfloat16*, cudaStream_t);
template void add(float*, const __half*, float, int64_t, __half*, cudaStream_t);
template void clamp(float*, float, int64_t, cudaStream_t);
template void clamp(__nv_bfloat16*, float, int64_t, cudaStream_t);
template void clamp(__half*, float, int64_t, cudaStream_t);

}  // namespace llmb::cuda
