// Weights and buffers of the model in device memory, as cuda_ops hands them out.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "base/check.h"
#include "kernels/cuda/fp8_rows.h"
#include "kernels/cuda/int4_units.h"
#include "kernels/cuda/linear_grouped.h"
#include "kernels/cuda/linear_int8.h"
#include "kernels/cuda/linear_view.h"
#include "kernels/cuda/memory.h"
#include "kernels/cuda/sparse24_units.h"
#include "kernels/cuda/w4a8_units.h"
#include "model/ops.h"

namespace llmb {

// How a matrix lies on the device: numbers in the activation dtype; rows of int8 or of e4m3 (kernels/cuda/fp8_rows.h)
// with their scales; or units (kernels/cuda/int4_units.h): int4, whose groups have zeros or not, MXFP4, or bytes in
// groups likewise; or numbers of which two of every four are there (kernels/cuda/sparse24_units.h); or whole numbers of
// four bits each (kernels/cuda/w4a8_units.h).
enum class CudaForm : uint8_t {
  kNumbers, kInt8, kInt4, kInt4Zeros, kMxfp4, kFp8, kSparse24, kBytes, kBytesZeros, kW4A8
};

// The bias is in the activation dtype, beside int8 and w4a8 in fp32.
class CudaLinear final : public LinearWeight {
 public:
  // dtype: of activations.
  CudaLinear(int64_t out_features, int64_t in_features, bool has_bias, DType dtype, CudaForm form,
             bool is_partial_sum = false)
      : form_(form),
        is_partial_sum_(is_partial_sum),
        weight_(weight_bytes(out_features, in_features, dtype, form)),
        bias_(has_bias ? out_features * dtype_bytes(bias_dtype(dtype, form)) : 0),
        scales_(is_int8() || is_fp8() || is_w4a8() ? out_features * int64_t{sizeof(float)} : 0),
        view_{weight_.data(), bias_.data(), out_features, in_features} {}
  static DType bias_dtype(DType dtype, CudaForm form) {
    return form == CudaForm::kInt8 || form == CudaForm::kW4A8 ? DType::kF32 : dtype;
  }

  int64_t resident_bytes() const override { return weight_.bytes() + bias_.bytes() + scales_.bytes() + order_.bytes(); }
  // Sets the order of the columns of units, where it is not that of x: as column_order() (stored_blocks.h) has it.
  void set_order(cuda::DeviceMemory order) { order_ = std::move(order); }
  const int32_t* order() const { return order_.bytes() > 0 ? order_.data<const int32_t>() : nullptr; }  // null: in turn
  bool is_partial_sum() const { return is_partial_sum_; }                                               // of ranks
  bool is_int8() const { return form_ == CudaForm::kInt8; }
  bool is_fp8() const { return form_ == CudaForm::kFp8; }
  CudaForm form() const { return form_; }
  bool has_units() const {  // of int4_units.h
    return form_ != CudaForm::kNumbers && !is_int8() && !is_fp8() && !is_sparse24() && !is_w4a8();
  }
  bool is_w4a8() const { return form_ == CudaForm::kW4A8; }
  bool is_sparse24() const { return form_ == CudaForm::kSparse24; }
  cuda::int4::Meaning meaning() const { return meaning_of(form_); }  // of units
  int64_t out_features() const { return view_.out_features; }
  int64_t in_features() const { return view_.in_features; }
  int64_t weight_bytes() const { return weight_.bytes(); }
  // Each REQUIRES its form.
  const cuda::LinearView& view() const {
    LLMB_CHECK(form_ == CudaForm::kNumbers);
    return view_;
  }
  cuda::Int8View int8_view() const {
    LLMB_CHECK(is_int8());
    return {weight_.data<int8_t>(), scales(), bias_.data<float>(), view_.out_features, view_.in_features};
  }
  cuda::Int4View int4_view() const {
    LLMB_CHECK(has_units());
    return {weight(), bias_.data(), view_.out_features, view_.in_features, meaning()};
  }
  cuda::Sparse24View sparse24_view() const {
    LLMB_CHECK(is_sparse24());
    return {weight(), bias_.data(), view_.out_features, view_.in_features};
  }
  cuda::W4A8View w4a8_view() const {
    LLMB_CHECK(is_w4a8());
    return {weight(), scales(), bias_.data<float>(), view_.out_features, view_.in_features};
  }
  cuda::Fp8View fp8_view() const {
    LLMB_CHECK(is_fp8());
    return {weight_.data<cuda::E4m3>(), scales(), bias_.data(), view_.out_features, view_.in_features};
  }
  uint8_t* weight() const { return weight_.data<uint8_t>(); }
  uint8_t* bias() const { return bias_.data<uint8_t>(); }
  float* scales() const { return scales_.data<float>(); }  // null: not int8, fp8 or w4a8

 private:
  static cuda::int4::Meaning meaning_of(CudaForm form) {
    using cuda::int4::Meaning;
    if (form == CudaForm::kMxfp4) return Meaning::kE2m1;
    if (form == CudaForm::kBytes) return Meaning::kBytes;
    if (form == CudaForm::kBytesZeros) return Meaning::kBytesFromZeros;
    return form == CudaForm::kInt4Zeros ? Meaning::kFromZeros : Meaning::kFromEight;
  }
  static int64_t weight_bytes(int64_t out_features, int64_t in_features, DType dtype, CudaForm form) {
    switch (form) {
      case CudaForm::kNumbers:
        return out_features * in_features * dtype_bytes(dtype);
      case CudaForm::kInt8:
        return out_features * cuda::int8_row_bytes(in_features);
      case CudaForm::kFp8:
        return out_features * cuda::fp8::row_bytes(in_features);
      case CudaForm::kInt4:
      case CudaForm::kInt4Zeros:
      case CudaForm::kMxfp4:
      case CudaForm::kBytes:
      case CudaForm::kBytesZeros:
        return cuda::int4::bytes(out_features, in_features, meaning_of(form));
      case CudaForm::kSparse24:
        return cuda::sparse24::bytes(out_features, in_features);
      case CudaForm::kW4A8:
        return cuda::w4a8::bytes(out_features, in_features);
    }
    return 0;
  }

  const CudaForm form_;
  const bool is_partial_sum_;
  const cuda::DeviceMemory weight_, bias_, scales_;
  cuda::DeviceMemory order_;
  const cuda::LinearView view_;
};

class CudaBuffer final : public DeviceBuffer {
 public:
  CudaBuffer(int64_t rows, int64_t width, DType dtype)
      : memory_(rows * width * dtype_bytes(dtype)), rows_{memory_.data(), dtype, width} {}
  Rows rows() const override { return rows_; }
  int64_t resident_bytes() const override { return memory_.bytes(); }

 private:
  const cuda::DeviceMemory memory_;
  const Rows rows_;
};

// Every weight and buffer of cuda_ops came from its make_linear, make_vector or allocate.
inline const CudaLinear& cuda_linear(const LinearWeight& weight) { return static_cast<const CudaLinear&>(weight); }
inline const cuda::LinearView& view(const LinearWeight& weight) { return cuda_linear(weight).view(); }

template <typename T>
T* data(Rows rows) {
  return static_cast<T*>(rows.data);
}

// Calls body with a value of the C++ type that stands for dtype.
template <typename Body>
void with_type(DType dtype, const Body& body) {
  switch (dtype) {
    case DType::kF32:
      return body(float());
    case DType::kF16:
      return body(__half());
    case DType::kBF16:
      return body(__nv_bfloat16());
    case DType::kI8:
    case DType::kF8:
    case DType::kI4:
      LLMB_CHECK_MSG(false, "activations are floating-point numbers");
  }
}

// The values in device memory, once the call returns. Throws cuda::CudaError.
template <typename T>
cuda::DeviceMemory upload_array(const std::vector<T>& values, cudaStream_t stream) {
  const size_t bytes = values.size() * sizeof(T);
  cuda::DeviceMemory memory(static_cast<int64_t>(bytes));
  if (bytes == 0) return memory;
  cuda::check(cudaMemcpyAsync(memory.data(), values.data(), bytes, cudaMemcpyHostToDevice, stream), "cudaMemcpyAsync");
  cuda::check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  return memory;
}

// The matrices of one kind of all experts, but for those of other ranks, which are null; and the addresses of their
// parts on the device. Those that are here are neighbours.
class CudaExpertMatrices {
 public:
  CudaExpertMatrices(std::vector<std::unique_ptr<LinearWeight>> matrices, cudaStream_t stream)
      : matrices_(std::move(matrices)) {
    std::vector<const void*> weights, biases;
    std::vector<const float*> scales;
    int32_t first_own = -1, end_own = 0;
    for (const auto& matrix : matrices_) {
      const CudaLinear* const linear = matrix ? &cuda_linear(*matrix) : nullptr;
      weights.push_back(linear != nullptr ? linear->weight() : nullptr);
      biases.push_back(linear != nullptr ? linear->bias() : nullptr);
      scales.push_back(linear != nullptr ? linear->scales() : nullptr);
      if (linear == nullptr) continue;
      end_own = static_cast<int32_t>(weights.size());
      if (first_own < 0) first_own = end_own - 1;
    }
    LLMB_CHECK(first_own >= 0);
    weights_ = upload_array(weights, stream);
    biases_ = upload_array(biases, stream);
    scales_ = upload_array(scales, stream);
    const CudaLinear& first = cuda_linear(*matrices_[static_cast<size_t>(first_own)]);
    grouped_ = {weights_.data<const void*>(),
                first.bias() != nullptr ? biases_.data<const void*>() : nullptr,
                first.out_features(),
                first.in_features(),
                first.scales() != nullptr ? scales_.data<const float*>() : nullptr,
                first.has_units(),
                first.meaning(),
                first_own,
                end_own,
                first.is_fp8()};
  }
  const cuda::GroupedWeights& grouped() const { return grouped_; }
  int64_t resident_bytes() const {
    int64_t bytes = 0;
    for (const auto& matrix : matrices_) bytes += matrix ? matrix->resident_bytes() : 0;
    return bytes;
  }

 private:
  const std::vector<std::unique_ptr<LinearWeight>> matrices_;
  cuda::DeviceMemory weights_, biases_, scales_;  // [num_experts] addresses
  cuda::GroupedWeights grouped_;
};

class CudaExperts final : public ExpertsWeight {
 public:
  CudaExperts(std::vector<std::unique_ptr<LinearWeight>> gate_up, std::vector<std::unique_ptr<LinearWeight>> down,
              cudaStream_t stream)
      : gate_up_(std::move(gate_up), stream), down_(std::move(down), stream) {}
  int64_t resident_bytes() const override { return gate_up_.resident_bytes() + down_.resident_bytes(); }
  const cuda::GroupedWeights& gate_up() const { return gate_up_.grouped(); }
  const cuda::GroupedWeights& down() const { return down_.grouped(); }

 private:
  const CudaExpertMatrices gate_up_, down_;
};

}  // namespace llmb
