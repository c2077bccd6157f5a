#include "kernels/cuda/linear_int8_lt.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "base/log.h"
#include "core/types.h"
#include "kernels/cuda/tuning.h"

namespace llmb::cuda {

namespace {

constexpr int64_t kInt8WorkspaceBytes = int64_t{32} << 20;
constexpr int64_t kRowStep = 128;  // of a tile

bool is_aligned(const void* address) { return reinterpret_cast<uintptr_t>(address) % 16 == 0; }

bool is_captured(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(stream, &status), "cudaStreamIsCapturing");
  return status != cudaStreamCaptureStatusNone;
}

}  // namespace

// cuBLASLt is column-major: sums, seen as [out_features, rows], are weight (stored [in, out], transposed) times x
// [in, rows], rows of zeros behind the numbers included.
struct LinearInt8Lt::Call {
  Call(const Int8View& weight, int64_t rows) {
    check_lt(cublas_lt().matmul_desc_create(&desc.handle, CUBLAS_COMPUTE_32I, CUDA_R_32I), "cublasLtMatmulDescCreate");
    const cublasOperation_t transposed = CUBLAS_OP_T;
    check_lt(
        cublas_lt().matmul_desc_set_attribute(desc.handle, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed),
        "cublasLtMatmulDescSetAttribute");
    const int64_t in = weight.row_bytes(), out = weight.out_features;
    create(&a, CUDA_R_8I, in, out);
    create(&b, CUDA_R_8I, in, rows);
    create(&d, CUDA_R_32I, out, rows);
  }

  using Layout = CublasLtHandle<cublasLtMatrixLayout_t, &CublasLt::matrix_layout_destroy>;
  static void create(Layout* layout, cudaDataType_t type, int64_t rows, int64_t cols) {
    check_lt(cublas_lt().matrix_layout_create(&layout->handle, type, static_cast<uint64_t>(rows),
                                              static_cast<uint64_t>(cols), rows),
             "cublasLtMatrixLayoutCreate");
  }

  void run(cublasLtHandle_t handle, const cublasLtMatmulAlgo_t& algo, const int8_t* weight, const int8_t* x,
           int32_t* sums, const DeviceMemory& workspace, cudaStream_t stream) const {
    const int32_t one = 1, zero = 0;
    check_lt(cublas_lt().matmul(handle, desc.handle, &one, weight, a.handle, x, b.handle, &zero, sums, d.handle, sums,
                                d.handle, &algo, workspace.data(), static_cast<size_t>(workspace.bytes()), stream),
             "cublasLtMatmul");
  }

  CublasLtHandle<cublasLtMatmulDesc_t, &CublasLt::matmul_desc_destroy> desc;
  Layout a, b, d;
};

LinearInt8Lt::LinearInt8Lt(int64_t max_sums)
    : max_sums_(max_sums),
      sums_(max_sums * int64_t{sizeof(int32_t)}),
      workspace_(kInt8WorkspaceBytes),
      differences_(sizeof(uint32_t)) {
  check_lt(cublas_lt().create(&library_.handle), "cublasLtCreate");
  check_lt(cublas_lt().matmul_preference_create(&preference_.handle), "cublasLtMatmulPreferenceCreate");
  const uint64_t bytes = kInt8WorkspaceBytes;
  check_lt(cublas_lt().matmul_preference_set_attribute(preference_.handle, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                       &bytes, sizeof bytes),
           "cublasLtMatmulPreferenceSetAttribute");
}

int64_t LinearInt8Lt::rows_at_a_time(const Int8View& weight) const {
  if (weight.out_features == 0 || weight.out_features % kScaledFeatures != 0) return 0;
  return max_sums_ / weight.out_features / kRowStep * kRowStep;
}

// The first algorithm of the library's choice, if its sums are ours.
cublasLtMatmulAlgo_t LinearInt8Lt::checked(const Call& call, const Int8View& weight, const Int8Rows& x, int64_t rows,
                                           cudaStream_t stream) {
  cublasLtMatmulHeuristicResult_t result;
  int found = 0;
  check_lt(cublas_lt().matmul_algo_get_heuristic(library_.handle, call.desc.handle, call.a.handle, call.b.handle,
                                                 call.d.handle, call.d.handle, preference_.handle, 1, &result, &found),
           "cublasLtMatmulAlgoGetHeuristic");
  if (found == 0 || result.state != CUBLAS_STATUS_SUCCESS)
    throw CudaError(cudaErrorNotSupported, "cuBLASLt has no algorithm");
  auto* const differences = differences_.data<uint32_t>();
  check(cudaMemsetAsync(differences, 0, sizeof(uint32_t), stream), "cudaMemsetAsync");
  call.run(library_.handle, result.algo, weight.weight, x.values, sums_.data<int32_t>(), workspace_, stream);
  count_int8_differences(weight, x, rows, sums_.data<int32_t>(), differences, stream);
  uint32_t count = 0;
  check(cudaMemcpyAsync(&count, differences, sizeof count, cudaMemcpyDeviceToHost, stream), "cudaMemcpyAsync");
  check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  if (count != 0) throw CudaError(cudaErrorUnknown, std::to_string(count) + " sums of cuBLASLt are wrong");
  return result.algo;
}

std::optional<cublasLtMatmulAlgo_t> LinearInt8Lt::algorithm(const Int8View& weight, const Int8Rows& x, int64_t rows,
                                                            cudaStream_t stream) {
  const Key key{weight.out_features, weight.in_features, ceil_div(rows, kRowStep)};
  if (const auto at = algorithms_.find(key); at != algorithms_.end()) return at->second;
  if (is_captured(stream)) return std::nullopt;
  std::optional<cublasLtMatmulAlgo_t> result;
  try {
    result = checked(Call(weight, rows), weight, x, rows, stream);
  } catch (const CudaError& e) {
    const bool is_first = problem_.empty();
    problem_ = "int8 products of " + std::to_string(rows) + " rows with a " + std::to_string(weight.out_features) +
               " x " + std::to_string(weight.in_features) + " matrix take our own kernel: " + e.what();
    if (is_first) log_warning(problem_);
  }
  return algorithms_.emplace(key, result).first->second;
}

template <class Out>
bool LinearInt8Lt::run(const Int8View& weight, const Int8Rows& x, int64_t rows, Out* out, cudaStream_t stream) {
  const int64_t step = rows_at_a_time(weight);
  if (rows <= tuning::kMaxInt8FewRows || step == 0 || !is_aligned(out)) return false;
  const auto rows_from = [&](int64_t begin) {
    return Int8Rows{x.values + begin * weight.row_bytes(), x.scales + begin};
  };
  // All parts or none, so that nothing is queued where one is refused.
  for (int64_t begin = 0; begin < rows; begin += step)
    if (!algorithm(weight, rows_from(begin), std::min(step, rows - begin), stream)) return false;
  for (int64_t begin = 0; begin < rows; begin += step) {
    const int64_t count = std::min(step, rows - begin);
    const Int8Rows part = rows_from(begin);
    const Call call(weight, count);
    call.run(library_.handle, *algorithm(weight, part, count, stream), weight.weight, part.values,
             sums_.data<int32_t>(), workspace_, stream);
    scale_int8_sums(weight, part, count, sums_.data<int32_t>(), out + begin * weight.out_features, stream);
  }
  return true;
}

template bool LinearInt8Lt::run(const Int8View&, const Int8Rows&, int64_t, float*, cudaStream_t);
template bool LinearInt8Lt::run(const Int8View&, const Int8Rows&, int64_t, __nv_bfloat16*, cudaStream_t);
template bool LinearInt8Lt::run(const Int8View&, const Int8Rows&, int64_t, __half*, cudaStream_t);

}  // namespace llmb::cuda
