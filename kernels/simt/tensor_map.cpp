#include "kernels/simt/tensor_map.h"

#include <cstring>

#include "cudaTypedefs.h"
#include "kernels/simt/device_state.h"
#include "kernels/simt/green_context.h"
#include "kernels/simt/stream.h"

namespace llmb::simt {

namespace {

uint32_t element_bytes(CUtensorMapDataType type) {
  switch (type) {
    case CU_TENSOR_MAP_DATA_TYPE_UINT8:
      return 1;
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT16:
    case CU_TENSOR_MAP_DATA_TYPE_BFLOAT16:
      return 2;
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT32:
      return 4;
  }
  return 0;
}

// The limits are those of the driver API's page on cuTensorMapEncodeTiled; a swizzled row narrower than 128 bytes,
// which the driver allows, is not emulated.
bool is_valid(const TensorMap& map, const cuuint64_t* sizes, const cuuint32_t* box, const cuuint32_t* element_strides) {
  if (map.rank == 0 || map.rank > kMaxTensorRank || map.element_bytes == 0) return false;
  if (reinterpret_cast<uintptr_t>(map.base) % 16 != 0) return false;
  uint64_t extent = map.element_bytes;
  for (uint32_t i = 0; i < map.rank; ++i) {
    if (sizes[i] == 0 || sizes[i] > uint64_t{1} << 32 || box[i] == 0 || box[i] > 256 || element_strides[i] != 1)
      return false;
    const uint64_t stride = i == 0 ? map.element_bytes : map.strides_bytes[i - 1];
    if (i > 0 && (stride % 16 != 0 || stride >= uint64_t{1} << 40)) return false;
    extent += (sizes[i] - 1) * stride;
  }
  const uint32_t row_bytes = box[0] * map.element_bytes;
  if (row_bytes % 16 != 0 || (map.swizzle_128 && row_bytes != 128)) return false;
  return in_device_memory(map.base, extent);
}

CUresult encode_tiled(CUtensorMap* result, CUtensorMapDataType type, cuuint32_t rank, void* base,
                      const cuuint64_t* sizes, const cuuint64_t* strides, const cuuint32_t* box,
                      const cuuint32_t* element_strides, CUtensorMapInterleave, CUtensorMapSwizzle swizzle,
                      CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  const auto lock = lock_state();
  if (rank == 0 || rank > kMaxTensorRank) return CUDA_ERROR_INVALID_VALUE;
  TensorMap map;
  map.base = base;
  map.rank = static_cast<uint8_t>(rank);
  map.element_bytes = static_cast<uint8_t>(element_bytes(type));
  map.swizzle_128 = swizzle == CU_TENSOR_MAP_SWIZZLE_128B;
  for (uint32_t i = 0; i < rank; ++i) {
    map.sizes[i] = static_cast<uint32_t>(sizes[i]);
    map.box[i] = static_cast<uint16_t>(box[i]);
    if (i > 0) map.strides_bytes[i - 1] = strides[i - 1];
  }
  if (!is_valid(map, sizes, box, element_strides)) return CUDA_ERROR_INVALID_VALUE;
  *result = {};
  std::memcpy(result->opaque, &map, sizeof(map));
  return CUDA_SUCCESS;
}

}  // namespace

}  // namespace llmb::simt

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  const llmb::simt::Call call;
  if (call.injected() != cudaSuccess) return llmb::simt::Call::result(call.injected());
  *function = std::strcmp(symbol, "cuTensorMapEncodeTiled") == 0 ? reinterpret_cast<void*>(&llmb::simt::encode_tiled)
                                                                 : llmb::simt::green_context_entry(symbol);
  const bool known = *function != nullptr;
  if (result != nullptr) *result = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return llmb::simt::Call::result(known ? cudaSuccess : cudaErrorSymbolNotFound);
}
