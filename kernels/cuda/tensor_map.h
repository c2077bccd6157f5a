// Tensor maps: what a tensor copy of Hopper (ptx::tma_load_*) has to know about a tensor in device memory.
// Thread-safe.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <initializer_list>
#include <type_traits>

namespace llmb::cuda {

struct TensorMapShape {
  std::initializer_list<uint64_t> sizes;          // [rank] in elements, innermost first; 1 <= rank <= 4
  std::initializer_list<uint64_t> strides_bytes;  // [rank - 1] of the second dimension and on, multiples of 16
  std::initializer_list<uint32_t> box;            // [rank] what one copy brings; with the swizzle box[0] is 128 bytes
  bool swizzle = true;                            // 128-byte rows with 16-byte pieces exchanged, as wgmma reads them
};

// REQUIRES: `base`, in device memory, is aligned to 16 bytes. Elements outside the tensor are copied as zeros. Throws
// CudaError where the driver refuses the shape.
CUtensorMap make_tensor_map(CUtensorMapDataType type, const void* base, const TensorMapShape& shape);

template <class T>
CUtensorMap make_tensor_map(const T* base, const TensorMapShape& shape) {
  return make_tensor_map(std::is_same_v<T, __nv_bfloat16> ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                         : std::is_same_v<T, __half>      ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                                          : CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
                         base, shape);
}

}  // namespace llmb::cuda
