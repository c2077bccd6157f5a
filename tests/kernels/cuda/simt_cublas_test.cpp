// The host SIMT layer's cuBLASLt: products as `linear` asks for them.
#ifdef LLMB_SIMT
#include <cublasLt.h>
#include <doctest/doctest.h>

#include <vector>

#include "kernels/cuda/device.h"
#include "kernels/cuda/memory.h"
#include "tests/support/device_array.h"

namespace llmb::cuda {

namespace {

using test::DeviceArray;

constexpr uint64_t kRows = 3, kIn = 40, kOut = 5;

template <class T>
constexpr cudaDataType kType = std::is_same_v<T, float>           ? CUDA_R_32F
                               : std::is_same_v<T, __nv_bfloat16> ? CUDA_R_16BF
                                                                  : CUDA_R_16F;

// Small whole numbers: every order of summation gives the same sum.
template <class T>
std::vector<T> numbers(size_t count, int period) {
  std::vector<T> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = from_float<T>(static_cast<float>(static_cast<int>(i) % period - 3));
  return values;
}

// out [rows, out] = x [rows, in] * weight [out, in]^T (+ bias) (+ beta * out)
template <class T, class Out>
struct Linear {
  DeviceArray<T> x{numbers<T>(kRows * kIn, 11)}, weight{numbers<T>(kOut * kIn, 7)}, bias{numbers<T>(kOut, 5)};
  DeviceArray<Out> out{numbers<Out>(kRows * kOut, 4)};
  DeviceArray<float> workspace{4 * kRows * kOut};
  cublasLtHandle_t handle = nullptr;
  cublasLtMatmulDesc_t desc = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, d = nullptr;

  explicit Linear(bool with_bias) {
    cublasLtCreate(&handle);
    cublasLtMatmulDescCreate(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    const cublasOperation_t transposed = CUBLAS_OP_T;
    cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof(transposed));
    if (with_bias) {
      const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
      const T* const pointer = bias.data();
      const cudaDataType type = kType<T>;
      cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof(epilogue));
      cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &pointer, sizeof(pointer));
      cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &type, sizeof(type));
    }
    cublasLtMatrixLayoutCreate(&a, kType<T>, kIn, kOut, kIn);
    cublasLtMatrixLayoutCreate(&b, kType<T>, kIn, kRows, kIn);
    cublasLtMatrixLayoutCreate(&d, kType<Out>, kOut, kRows, kOut);
  }
  ~Linear() {
    cublasLtMatrixLayoutDestroy(a);
    cublasLtMatrixLayoutDestroy(b);
    cublasLtMatrixLayoutDestroy(d);
    cublasLtMatmulDescDestroy(desc);
    cublasLtDestroy(handle);
  }
  cublasStatus_t run(float beta, const cublasLtMatmulAlgo_t* algo, size_t workspace_bytes, cudaStream_t stream) {
    const float alpha = 1;
    return cublasLtMatmul(handle, desc, &alpha, weight.data(), a, x.data(), b, &beta, out.data(), d, out.data(), d,
                          algo, workspace.data(), workspace_bytes, stream);
  }
  std::vector<float> expected(bool with_bias, float beta) const {
    const auto xs = x.download(), weights = weight.download(), biases = bias.download();
    const auto before = out.download();
    std::vector<float> result;
    for (size_t row = 0; row < kRows; ++row) {
      for (size_t i = 0; i < kOut; ++i) {
        float sum = beta * to_float(before[row * kOut + i]) + (with_bias ? to_float(biases[i]) : 0);
        for (size_t k = 0; k < kIn; ++k) sum += to_float(xs[row * kIn + k]) * to_float(weights[i * kIn + k]);
        result.push_back(to_float(from_float<Out>(sum)));
      }
    }
    return result;
  }
};

template <class T, class Out>
void check_linear() {
  for (const bool with_bias : {false, true}) {
    for (const float beta : {0.0f, 1.0f}) {
      Linear<T, Out> linear(with_bias);
      const Stream stream;
      const std::vector<float> expected = linear.expected(with_bias, beta);
      CHECK(linear.run(beta, nullptr, 0, stream.get()) == CUBLAS_STATUS_SUCCESS);
      CHECK(linear.out.download_floats() == expected);
      CHECK(linear.out.check_guards());
    }
  }
}

TEST_CASE("out = x * weight^T, with bias and with what was there, for all types") {
  check_linear<float, float>();
  check_linear<__nv_bfloat16, __nv_bfloat16>();
  check_linear<__nv_bfloat16, float>();
  check_linear<__half, __half>();
  check_linear<__half, float>();
}

TEST_CASE("the first algorithm offered splits small batches' sums, unless the workspace or the mask forbids it") {
  Linear<float, float> linear(false);
  cublasLtMatmulPreference_t preference = nullptr;
  cublasLtMatmulPreferenceCreate(&preference);
  cublasLtMatmulHeuristicResult_t results[4];
  int num_results = 0;
  const auto first_split = [&] {
    CHECK(cublasLtMatmulAlgoGetHeuristic(linear.handle, linear.desc, linear.a, linear.b, linear.d, linear.d, preference,
                                         4, results, &num_results) == CUBLAS_STATUS_SUCCESS);
    int32_t split = 0;
    cublasLtMatmulAlgoConfigGetAttribute(&results[0].algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &split, sizeof(split),
                                         nullptr);
    return split;
  };
  CHECK(first_split() == 1);  // no workspace
  const uint64_t bytes = 4 * kRows * kOut * sizeof(float);
  cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof(bytes));
  CHECK(first_split() == 4);
  CHECK(num_results == 2);
  CHECK(results[0].workspaceSize == bytes);
  const std::vector<float> expected = linear.expected(false, 0);
  CHECK(linear.run(0, &results[0].algo, bytes - 1, nullptr) == CUBLAS_STATUS_INVALID_VALUE);
  CHECK(linear.run(0, &results[0].algo, bytes, nullptr) == CUBLAS_STATUS_SUCCESS);
  CHECK(linear.out.download_floats() == expected);
  CHECK(linear.workspace.check_guards());
  const uint32_t mask = CUBLASLT_REDUCTION_SCHEME_NONE;
  cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &mask, sizeof(mask));
  CHECK(first_split() == 1);
  cublasLtMatmulPreferenceDestroy(preference);
}

TEST_CASE("shapes that do not fit and host memory are refused") {
  Linear<float, float> linear(false);
  cublasLtMatrixLayout_t other = nullptr;
  cublasLtMatrixLayoutCreate(&other, CUDA_R_32F, kOut, kRows + 1, kOut);
  const float one = 1, zero = 0;
  std::vector<float> host(kRows * kOut);
  CHECK(cublasLtMatmul(linear.handle, linear.desc, &one, linear.weight.data(), linear.a, linear.x.data(), linear.b,
                       &zero, linear.out.data(), other, linear.out.data(), other, nullptr, nullptr, 0,
                       nullptr) == CUBLAS_STATUS_INVALID_VALUE);
  CHECK(cublasLtMatmul(linear.handle, linear.desc, &one, linear.weight.data(), linear.a, linear.x.data(), linear.b,
                       &zero, host.data(), linear.d, host.data(), linear.d, nullptr, nullptr, 0,
                       nullptr) == CUBLAS_STATUS_INVALID_VALUE);
  cublasLtMatrixLayoutDestroy(other);
}

}  // namespace

}  // namespace llmb::cuda
#endif
