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

template <class T>
__global__ void __launch_bounds__(kThreads) add_columns_kernel(float* __restrict__ x, const T* __restrict__ y,
                                                               int64_t stride, float factor, int64_t width) {
  ptx::follow_previous_grid();
  const int64_t row = blockIdx.x, column = int64_t{blockIdx.y} * kThreads + threadIdx.x, at = row * width + column;
  if (column < width) x[at] = fmaf(factor, to_float(y[row * stride + column]), x[at]);
}

template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads) add_scaled_kernel(float* __restrict__ residual, const T* __restrict__ delta,
                                                              const float* __restrict__ factor, int64_t size) {
  ptx::follow_previous_grid();
  const int64_t at = pack_begin(kWidth);
  if (at >= size) return;
  float r[kWidth], d[kWidth];
  load_floats(residual + at, r);
  load_floats(delta + at, d);
#pragma unroll
  for (int i = 0; i < kWidth; ++i) r[i] = (r[i] + d[i]) * *factor;
  store_floats(r, residual + at);
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

template <class T>
__global__ void __launch_bounds__(kThreads) add_gated_kernel(T* x, const T* __restrict__ y,
                                                             const float* __restrict__ gate, int64_t width) {
  ptx::follow_previous_grid();
  const int64_t row = blockIdx.x, column = int64_t{blockIdx.y} * kThreads + threadIdx.x, at = row * width + column;
  if (column >= width) return;
  const float weight = gate == nullptr ? 1.0f : 1.0f / (1.0f + expf(-gate[row]));
  x[at] = from_float<T>(fmaf(weight, to_float(y[at]), to_float(x[at])));
}

template <GateKind kKind>
__device__ float of_gate(float gate) {
  if (kKind == GateKind::kIdentity) return gate;
  return (kKind == GateKind::kSilu ? gate : 1.0f) / (1.0f + expf(-gate));
}

template <class T, GateKind kKind, int kWidth>
__global__ void __launch_bounds__(kThreads) multiply_by_gate_kernel(T* x, const T* __restrict__ gate, int64_t size) {
  ptx::follow_previous_grid();
  const int64_t at = pack_begin(kWidth);
  if (at >= size) return;
  float v[kWidth], g[kWidth];
  load_floats(x + at, v);
  load_floats(gate + at, g);
#pragma unroll
  for (int i = 0; i < kWidth; ++i) v[i] *= of_gate<kKind>(g[i]);
  store_floats(v, x + at);
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    grow_queries_kernel(T* qkv, const int32_t* __restrict__ positions, float scale, int32_t step, int64_t q_size,
                        int64_t stride) {
  ptx::follow_previous_grid();
  const int64_t row = blockIdx.x, column = int64_t{blockIdx.y} * kThreads + threadIdx.x;
  if (column >= q_size) return;
  const float factor = 1.0f + scale * log1pf(static_cast<float>((int64_t{positions[row]} + 1) / step));
  qkv[row * stride + column] = from_float<T>(factor * to_float(qkv[row * stride + column]));
}

// A block for each row and kThreads columns.
dim3 row_grid(int64_t rows, int64_t columns) {
  return dim3(static_cast<unsigned>(rows), static_cast<unsigned>(ceil_div(columns, kThreads)));
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

template <class T>
void add_columns(float* x, const T* y, int64_t stride, float factor, int64_t rows, int64_t width, cudaStream_t stream) {
  if (rows == 0) return;
  launch_ahead({row_grid(rows, width), dim3(kThreads), 0, stream}, add_columns_kernel<T>, x, y, stride, factor, width);
}

template <class T>
void add_scaled(float* residual, const T* delta, const float* factor, int64_t size, cudaStream_t stream) {
  for_packs(
      size,
      [&](auto width, dim3 grid) {
        launch_ahead({grid, dim3(kThreads), 0, stream}, add_scaled_kernel<T, width()>, residual, delta, factor, size);
      },
      residual, delta);
}

void scale(float* x, float factor, int64_t size, cudaStream_t stream) { update(x, Scale{factor}, size, stream); }

void softcap(float* x, float cap, int64_t size, cudaStream_t stream) { update(x, Softcap{cap}, size, stream); }

template <class T>
void clamp(T* x, float limit, int64_t size, cudaStream_t stream) {
  update(x, Clamp{limit}, size, stream);
}

template <class T>
void add_gated(T* x, const T* y, const float* gate, int64_t rows, int64_t width, cudaStream_t stream) {
  if (rows == 0) return;
  launch_ahead({row_grid(rows, width), dim3(kThreads), 0, stream}, add_gated_kernel<T>, x, y, gate, width);
}

template <class T>
void multiply_by_gate(GateKind kind, T* x, const T* gate, int64_t size, cudaStream_t stream) {
  const auto with = [&](auto constant) {
    for_packs(
        size,
        [&](auto width, dim3 grid) {
          launch_ahead({grid, dim3(kThreads), 0, stream}, multiply_by_gate_kernel<T, constant(), width()>, x, gate,
                       size);
        },
        x, gate);
  };
  switch (kind) {
    case GateKind::kIdentity:
      return with(std::integral_constant<GateKind, GateKind::kIdentity>());
    case GateKind::kLogistic:
      return with(std::integral_constant<GateKind, GateKind::kLogistic>());
    case GateKind::kSilu:
      return with(std::integral_constant<GateKind, GateKind::kSilu>());
  }
}

template <class T>
void grow_queries(T* qkv, const int32_t* positions, const QueryGrowth& growth, int64_t rows, int64_t q_size,
                  int64_t stride, cudaStream_t stream) {
  if (rows == 0) return;
  launch_ahead({row_grid(rows, q_size), dim3(kThreads), 0, stream}, grow_queries_kernel<T>, qkv, positions,
               static_cast<float>(growth.scale), growth.step, q_size, stride);
}

template void add(float*, const float*, float, int64_t, float*, cudaStream_t);
template void add(float*, const __nv_bfloat16*, float, int64_t, __nv_bfloat16*, cudaStream_t);
template void add(float*, const __half*, float, int64_t, __half*, cudaStream_t);
template void add_columns(float*, const float*, int64_t, float, int64_t, int64_t, cudaStream_t);
template void add_columns(float*, const __nv_bfloat16*, int64_t, float, int64_t, int64_t, cudaStream_t);
template void add_columns(float*, const __half*, int64_t, float, int64_t, int64_t, cudaStream_t);
template void add_scaled(float*, const float*, const float*, int64_t, cudaStream_t);
template void add_scaled(float*, const __nv_bfloat16*, const float*, int64_t, cudaStream_t);
template void add_scaled(float*, const __half*, const float*, int64_t, cudaStream_t);
template void clamp(float*, float, int64_t, cudaStream_t);
template void clamp(__nv_bfloat16*, float, int64_t, cudaStream_t);
template void clamp(__half*, float, int64_t, cudaStream_t);
template void add_gated(float*, const float*, const float*, int64_t, int64_t, cudaStream_t);
template void add_gated(__nv_bfloat16*, const __nv_bfloat16*, const float*, int64_t, int64_t, cudaStream_t);
template void add_gated(__half*, const __half*, const float*, int64_t, int64_t, cudaStream_t);
template void multiply_by_gate(GateKind, float*, const float*, int64_t, cudaStream_t);
template void multiply_by_gate(GateKind, __nv_bfloat16*, const __nv_bfloat16*, int64_t, cudaStream_t);
template void multiply_by_gate(GateKind, __half*, const __half*, int64_t, cudaStream_t);
template void grow_queries(float*, const int32_t*, const QueryGrowth&, int64_t, int64_t, int64_t, cudaStream_t);
template void grow_queries(__nv_bfloat16*, const int32_t*, const QueryGrowth&, int64_t, int64_t, int64_t, cudaStream_t);
template void grow_queries(__half*, const int32_t*, const QueryGrowth&, int64_t, int64_t, int64_t, cudaStream_t);

}  // namespace llmb::cuda
