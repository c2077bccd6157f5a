// NCCL, loaded when ranks first ask for it, so that programs start, and compile, on machines that do not have it. The
// declarations are those of its interface since version 2.18, of which later versions of NCCL 2 keep every part.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <string>

#include "kernels/cuda/error.h"

namespace llmb::cuda {

inline constexpr int kOldestNccl = 21800;  // 2.18

using NcclResult = int;  // an enumeration of C
using NcclComm = void*;
enum class NcclType : int { kByte = 0, kF16 = 6, kF32 = 7, kBF16 = 9 };
enum class NcclSum : int { kSum = 0 };

inline constexpr NcclResult kNcclSuccess = 0, kNcclCudaError = 1, kNcclInProgress = 7;

// Names a communicator that ranks make together: the first rank makes it, the others are given its bytes.
struct NcclUniqueId {
  char bytes[128];
};

// The functions that are used, bare of their prefix. Counts are of elements.
struct Nccl {
  NcclResult (*get_version)(int* version);
  const char* (*get_error_string)(NcclResult);
  NcclResult (*get_unique_id)(NcclUniqueId*);
  NcclResult (*comm_init_rank)(NcclComm*, int size, NcclUniqueId, int rank);
  NcclResult (*comm_destroy)(NcclComm);
  NcclResult (*comm_abort)(NcclComm);
  NcclResult (*comm_get_async_error)(NcclComm, NcclResult*);
  NcclResult (*all_reduce)(const void* from, void* to, size_t count, NcclType, NcclSum, NcclComm, cudaStream_t);
  NcclResult (*all_gather)(const void* from, void* to, size_t count, NcclType, NcclComm, cudaStream_t);
  NcclResult (*broadcast)(const void* from, void* to, size_t count, NcclType, int root, NcclComm, cudaStream_t);
  NcclResult (*send)(const void* from, size_t count, NcclType, int peer, NcclComm, cudaStream_t);
  NcclResult (*receive)(void* to, size_t count, NcclType, int peer, NcclComm, cudaStream_t);
  // Messages between these two calls go both ways at a time.
  NcclResult (*group_start)();
  NcclResult (*group_end)();
};

// Fills `out` from a shared library; it stays loaded. Or says in one line why not, and what to do.
std::string load_nccl(const char* file, Nccl* out);

// Why NCCL of this version cannot be used, in one line; empty: it can.
std::string nccl_version_problem(int version);

// Why nccl() cannot work, in one line; empty: it can. Thread-safe.
const std::string& nccl_problem();

// Thread-safe. Throws CudaError where there is a problem.
const Nccl& nccl();

inline void check_nccl(NcclResult result, const char* what) {
  if (result != kNcclSuccess)
    throw CudaError(cudaErrorUnknown, std::string(what) + " returned \"" + nccl().get_error_string(result) + "\"");
}

}  // namespace llmb::cuda
