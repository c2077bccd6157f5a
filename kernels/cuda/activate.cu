// Bound by bytes: 6 for each gated bf16 output. A thread computes one pack.
#include "kernels/cuda/activate.h"

#include <type_traits>

#include "base/check.h"
#include "core/types.h"
#include "kernels/cuda/activation.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/pack.h"
#include "kernels/cuda/ptx.h"

namespace llmb::cuda {

namespace {

constexpr int kThreads = 256;

struct Silu {
  __device__ float operator()(float x, float up) const { return x / (1.0f + expf(-x)) * up; }
};

struct Gelu {
  __device__ float operator()(float x, float up) const { return x * (0.5f * erfcf(-0.70710678f * x)) * up; }
};

// 1 + tanh u is 2 / (1 + e^(-2 u)), which loses nothing where u is far below 0.
struct GeluTanh {
  __device__ float operator()(float x, float up) const {
    const float u = 0.79788456f * fmaf(0.044715f * x * x, x, x);
    return x / (1.0f + expf(-2.0f * u)) * up;
  }
};

struct Tanh {
  __device__ float operator()(float x, float up) const { return tanhf(x) * up; }
};

struct Relu {
  __device__ float operator()(float x, float up) const { return (x < 0 ? 0.0f : x) * up; }
};

struct Relu2 {
  __device__ float operator()(float x, float up) const { return (x < 0 ? 0.0f : x * x) * up; }
};

struct ClampedSwiglu {
  float alpha, limit;
  __device__ float operator()(float gate, float up) const {
    gate = gate > limit ? limit : gate;
    up = up > limit ? limit : up < -limit ? -limit : up;
    return (up + 1.0f) * (gate / (1.0f + expf(-alpha * gate)));
  }
};

template <class T, int kWidth, bool kGated, class F>
__global__ void __launch_bounds__(kThreads)
    activate_kernel(const T* __restrict__ x, F f, int64_t intermediate, T* __restrict__ out) {
  ptx::follow_previous_grid();
  const int64_t row = blockIdx.x, at = (int64_t{blockIdx.y} * kThreads + threadIdx.x) * kWidth;
  if (at >= intermediate) return;
  const T* from = x + row * (kGated ? 2 : 1) * intermediate + at;
  float gate[kWidth], up[kWidth];
  load_floats(from, gate);
  if (kGated) load_floats(from + intermediate, up);
#pragma unroll
  for (int i = 0; i < kWidth; ++i) gate[i] = f(gate[i], kGated ? up[i] : 1.0f);
  store_floats(gate, out + row * intermediate + at);
}

template <class T, int kWidth, class F>
__global__ void __launch_bounds__(kThreads)
    activate_times_kernel(const T* __restrict__ x, F f, const float* __restrict__ y, int64_t y_stride, int64_t width,
                          T* __restrict__ out) {
  ptx::follow_previous_grid();
  const int64_t row = blockIdx.x, at = (int64_t{blockIdx.y} * kThreads + threadIdx.x) * kWidth;
  if (at >= width) return;
  float values[kWidth], factors[kWidth];
  load_floats(x + row * width + at, values);
  load_floats(y + row * y_stride + at, factors);
#pragma unroll
  for (int i = 0; i < kWidth; ++i) values[i] = f(values[i], factors[i]);
  store_floats(values, out + row * width + at);
}

template <class T, bool kGated, class F>
void run(const F& f, const T* x, int64_t rows, int64_t intermediate, T* out, cudaStream_t stream) {
  const auto start = [&](auto kernel, int width) {
    const auto chunks = static_cast<unsigned>(ceil_div(intermediate, int64_t{kThreads} * width));
    launch_ahead({dim3(static_cast<unsigned>(rows), chunks), dim3(kThreads), 0, stream}, kernel, x, f, intermediate,
                 out);
  };
  if (can_pack(intermediate, x, out)) start(activate_kernel<T, kPackWidth, kGated, F>, kPackWidth);
  else start(activate_kernel<T, 1, kGated, F>, 1);
}

// Calls with() of the function that has no parameters of its own.
template <class With>
void with_function(Activation kind, const With& with) {
  switch (kind) {
    case Activation::kSilu:
      return with(Silu());
    case Activation::kGelu:
      return with(Gelu());
    case Activation::kGeluTanh:
      return with(GeluTanh());
    case Activation::kRelu:
      return with(Relu());
    case Activation::kRelu2:
      return with(Relu2());
    case Activation::kTanh:
      return with(Tanh());
    case Activation::kClampedSwiglu:
      LLMB_CHECK_MSG(false, "a gate of its own");
  }
}

}  // namespace

template <class T>
void activate(const ActivationSpec& spec, const T* x, int64_t rows, int64_t intermediate, T* out, cudaStream_t stream) {
  if (rows == 0) return;
  if (spec.kind == Activation::kSilu && spec.gated) return silu_mul(x, rows, intermediate, out, stream);
  if (spec.kind == Activation::kClampedSwiglu) {
    LLMB_CHECK(spec.gated);
    return run<T, true>(ClampedSwiglu{spec.alpha, spec.limit}, x, rows, intermediate, out, stream);
  }
  with_function(spec.kind, [&](const auto& f) {
    if (spec.gated) run<T, true>(f, x, rows, intermediate, out, stream);
    else run<T, false>(f, x, rows, intermediate, out, stream);
  });
}

template <class T>
void activate_times(Activation kind, const T* x, const float* y, int64_t y_stride, int64_t rows, int64_t width, T* out,
                    cudaStream_t stream) {
  if (rows == 0) return;
  with_function(kind, [&]<class F>(const F& f) {
    const auto start = [&](auto kernel, int pack) {
      const auto chunks = static_cast<unsigned>(ceil_div(width, int64_t{kThreads} * pack));
      launch_ahead({dim3(static_cast<unsigned>(rows), chunks), dim3(kThreads), 0, stream}, kernel, x, f, y, y_stride,
                   width, out);
    };
    if (can_pack(width, x, y, out) && y_stride % kPackWidth == 0)
      start(activate_times_kernel<T, kPackWidth, F>, kPackWidth);
    else start(activate_times_kernel<T, 1, F>, 1);
  });
}

template void activate(const ActivationSpec&, const float*, int64_t, int64_t, float*, cudaStream_t);
template void activate(const ActivationSpec&, const __nv_bfloat16*, int64_t, int64_t, __nv_bfloat16*, cudaStream_t);
template void activate(const ActivationSpec&, const __half*, int64_t, int64_t, __half*, cudaStream_t);

template void activate_times(Activation, const float*, const float*, int64_t, int64_t, int64_t, float*, cudaStream_t);
template void activate_times(Activation, const __nv_bfloat16*, const float*, int64_t, int64_t, int64_t, __nv_bfloat16*,
                             cudaStream_t);
template void activate_times(Activation, const __half*, const float*, int64_t, int64_t, int64_t, __half*, cudaStream_t);

}  // namespace llmb::cuda
