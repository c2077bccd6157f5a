#include "cublasLt.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "base/float_formats.h"
#include "kernels/simt/device_state.h"
#include "kernels/simt/float16.h"
#include "kernels/simt/stream.h"

struct cublasLtContext {};

struct cublasLtMatmulDescOpaque_t {
  bool is_int8 = false;
  int32_t transpose_a = CUBLAS_OP_N;
  int32_t transpose_b = CUBLAS_OP_N;
  int32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;
  int32_t bias_type = -1;
  int32_t a_scale_mode = CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
  int32_t b_scale_mode = CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
  const float *a_scales = nullptr, *b_scales = nullptr;
};

struct cublasLtMatrixLayoutOpaque_t {
  cudaDataType type;
  uint64_t rows;
  uint64_t columns;
  int64_t leading_dimension;
};

struct cublasLtMatmulPreferenceOpaque_t {
  uint64_t workspace_bytes = 0;
  uint32_t reduction_schemes = CUBLASLT_REDUCTION_SCHEME_MASK;
};

namespace {

using Layout = cublasLtMatrixLayoutOpaque_t;

size_t element_bytes(cudaDataType type) {
  return type == CUDA_R_8I || type == CUDA_R_8F_E4M3 ? 1 : type == CUDA_R_32F || type == CUDA_R_32I ? 4 : 2;
}
bool is_known(cudaDataType type) { return type == CUDA_R_32F || type == CUDA_R_16F || type == CUDA_R_16BF; }

size_t extent_bytes(const Layout& layout) {
  if (layout.columns == 0) return 0;
  return ((layout.columns - 1) * static_cast<uint64_t>(layout.leading_dimension) + layout.rows) *
         element_bytes(layout.type);
}

float e4m3_value(uint8_t bits) {
  static const std::array<float, 256> kValues = [] {
    std::array<float, 256> values;
    for (int i = 0; i < 256; ++i) values[static_cast<size_t>(i)] = llmb::fp8_e4m3_to_f32(static_cast<uint8_t>(i));
    return values;
  }();
  return kValues[bits];
}

float load(const void* data, cudaDataType type, size_t index) {
  if (type == CUDA_R_8F_E4M3) return e4m3_value(static_cast<const uint8_t*>(data)[index]);
  if (type == CUDA_R_32F) return static_cast<const float*>(data)[index];
  const uint16_t bits = static_cast<const uint16_t*>(data)[index];
  return type == CUDA_R_16BF ? llmb::simt::bfloat16_value(bits) : llmb::simt::half_value(bits);
}

void store(void* data, cudaDataType type, size_t index, float value) {
  if (type == CUDA_R_32F) static_cast<float*>(data)[index] = value;
  else if (type == CUDA_R_16BF) static_cast<uint16_t*>(data)[index] = llmb::simt::bfloat16_bits(value);
  else static_cast<uint16_t*>(data)[index] = llmb::simt::half_bits(value);
}

// ---- algorithms: how many parts the sum is made of ----------------------------------------------------------------

constexpr uint64_t kAlgorithmMark = 0x6C6C6D62;
constexpr size_t kLanes = 16;

cublasLtMatmulAlgo_t make_algorithm(uint32_t num_splits) { return {{kAlgorithmMark, num_splits}}; }
uint32_t num_splits_of(const cublasLtMatmulAlgo_t& algo) { return static_cast<uint32_t>(algo.data[1]); }

size_t workspace_of(uint32_t num_splits, const Layout& d) {
  return num_splits == 1 ? 0 : size_t{num_splits} * d.rows * d.columns * sizeof(float);
}

// Few columns: several parts in parallel, as the real library does to keep the device busy.
uint32_t preferred_splits(const Layout& d, const cublasLtMatmulPreferenceOpaque_t& preference) {
  const uint32_t num_splits = d.columns <= 8 ? 4 : d.columns <= 64 ? 2 : 1;
  const bool allowed = preference.reduction_schemes != CUBLASLT_REDUCTION_SCHEME_NONE &&
                       workspace_of(num_splits, d) <= preference.workspace_bytes;
  return allowed ? num_splits : 1;
}

struct Product {
  cublasLtMatmulDescOpaque_t desc;
  Layout a_layout, b_layout, c_layout, d_layout;
  const void *a, *b, *c;
  void *d, *workspace;
  float alpha, beta;
  uint32_t num_splits;
  size_t depth;

  void run() const;
  void run_int8() const;
  // Column `index` of op(A) transposed, or of op(B): `depth` values in a row.
  void gather(const void* matrix, const Layout& layout, bool along_column, size_t index, float* values) const;
  float dot(const float* x, const float* y) const;
};

void Product::gather(const void* matrix, const Layout& layout, bool along_column, size_t index, float* values) const {
  const size_t leading = static_cast<size_t>(layout.leading_dimension);
  const size_t first = along_column ? index * leading : index;
  const size_t step = along_column ? 1 : leading;
  if (layout.type == CUDA_R_16BF && step == 1) {  // what the tests of whole models spend their time on
    const uint16_t* bits = static_cast<const uint16_t*>(matrix) + first;
    for (size_t k = 0; k < depth; ++k) values[k] = llmb::simt::bfloat16_value(bits[k]);
    return;
  }
  for (size_t k = 0; k < depth; ++k) values[k] = load(matrix, layout.type, first + k * step);
}

float Product::dot(const float* x, const float* y) const {
  float total = 0;
  const size_t part = (depth + num_splits - 1) / num_splits;
  for (size_t begin = 0; begin < depth; begin += part) {
    const size_t end = std::min(depth, begin + part);
    float sums[kLanes] = {};
    size_t k = begin;
    for (; k + kLanes <= end; k += kLanes) {
      for (size_t lane = 0; lane < kLanes; ++lane) sums[lane] += x[k + lane] * y[k + lane];
    }
    for (; k < end; ++k) sums[0] += x[k] * y[k];
    float sum = 0;
    for (const float lane : sums) sum += lane;
    total += sum;
  }
  return total;
}

// As the real library has it: op(A) transposed, op(B) as it is.
void Product::run_int8() const {
  for (size_t j = 0; j < d_layout.columns; ++j) {
    for (size_t i = 0; i < d_layout.rows; ++i) {
      const auto* const x = static_cast<const int8_t*>(a) + i * static_cast<size_t>(a_layout.leading_dimension);
      const auto* const y = static_cast<const int8_t*>(b) + j * static_cast<size_t>(b_layout.leading_dimension);
      int32_t sum = 0;
      for (size_t k = 0; k < depth; ++k) sum += int32_t{x[k]} * y[k];
      static_cast<int32_t*>(d)[i + j * static_cast<size_t>(d_layout.leading_dimension)] = sum;
    }
  }
}

void Product::run() const {
  if (desc.is_int8) return run_int8();
  if (const size_t bytes = workspace_of(num_splits, d_layout); bytes > 0) std::memset(workspace, 0xFF, bytes);
  std::vector<float> columns(depth * d_layout.columns);
  for (size_t j = 0; j < d_layout.columns; ++j) {
    gather(b, b_layout, desc.transpose_b == CUBLAS_OP_N, j, &columns[j * depth]);
  }
  const cudaDataType bias_type = desc.bias_type < 0 ? d_layout.type : static_cast<cudaDataType>(desc.bias_type);
  std::vector<float> row(depth);
  for (size_t i = 0; i < d_layout.rows; ++i) {
    gather(a, a_layout, desc.transpose_a == CUBLAS_OP_T, i, row.data());
    for (size_t j = 0; j < d_layout.columns; ++j) {
      float value = alpha * dot(row.data(), &columns[j * depth]);
      if (desc.a_scales != nullptr) value = value * desc.a_scales[i] * desc.b_scales[j];
      if (beta != 0) {
        value += beta * load(c, c_layout.type, i + j * static_cast<size_t>(c_layout.leading_dimension));
      }
      if (desc.epilogue == CUBLASLT_EPILOGUE_BIAS) value += load(desc.bias, bias_type, i);
      store(d, d_layout.type, i + j * static_cast<size_t>(d_layout.leading_dimension), value);
    }
  }
}

bool shapes_fit(const cublasLtMatmulDescOpaque_t& desc, const Layout& a, const Layout& b, const Layout& c,
                const Layout& d) {
  const bool transpose_a = desc.transpose_a == CUBLAS_OP_T;
  const bool transpose_b = desc.transpose_b == CUBLAS_OP_T;
  const uint64_t depth = transpose_a ? a.rows : a.columns;
  return (transpose_a ? a.columns : a.rows) == d.rows && (transpose_b ? b.rows : b.columns) == d.columns &&
         (transpose_b ? b.columns : b.rows) == depth && c.rows == d.rows && c.columns == d.columns && depth > 0 &&
         d.rows > 0 && d.columns > 0;
}

bool has_outer_scales(const cublasLtMatmulDescOpaque_t& desc) {
  return desc.a_scale_mode == CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F && desc.b_scale_mode == desc.a_scale_mode &&
         desc.a_scales != nullptr && desc.b_scales != nullptr;
}

bool types_fit(const cublasLtMatmulDescOpaque_t& desc, const Layout& a, const Layout& b, const Layout& c,
               const Layout& d) {
  if (desc.is_int8) {
    return a.type == CUDA_R_8I && b.type == CUDA_R_8I && c.type == CUDA_R_32I && d.type == CUDA_R_32I &&
           desc.transpose_a == CUBLAS_OP_T && desc.transpose_b == CUBLAS_OP_N && a.rows % 4 == 0 && d.rows % 4 == 0 &&
           a.leading_dimension % 4 == 0 && b.leading_dimension % 4 == 0 && desc.epilogue == CUBLASLT_EPILOGUE_DEFAULT;
  }
  if (a.type == CUDA_R_8F_E4M3) {
    return b.type == a.type && c.type == d.type && is_known(d.type) && desc.transpose_a == CUBLAS_OP_T &&
           desc.transpose_b == CUBLAS_OP_N && a.rows % 16 == 0 && d.rows % 16 == 0 && a.leading_dimension % 16 == 0 &&
           b.leading_dimension % 16 == 0 && has_outer_scales(desc) &&
           !(desc.epilogue == CUBLASLT_EPILOGUE_BIAS && desc.bias_type == CUDA_R_32F);
  }
  return desc.a_scales == nullptr && is_known(a.type) && a.type == b.type && c.type == d.type && (d.type == a.type || d.type == CUDA_R_32F);
}

template <class T>
cublasStatus_t set(T* field, const void* value, size_t num_bytes) {
  if (value == nullptr || num_bytes != sizeof(T)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(field, value, num_bytes);
  return CUBLAS_STATUS_SUCCESS;
}

bool lies_on_device(const void* data, const Layout& layout) {
  return reinterpret_cast<uintptr_t>(data) % element_bytes(layout.type) == 0 &&
         llmb::simt::in_device_memory(data, extent_bytes(layout));
}

// The status of a failing call of the runtime.
cublasStatus_t status_of(cudaError_t error) {
  if (error == cudaSuccess) return CUBLAS_STATUS_SUCCESS;
  return error == cudaErrorMemoryAllocation ? CUBLAS_STATUS_ALLOC_FAILED : CUBLAS_STATUS_EXECUTION_FAILED;
}

}  // namespace

size_t cublasLtGetVersion() { return 130000; }

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  const llmb::simt::Call call;
  if (call.injected() != cudaSuccess) return status_of(call.injected());
  *handle = new cublasLtContext();
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* desc, cublasComputeType_t compute,
                                        cudaDataType_t scale_type) {
  const bool is_int8 = compute == CUBLAS_COMPUTE_32I;
  if (scale_type != (is_int8 ? CUDA_R_32I : CUDA_R_32F)) return CUBLAS_STATUS_NOT_SUPPORTED;
  *desc = new cublasLtMatmulDescOpaque_t();
  (*desc)->is_int8 = is_int8;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) {
  delete desc;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t num_bytes) {
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return set(&desc->transpose_a, value, num_bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return set(&desc->transpose_b, value, num_bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return set(&desc->epilogue, value, num_bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return set(&desc->bias, value, num_bytes);
    case CUBLASLT_MATMUL_DESC_A_SCALE_POINTER:
      return set(&desc->a_scales, value, num_bytes);
    case CUBLASLT_MATMUL_DESC_B_SCALE_POINTER:
      return set(&desc->b_scales, value, num_bytes);
    case CUBLASLT_MATMUL_DESC_A_SCALE_MODE:
      return set(&desc->a_scale_mode, value, num_bytes);
    case CUBLASLT_MATMUL_DESC_B_SCALE_MODE:
      return set(&desc->b_scale_mode, value, num_bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
      return set(&desc->bias_type, value, num_bytes);
  }
  return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type, uint64_t rows,
                                          uint64_t columns, int64_t leading_dimension) {
  if (leading_dimension < static_cast<int64_t>(rows)) return CUBLAS_STATUS_INVALID_VALUE;
  *layout = new Layout{type, rows, columns, leading_dimension};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete layout;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  *preference = new cublasLtMatmulPreferenceOpaque_t();
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete preference;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void* value,
                                                    size_t num_bytes) {
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
      return set(&preference->workspace_bytes, value, num_bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
      return set(&preference->reduction_schemes, value, num_bytes);
  }
  return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int num_requested,
                                              cublasLtMatmulHeuristicResult_t* results, int* num_results) {
  const llmb::simt::Call call;
  *num_results = 0;
  if (call.injected() != cudaSuccess) return status_of(call.injected());
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (num_requested <= 0 || !shapes_fit(*desc, *a, *b, *c, *d)) return CUBLAS_STATUS_INVALID_VALUE;
  if (!types_fit(*desc, *a, *b, *c, *d)) return CUBLAS_STATUS_NOT_SUPPORTED;
  std::vector<uint32_t> offers = {preferred_splits(*d, *preference)};
  if (offers.front() != 1) offers.push_back(1);
  for (const uint32_t num_splits : offers) {
    if (*num_results == num_requested) break;
    results[(*num_results)++] = {
        make_algorithm(num_splits), workspace_of(num_splits, *d), CUBLAS_STATUS_SUCCESS, 1, {}};
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a,
                                       cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t* algo, cublasLtMatmulHeuristicResult_t* result) {
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (algo->data[0] != kAlgorithmMark || !shapes_fit(*desc, *a, *b, *c, *d)) return CUBLAS_STATUS_INVALID_VALUE;
  if (!types_fit(*desc, *a, *b, *c, *d)) return CUBLAS_STATUS_NOT_SUPPORTED;
  *result = {*algo, workspace_of(num_splits_of(*algo), *d), CUBLAS_STATUS_SUCCESS, 1, {}};
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t* algo,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute, void* value,
                                                    size_t num_bytes, size_t* num_written) {
  int32_t number = 0;
  if (attribute == CUBLASLT_ALGO_CONFIG_SPLITK_NUM) number = static_cast<int32_t>(num_splits_of(*algo));
  if (attribute == CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME && num_splits_of(*algo) > 1) {
    number = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  }
  if (num_bytes < sizeof(number)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(value, &number, sizeof(number));
  if (num_written != nullptr) *num_written = sizeof(number);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoConfigSetAttribute(cublasLtMatmulAlgo_t* algo,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute, const void* value,
                                                    size_t num_bytes) {
  int32_t number = 0;
  if (num_bytes != sizeof(number)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&number, value, sizeof(number));
  if (attribute == CUBLASLT_ALGO_CONFIG_SPLITK_NUM) algo->data[1] = static_cast<uint64_t>(std::max(number, 1));
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void* alpha, const void* a,
                              cublasLtMatrixLayout_t a_layout, const void* b, cublasLtMatrixLayout_t b_layout,
                              const void* beta, const void* c, cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algo, void* workspace,
                              size_t workspace_bytes, cudaStream_t stream) {
  const llmb::simt::Call call;
  if (call.injected() != cudaSuccess) return status_of(call.injected());
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  const auto queue = llmb::simt::stream_state(stream);
  if (queue == nullptr || !shapes_fit(*desc, *a_layout, *b_layout, *c_layout, *d_layout)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  if (!types_fit(*desc, *a_layout, *b_layout, *c_layout, *d_layout)) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (desc->is_int8 && (*static_cast<const int32_t*>(alpha) != 1 || *static_cast<const int32_t*>(beta) != 0))
    return CUBLAS_STATUS_NOT_SUPPORTED;
  const float alpha_value = desc->is_int8 ? 1 : *static_cast<const float*>(alpha);
  const float beta_value = desc->is_int8 ? 0 : *static_cast<const float*>(beta);
  if (!lies_on_device(a, *a_layout) || !lies_on_device(b, *b_layout) || !lies_on_device(d, *d_layout) ||
      (beta_value != 0 && !lies_on_device(c, *c_layout)) ||
      (desc->epilogue == CUBLASLT_EPILOGUE_BIAS && desc->bias == nullptr)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  cublasLtMatmulPreferenceOpaque_t preference;
  preference.workspace_bytes = workspace_bytes;
  if (algo != nullptr && algo->data[0] != kAlgorithmMark) return CUBLAS_STATUS_INVALID_VALUE;
  const uint32_t num_splits = algo != nullptr ? num_splits_of(*algo) : preferred_splits(*d_layout, preference);
  const size_t needed = workspace_of(num_splits, *d_layout);
  if (needed > workspace_bytes || (needed > 0 && !llmb::simt::in_device_memory(workspace, needed))) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  const size_t depth = desc->transpose_a == CUBLAS_OP_T ? a_layout->rows : a_layout->columns;
  const Product product{*desc, *a_layout, *b_layout, *c_layout,   *d_layout,  a,          b,
                        c,     d,         workspace, alpha_value, beta_value, num_splits, depth};
  llmb::simt::enqueue(queue, [product] { product.run(); });
  return CUBLAS_STATUS_SUCCESS;
}
