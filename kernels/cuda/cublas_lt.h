// cuBLASLt, loaded when it is first asked for, so that a program with CUDA starts on machines that do not have it.
#pragma once

#include <cublasLt.h>

#include <string>

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

}  // namespace llmb::cuda
