// The one header of every kernel file: CUDA's headers, checked calls and launches, dynamic shared memory and
// conversions. Host functions may be called from any thread.
//
// 1. launch() and launch_ahead() are the only ways to start a kernel: every launch is checked.
// 2. dynamic_shared() is the only way to dynamic shared memory.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <tuple>
#include <type_traits>
#include <utility>

#include "kernels/cuda/error.h"
#ifdef LLMB_SIMT
#include "kernels/simt/launch.h"
#else
#include "kernels/cuda/launch_ahead.h"
#endif

namespace llmb::cuda {

struct LaunchShape {
  dim3 grid;
  dim3 block;
  size_t shared_bytes = 0;  // dynamic
  cudaStream_t stream = nullptr;
};

// More dynamic shared memory than this has to be asked for, kernel by kernel.
inline constexpr size_t kDefaultSharedBytes = 48 * 1024;

namespace detail {

template <class... P, class... A>
void launch(bool ahead, const LaunchShape& shape, void (*kernel)(P...), A&&... arguments) {
  static_assert(sizeof...(P) == sizeof...(A));
  std::tuple<std::remove_cv_t<P>...> values(std::forward<A>(arguments)...);
  const auto* const function = reinterpret_cast<const void*>(kernel);
  if (shape.shared_bytes > kDefaultSharedBytes) {
    check(cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(shape.shared_bytes)),
          "cudaFuncSetAttribute");
  }
#ifdef LLMB_SIMT
  check(simt::launch_kernel(function, shape.grid, shape.block, shape.shared_bytes, shape.stream,
                            [ahead, kernel, values] {
                              if (ahead) ::llmb::simt::starts_ahead();
                              std::apply(kernel, values);
                            }),
        "launch");
#else
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  const unsigned num_attributes = ahead && can_launch_ahead(function) ? 1 : 0;
  const cudaLaunchConfig_t config{shape.grid,   shape.block, shape.shared_bytes,
                                  shape.stream, &attribute,  num_attributes};
  std::apply(
      [&](auto&... value) {
        void* pointers[] = {static_cast<void*>(&value)..., nullptr};
        check(cudaLaunchKernelExC(&config, function, pointers), "cudaLaunchKernelExC");
      },
      values);
#endif
}

}  // namespace detail

// Starts `kernel` on shape.stream. Throws CudaError where the launch is refused.
template <class... P, class... A>
void launch(const LaunchShape& shape, void (*kernel)(P...), A&&... arguments) {
  detail::launch(false, shape, kernel, std::forward<A>(arguments)...);
}

// The same, but where the device can, the kernel starts while the one before it on the stream still runs, if that one
// has called ptx::launch_next_grid(). REQUIRES: it calls ptx::wait_for_previous_grid() before it reads or writes
// anything that another kernel writes or reads.
template <class... P, class... A>
void launch_ahead(const LaunchShape& shape, void (*kernel)(P...), A&&... arguments) {
  detail::launch(true, shape, kernel, std::forward<A>(arguments)...);
}

#if defined(LLMB_SIMT) || defined(__CUDACC__)

// The block's dynamic shared memory, aligned to 1024 bytes.
template <class T>
__device__ __forceinline__ T* dynamic_shared() {
#ifdef LLMB_SIMT
  return static_cast<T*>(simt::dynamic_shared_memory());
#else
  extern __shared__ __align__(1024) unsigned char llmb_dynamic_shared[];
  return reinterpret_cast<T*>(llmb_dynamic_shared);
#endif
}

#endif

// ---- element types ------------------------------------------------------------------------------------------------

__host__ __device__ inline float to_float(float value) { return value; }
__host__ __device__ inline float to_float(__nv_bfloat16 value) { return __bfloat162float(value); }
__host__ __device__ inline float to_float(__half value) { return __half2float(value); }

// Rounds to nearest even.
template <class T>
__host__ __device__ inline T from_float(float value) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    return __float2bfloat16_rn(value);
  } else if constexpr (std::is_same_v<T, __half>) {
    return __float2half_rn(value);
  } else {
    static_assert(std::is_same_v<T, float>);
    return value;
  }
}

}  // namespace llmb::cuda
