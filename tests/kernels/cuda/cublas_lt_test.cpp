#include "kernels/cuda/cublas_lt.h"

#include <doctest/doctest.h>

namespace llmb::cuda {

TEST_CASE("cuBLASLt is there, each function of it") {
  CHECK(cublas_lt_problem() == "");
  CHECK(cublas_lt().get_status_name(CUBLAS_STATUS_SUCCESS) != nullptr);
  const bool has_matmul = cublas_lt().matmul != nullptr;
  CHECK(has_matmul);
}

TEST_CASE("a library that is missing, or is another one, is named in one line") {
  CublasLt table{};
  const std::string missing = load_cublas_lt("libcublasLt-that-nobody-has.so.0", &table);
  CHECK(missing.find("libcublasLt-that-nobody-has.so.0") != std::string::npos);
  CHECK(missing.find('\n') == std::string::npos);
  const std::string other = load_cublas_lt("libm.so.6", &table);
  CHECK(other.find("libm.so.6 has no cublasLtGetStatusName") != std::string::npos);
}

}  // namespace llmb::cuda
