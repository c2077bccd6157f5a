// Bound by bytes. A thread converts one pack; one thread the rest.
#include "kernels/cuda/convert.h"

#include "base/check.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/pack.h"

namespace llmb::cuda {

namespace {

constexpr int kThreads = 256;

template <class From, class To, int kWidth>
__global__ void __launch_bounds__(kThreads)
    convert_kernel(const From* __restrict__ from, To* __restrict__ to, int64_t n) {
  const int64_t at = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kWidth;
  if (at + kWidth <= n) {
    float values[kWidth];
    load_floats(from + at, values);
    store_floats(values, to + at);
  } else {
    for (int64_t i = at; i < n; ++i) to[i] = from_float<To>(to_float(from[i]));
  }
}

template <class From, class To>
void launch_convert(const void* from, void* to, int64_t n, cudaStream_t stream) {
  const auto* source = static_cast<const From*>(from);
  auto* target = static_cast<To*>(to);
  const auto run = [&](auto kernel, int width) {
    const dim3 grid(static_cast<unsigned>(ceil_div(n, kThreads * width)));
    launch({grid, dim3(kThreads), 0, stream}, kernel, source, target, n);
  };
  // Only the array's start matters.
  if (can_pack(0, source, target)) run(convert_kernel<From, To, kPackWidth>, kPackWidth);
  else run(convert_kernel<From, To, 1>, 1);
}

template <class From>
void launch_from(const void* from, void* to, DType to_dtype, int64_t n, cudaStream_t stream) {
  switch (to_dtype) {
    case DType::kF32:
      return launch_convert<From, float>(from, to, n, stream);
    case DType::kF16:
      return launch_convert<From, __half>(from, to, n, stream);
    case DType::kBF16:
      return launch_convert<From, __nv_bfloat16>(from, to, n, stream);
    case DType::kI8:
    case DType::kF8:
    case DType::kI4:
      LLMB_CHECK_MSG(false, "activations are floating-point numbers");
  }
}

}  // namespace

void convert(const void* from, DType from_dtype, void* to, DType to_dtype, int64_t n, cudaStream_t stream) {
  if (n == 0) return;
  switch (from_dtype) {
    case DType::kF32:
      return launch_from<float>(from, to, to_dtype, n, stream);
    case DType::kF16:
      return launch_from<__half>(from, to, to_dtype, n, stream);
    case DType::kBF16:
      return launch_from<__nv_bfloat16>(from, to, to_dtype, n, stream);
    case DType::kI8:
    case DType::kF8:
    case DType::kI4:
      LLMB_CHECK_MSG(false, "activations are floating-point numbers");
  }
}

}  // namespace llmb::cuda
