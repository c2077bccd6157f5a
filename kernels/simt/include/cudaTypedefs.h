// Stand-in for CUDA's header of the same name.
#pragma once

#include "cuda.h"

using PFN_cuTensorMapEncodeTiled_v12000 = CUresult (*)(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank,
                                                       void* base, const cuuint64_t* sizes, const cuuint64_t* strides,
                                                       const cuuint32_t* box, const cuuint32_t* element_strides,
                                                       CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                                       CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill);

// Green contexts: streams with multiprocessors of their own.
struct CUstream_st;
using CUstream = CUstream_st*;
using CUdevice = int;
using CUgreenCtx = struct CUgreenCtx_st*;
using CUdevResourceDesc = struct CUdevResourceDesc_st*;

enum CUdevResourceType : int {
  CU_DEV_RESOURCE_TYPE_INVALID = 0,
  CU_DEV_RESOURCE_TYPE_SM = 1,
};
struct CUdevSmResource {
  unsigned smCount;
  unsigned minSmPartitionSize;
  unsigned smCoscheduledAlignment;
};
struct CUdevResource {
  CUdevResourceType type;
  CUdevSmResource sm;
};
inline constexpr unsigned CU_GREEN_CTX_DEFAULT_STREAM = 1;
inline constexpr unsigned CU_STREAM_NON_BLOCKING = 1;

using PFN_cuDeviceGetDevResource_v12040 = CUresult (*)(CUdevice, CUdevResource*, CUdevResourceType);
using PFN_cuDevSmResourceSplitByCount_v12040 = CUresult (*)(CUdevResource* result, unsigned* num_groups,
                                                            const CUdevResource* input, CUdevResource* remaining,
                                                            unsigned flags, unsigned min_count);
using PFN_cuDevResourceGenerateDesc_v12040 = CUresult (*)(CUdevResourceDesc*, CUdevResource*, unsigned count);
using PFN_cuGreenCtxCreate_v12040 = CUresult (*)(CUgreenCtx*, CUdevResourceDesc, CUdevice, unsigned flags);
using PFN_cuGreenCtxDestroy_v12040 = CUresult (*)(CUgreenCtx);
using PFN_cuGreenCtxStreamCreate_v12050 = CUresult (*)(CUstream*, CUgreenCtx, unsigned flags, int priority);
