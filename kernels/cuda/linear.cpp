#include "kernels/cuda/linear.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "base/check.h"
#include "kernels/cuda/cublas_lt.h"
#include "kernels/cuda/linear_mma.h"
#include "kernels/cuda/tuning.h"

namespace llmb::cuda {

namespace {

// NVIDIA recommends this for Hopper; smaller devices want less and do not mind.
constexpr int64_t kWorkspaceBytes = int64_t{32} << 20;
constexpr int kNumCandidates = 16;
constexpr int kTimedRuns = 5;

cudaDataType_t data_type(DType dtype) {
  return dtype == DType::kF32 ? CUDA_R_32F : dtype == DType::kF16 ? CUDA_R_16F : CUDA_R_16BF;
}

// Small batches each have their own algorithm; larger ones share one within a quarter of a power of two.
int64_t row_class(int64_t rows) {
  int64_t step = 8;
  while (rows > 8 * step) step *= 2;
  return rows <= 8 ? rows : ceil_div(rows, step) * step;
}

}  // namespace

// cuBLASLt is column-major: out, seen as [out_features, rows], is weight (stored [in, out], transposed) times x [in,
// rows].
struct Linear::Call {
  Call(const LinearView& weight_view, const void* x_data, int64_t num_rows, void* out_data, DType dtype, DType out_type)
      : weight(weight_view), x(x_data), rows(num_rows), out(out_data), out_dtype(out_type) {
    check_lt(cublas_lt().matmul_desc_create(&desc.handle, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescCreate");
    set(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
    if (weight.bias != nullptr) {
      set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
      set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, weight.bias);
      set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, data_type(dtype));
    }
    const auto m = static_cast<uint64_t>(weight.out_features), k = static_cast<uint64_t>(weight.in_features);
    const auto n = static_cast<uint64_t>(rows);
    create(&a, dtype, k, m);
    create(&b, dtype, k, n);
    create(&d, out_dtype, m, n);
  }

  void run(cublasLtHandle_t handle, const cublasLtMatmulAlgo_t& algo, const DeviceMemory& workspace,
           cudaStream_t stream) const {
    const float one = 1, zero = 0;
    check_lt(cublas_lt().matmul(handle, desc.handle, &one, weight.weight, a.handle, x, b.handle, &zero, out, d.handle,
                                out, d.handle, &algo, workspace.data(), static_cast<size_t>(workspace.bytes()), stream),
             "cublasLtMatmul");
  }

  std::vector<cublasLtMatmulHeuristicResult_t> candidates(cublasLtHandle_t handle,
                                                          cublasLtMatmulPreference_t preference, int count) const {
    std::vector<cublasLtMatmulHeuristicResult_t> results(count);
    int found = 0;
    check_lt(cublas_lt().matmul_algo_get_heuristic(handle, desc.handle, a.handle, b.handle, d.handle, d.handle,
                                                   preference, count, results.data(), &found),
             "cublasLtMatmulAlgoGetHeuristic");
    results.resize(found);
    std::erase_if(results, [](const auto& result) { return result.state != CUBLAS_STATUS_SUCCESS; });
    if (results.empty())
      throw CudaError(cudaErrorNotSupported, "cuBLASLt has no algorithm for a " + std::to_string(weight.out_features) +
                                                 " x " + std::to_string(weight.in_features) + " matrix");
    return results;
  }

  template <typename T>
  void set(cublasLtMatmulDescAttributes_t attribute, T value) {
    check_lt(cublas_lt().matmul_desc_set_attribute(desc.handle, attribute, &value, sizeof value),
             "cublasLtMatmulDescSetAttribute");
  }
  using Layout = CublasLtHandle<cublasLtMatrixLayout_t, &CublasLt::matrix_layout_destroy>;
  static void create(Layout* layout, DType dtype, uint64_t rows, uint64_t cols) {
    check_lt(
        cublas_lt().matrix_layout_create(&layout->handle, data_type(dtype), rows, cols, static_cast<int64_t>(rows)),
        "cublasLtMatrixLayoutCreate");
  }

  const LinearView weight;
  const void* const x;
  const int64_t rows;
  void* const out;
  const DType out_dtype;
  CublasLtHandle<cublasLtMatmulDesc_t, &CublasLt::matmul_desc_destroy> desc;
  Layout a, b, d;
};

Linear::Linear(const LinearOptions& options, cudaStream_t stream) : options_(options), workspace_(kWorkspaceBytes) {
  if (options.hopper && options.dtype != DType::kF32) wgmma_.emplace(options.num_sms, stream);
  check_lt(cublas_lt().create(&handle_), "cublasLtCreate");
  check_lt(cublas_lt().matmul_preference_create(&preference_), "cublasLtMatmulPreferenceCreate");
  const uint64_t bytes = kWorkspaceBytes;
  check_lt(cublas_lt().matmul_preference_set_attribute(preference_, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes,
                                                       sizeof bytes),
           "cublasLtMatmulPreferenceSetAttribute");
}

Linear::~Linear() {
  cublas_lt().matmul_preference_destroy(preference_);
  cublas_lt().destroy(handle_);
}

void Linear::run(const LinearView& weight, const void* x, int64_t rows, void* out, DType out_dtype,
                 cudaStream_t stream) {
  if (rows == 0) return;
  const Call call(weight, x, rows, out, options_.dtype, out_dtype);
  const Key key{weight.out_features, weight.in_features, row_class(rows), weight.bias != nullptr, out_dtype};
  const std::optional<Algorithm> fixed = own(weight, rows);
  run(call, fixed ? *fixed : algorithm(key, call), stream);
}

std::optional<Linear::Algorithm> Linear::own(const LinearView& weight, int64_t rows) const {
  const bool takes_wgmma = wgmma_ && LinearWgmma::takes(weight);
  if (takes_wgmma && (options_.deterministic || rows <= tuning::kMaxWgmmaRows)) return Algorithm{Kernel::kWgmma};
  if (options_.deterministic) return Algorithm{Kernel::kMma};
  return std::nullopt;
}

void Linear::run(const Call& call, const Algorithm& algorithm, cudaStream_t stream) {
  if (algorithm.kernel == Kernel::kCublas) return call.run(handle_, algorithm.cublas, workspace_, stream);
  const auto run_own = [&]<typename T>(const T* x, auto* out) {
    if constexpr (!std::is_same_v<T, float>)
      if (algorithm.kernel == Kernel::kWgmma) return wgmma_->run(call.weight, x, call.rows, out, stream);
    linear_mma(call.weight, x, call.rows, out, stream);
  };
  const auto with_type = [&]<typename T>(T) {
    const auto* const x = static_cast<const T*>(call.x);
    if (call.out_dtype == DType::kF32) run_own(x, static_cast<float*>(call.out));
    else run_own(x, static_cast<T*>(call.out));
  };
  switch (options_.dtype) {
    case DType::kF32:
      return with_type(float());
    case DType::kF16:
      return with_type(__half());
    case DType::kBF16:
      return with_type(__nv_bfloat16());
    case DType::kI8:
    case DType::kF8:
    case DType::kI4:
      LLMB_CHECK_MSG(false, "activations are floating-point numbers");
  }
}

const Linear::Algorithm& Linear::algorithm(const Key& key, const Call& call) {
  const auto at = algorithms_.find(key);
  if (at != algorithms_.end()) return at->second;
  const Algorithm best{Kernel::kCublas, call.candidates(handle_, preference_, 1).front().algo};
  return algorithms_.emplace(key, best).first->second;
}

int64_t Linear::tuning_bytes() {
  int device = 0, l2_bytes = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  check(cudaDeviceGetAttribute(&l2_bytes, cudaDevAttrL2CacheSize, device), "cudaDeviceGetAttribute");
  return int64_t{2} * l2_bytes;
}

void Linear::tune(const LinearView& weight, const void* x, int64_t rows, void* out, DType out_dtype,
                  cudaStream_t stream) {
  const Key key{weight.out_features, weight.in_features, row_class(rows), weight.bias != nullptr, out_dtype};
  if (own(weight, rows) || algorithms_.contains(key)) return;
  const Call call(weight, x, rows, out, options_.dtype, out_dtype);
  std::vector<Algorithm> candidates;
  for (const auto& result : call.candidates(handle_, preference_, kNumCandidates))
    candidates.push_back({Kernel::kCublas, result.algo});
  if (rows <= tuning::kMaxMmaRows && options_.dtype != DType::kF32) candidates.push_back({Kernel::kMma});
  // Weights come from memory in a step, so the cache is emptied before each run.
  const DeviceMemory other(tuning_bytes());
  const Event begin(cudaEventDefault), end(cudaEventDefault);
  const auto time_ms = [&](const Algorithm& candidate) {
    check(cudaMemsetAsync(other.data(), 0, other.bytes(), stream), "cudaMemsetAsync");
    begin.record(stream);
    run(call, candidate, stream);
    end.record(stream);
    end.synchronize();
    float ms = 0;
    check(cudaEventElapsedTime(&ms, begin.get(), end.get()), "cudaEventElapsedTime");
    return ms;
  };
  float best_ms = std::numeric_limits<float>::infinity();
  for (const Algorithm& candidate : candidates) {
    time_ms(candidate);  // loads the kernel
    float times[kTimedRuns];
    for (float& ms : times) ms = time_ms(candidate);
    std::sort(times, times + kTimedRuns);
    if (!(times[kTimedRuns / 2] < best_ms)) continue;
    best_ms = times[kTimedRuns / 2];
    algorithms_[key] = candidate;
  }
}

}  // namespace llmb::cuda
