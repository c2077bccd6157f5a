// cuBLASLt, loaded when it is first asked for, so that a program with CUDA starts on machines that do not have it.
#pragma once

#include <cublasLt.h>

#include <string>

#include "kernels/cuda/error.h"

namespace llmb::cuda {

// The functions that are used, bare of their prefix.
struct CublasLt {
  decltype(&cublasLtGetStatusName) get_status_name;
  decltype(&cublasLtCreate) create;
  decltype(&cublasLtDestroy) destroy;
  decltype(&cublasLtMatmulDescCreate) matmul_desc_create;
  decltype(&cublasLtMatmulDescDestroy) matmul_desc_destroy;
  decltype(&cublasLtMatmulDescSetAttribute) matmul_desc_set_attribute;
  decltype(&cublasLtMatrixLayoutCreate) matrix_layout_create;
  decltype(&cublasLtMatrixLayoutDestroy) matrix_layout_destroy;
  decltype(&cublasLtMatmulPreferenceCreate) matmul_preference_create;
  decltype(&cublasLtMatmulPreferenceDestroy) matmul_preference_destroy;
  decltype(&cublasLtMatmulPreferenceSetAttribute) matmul_preference_set_attribute;
  decltype(&cublasLtMatmulAlgoGetHeuristic) matmul_algo_get_heuristic;
  decltype(&cublasLtMatmul) matmul;
};

// Fills `out` from a shared library; it stays loaded. Or says in one line why not.
std::string load_cublas_lt(const char* file, CublasLt* out);

// The reason why cublas_lt() cannot work, in one line; empty: it can. Thread-safe.
const std::string& cublas_lt_problem();

// Thread-safe. Throws CudaError where there is a problem.
const CublasLt& cublas_lt();

inline void check_lt(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  const cudaError_t code = status == CUBLAS_STATUS_ALLOC_FAILED ? cudaErrorMemoryAllocation : cudaErrorUnknown;
  throw CudaError(code, std::string(what) + " returned " + cublas_lt().get_status_name(status));
}

// Owns what a function of the library made, if anything.
template <typename Handle, cublasStatus_t (*CublasLt::*kDestroy)(Handle)>
struct CublasLtHandle {
  CublasLtHandle() = default;
  CublasLtHandle(const CublasLtHandle&) = delete;
  CublasLtHandle& operator=(const CublasLtHandle&) = delete;
  ~CublasLtHandle() {
    if (handle != nullptr) (cublas_lt().*kDestroy)(handle);
  }
  Handle handle = nullptr;
};

}  // namespace llmb::cuda
