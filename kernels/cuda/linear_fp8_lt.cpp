#include "kernels/cuda/linear_fp8_lt.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <type_traits>

#include "base/log.h"
#include "kernels/cuda/linear_fp8.h"
#include "kernels/cuda/tuning.h"

namespace llmb::cuda {

namespace {

constexpr int64_t kFp8WorkspaceBytes = int64_t{32} << 20;
constexpr int64_t kRowClass = 128;    // of a tile
constexpr int64_t kFeatureStep = 16;  // cuBLASLt's, of e4m3
constexpr int64_t kCheckedRows = 16;

// Headers have names for these since CUDA 12.9.
constexpr auto kScaleModeOfA = static_cast<cublasLtMatmulDescAttributes_t>(31);
constexpr auto kScaleModeOfB = static_cast<cublasLtMatmulDescAttributes_t>(32);
constexpr int32_t kScaleEachOuter = 3;  // a scale for each row of A, or column of B

template <class Out>
constexpr cudaDataType_t kTypeOf = std::is_same_v<Out, float>    ? CUDA_R_32F
                                   : std::is_same_v<Out, __half> ? CUDA_R_16F
                                                                 : CUDA_R_16BF;

cudaDataType_t type_of(DType dtype) {
  return dtype == DType::kF32 ? CUDA_R_32F : dtype == DType::kF16 ? CUDA_R_16F : CUDA_R_16BF;
}

bool is_capturing(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(stream, &status), "cudaStreamIsCapturing");
  return status != cudaStreamCaptureStatusNone;
}

}  // namespace

// cuBLASLt is column-major: out, seen as [out_features, rows], is weight (stored [in, out], transposed) times x
// [in, rows], zeros behind the numbers included.
struct LinearFp8Lt::Call {
  Call(const Fp8View& weight, const Fp8Rows& x, int64_t rows, DType bias_dtype, cudaDataType_t type) {
    check_lt(cublas_lt().matmul_desc_create(&desc.handle, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescCreate");
    const cublasOperation_t transposed = CUBLAS_OP_T;
    set(CUBLASLT_MATMUL_DESC_TRANSA, transposed);
    set(kScaleModeOfA, kScaleEachOuter);
    set(kScaleModeOfB, kScaleEachOuter);
    set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, weight.scales);
    set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, x.scales);
    if (weight.bias != nullptr) {
      const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
      set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue);
      set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, weight.bias);
      set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, static_cast<int32_t>(type_of(bias_dtype)));
    }
    const int64_t in = weight.row_bytes();
    create(&a, CUDA_R_8F_E4M3, in, weight.out_features);
    create(&b, CUDA_R_8F_E4M3, in, rows);
    create(&d, type, weight.out_features, rows);
  }

  template <class Value>
  void set(cublasLtMatmulDescAttributes_t attribute, const Value& value) {
    check_lt(cublas_lt().matmul_desc_set_attribute(desc.handle, attribute, &value, sizeof value),
             "cublasLtMatmulDescSetAttribute");
  }
  using Layout = CublasLtHandle<cublasLtMatrixLayout_t, &CublasLt::matrix_layout_destroy>;
  static void create(Layout* layout, cudaDataType_t type, int64_t rows, int64_t cols) {
    check_lt(cublas_lt().matrix_layout_create(&layout->handle, type, static_cast<uint64_t>(rows),
                                              static_cast<uint64_t>(cols), rows),
             "cublasLtMatrixLayoutCreate");
  }

  // The library's first choice.
  cublasLtMatmulAlgo_t choose(cublasLtHandle_t handle, cublasLtMatmulPreference_t preference) const {
    cublasLtMatmulHeuristicResult_t result;
    int found = 0;
    check_lt(cublas_lt().matmul_algo_get_heuristic(handle, desc.handle, a.handle, b.handle, d.handle, d.handle,
                                                   preference, 1, &result, &found),
             "cublasLtMatmulAlgoGetHeuristic");
    if (found == 0 || result.state != CUBLAS_STATUS_SUCCESS)
      throw CudaError(cudaErrorNotSupported, "cuBLASLt has no algorithm");
    return result.algo;
  }

  void run(cublasLtHandle_t handle, const cublasLtMatmulAlgo_t& algo, const Fp8View& weight, const Fp8Rows& x,
           void* out, const DeviceMemory& workspace, cudaStream_t stream) const {
    const float one = 1, zero = 0;
    check_lt(
        cublas_lt().matmul(handle, desc.handle, &one, weight.weight, a.handle, x.values, b.handle, &zero, out, d.handle,
                           out, d.handle, &algo, workspace.data(), static_cast<size_t>(workspace.bytes()), stream),
        "cublasLtMatmul");
  }

  CublasLtHandle<cublasLtMatmulDesc_t, &CublasLt::matmul_desc_destroy> desc;
  Layout a, b, d;
};

LinearFp8Lt::LinearFp8Lt() : workspace_(kFp8WorkspaceBytes), differences_(sizeof(uint32_t)) {
  check_lt(cublas_lt().create(&library_.handle), "cublasLtCreate");
  check_lt(cublas_lt().matmul_preference_create(&preference_.handle), "cublasLtMatmulPreferenceCreate");
  const uint64_t bytes = kFp8WorkspaceBytes;
  check_lt(cublas_lt().matmul_preference_set_attribute(preference_.handle, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                       &bytes, sizeof bytes),
           "cublasLtMatmulPreferenceSetAttribute");
}

bool LinearFp8Lt::may_take(const Fp8View& weight, int64_t rows) {
  return rows > tuning::kMaxFp8FewRows && weight.out_features > 0 && weight.out_features % kFeatureStep == 0;
}

template <class Out>
bool LinearFp8Lt::run(const Fp8View& weight, const Fp8Rows& x, int64_t rows, DType bias_dtype, Out* out,
                      cudaStream_t stream) {
  if (!may_take(weight, rows) || reinterpret_cast<uintptr_t>(out) % 16 != 0) return false;
  const Key key{weight.out_features, weight.in_features, ceil_div(rows, kRowClass), kTypeOf<Out>,
                weight.bias != nullptr};
  const auto known = algorithms_.find(key);
  if (known != algorithms_.end() && !known->second) return false;
  if (known == algorithms_.end() && is_capturing(stream)) return false;
  std::optional<cublasLtMatmulAlgo_t> algorithm;
  try {
    const Call call(weight, x, rows, bias_dtype, kTypeOf<Out>);
    const cublasLtMatmulAlgo_t algo =
        known != algorithms_.end() ? *known->second : call.choose(library_.handle, preference_.handle);
    call.run(library_.handle, algo, weight, x, out, workspace_, stream);
    if (known != algorithms_.end()) return true;
    auto* const differences = differences_.data<uint32_t>();
    check(cudaMemsetAsync(differences, 0, sizeof(uint32_t), stream), "cudaMemsetAsync");
    count_fp8_differences(weight, x, std::min(rows, kCheckedRows), bias_dtype, out, differences, stream);
    uint32_t count = 0;
    check(cudaMemcpyAsync(&count, differences, sizeof count, cudaMemcpyDeviceToHost, stream), "cudaMemcpyAsync");
    check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    if (count != 0) throw CudaError(cudaErrorUnknown, std::to_string(count) + " outputs of cuBLASLt are off");
    algorithm = algo;
  } catch (const CudaError& e) {
    if (known != algorithms_.end()) throw;
    const bool is_first = problem_.empty();
    problem_ = "fp8 products of " + std::to_string(rows) + " rows with a " + std::to_string(weight.out_features) +
               " x " + std::to_string(weight.in_features) + " matrix take our own kernel: " + e.what();
    if (is_first) log_warning(problem_);
  }
  algorithms_.emplace(key, algorithm);
  return algorithm.has_value();
}

template bool LinearFp8Lt::run(const Fp8View&, const Fp8Rows&, int64_t, DType, float*, cudaStream_t);
template bool LinearFp8Lt::run(const Fp8View&, const Fp8Rows&, int64_t, DType, __nv_bfloat16*, cudaStream_t);
template bool LinearFp8Lt::run(const Fp8View&, const Fp8Rows&, int64_t, DType, __half*, cudaStream_t);

}  // namespace llmb::cuda
