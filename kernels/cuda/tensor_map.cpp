#include "kernels/cuda/tensor_map.h"

#include <cudaTypedefs.h>

#include "base/check.h"
#include "kernels/cuda/error.h"

namespace llmb::cuda {

namespace {

// From the driver itself, so that the program does not need it in order to start.
PFN_cuTensorMapEncodeTiled_v12000 encoder() {
  constexpr unsigned kVersion = 12000;
  void* function = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
  check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, kVersion, cudaEnableDefault, &result),
        "cudaGetDriverEntryPointByVersion");
  if (result != cudaDriverEntryPointSuccess) throw CudaError(cudaErrorSymbolNotFound, "cuTensorMapEncodeTiled");
  return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(function);
}

}  // namespace

CUtensorMap make_tensor_map(CUtensorMapDataType type, const void* base, const TensorMapShape& shape) {
  static const PFN_cuTensorMapEncodeTiled_v12000 encode = encoder();
  constexpr cuuint32_t kOnes[] = {1, 1, 1, 1};
  const size_t rank = shape.sizes.size();
  LLMB_CHECK(rank >= 1 && rank <= std::size(kOnes));
  LLMB_CHECK(shape.strides_bytes.size() == rank - 1 && shape.box.size() == rank);
  CUtensorMap map;
  const CUresult result =
      encode(&map, type, static_cast<cuuint32_t>(rank), const_cast<void*>(base), shape.sizes.begin(),
             shape.strides_bytes.begin(), shape.box.begin(), kOnes, CU_TENSOR_MAP_INTERLEAVE_NONE,
             shape.swizzle ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) throw CudaError(cudaErrorInvalidValue, "cuTensorMapEncodeTiled");
  return map;
}

}  // namespace llmb::cuda
