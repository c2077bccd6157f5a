// Weights and buffers of the model in device memory, as cuda_ops hands them out.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "base/check.h"
#include "kernels/cuda/linear_grouped.h"
#include "kernels/cuda/linear_view.h"
#include "kernels/cuda/memory.h"
#include "model/ops.h"

namespace llmb {

// Both in the activation dtype.
class CudaLinear final : public LinearWeight {
 public:
  CudaLinear(int64_t out_features, int64_t in_features, bool has_bias, DType dtype)
      : weight_(out_features * in_features * dtype_bytes(dtype)),
        bias_(has_bias ? out_features * dtype_bytes(dtype) : 0),
        view_{weight_.data(), bias_.data(), out_features, in_features} {}
  int64_t resident_bytes() const override { return weight_.bytes() + bias_.bytes(); }
  const cuda::LinearView& view() const { return view_; }
  uint8_t* weight() const { return weight_.data<uint8_t>(); }
  uint8_t* bias() const { return bias_.data<uint8_t>(); }

 private:
  const cuda::DeviceMemory weight_, bias_;
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
inline const cuda::LinearView& view(const LinearWeight& weight) {
  return static_cast<const CudaLinear&>(weight).view();
}

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

// The matrices of one kind of all experts, and the addresses of their parts on the device.
class CudaExpertMatrices {
 public:
  CudaExpertMatrices(std::vector<std::unique_ptr<LinearWeight>> matrices, cudaStream_t stream)
      : matrices_(std::move(matrices)) {
    std::vector<const void*> weights, biases;
    for (const auto& matrix : matrices_) {
      weights.push_back(view(*matrix).weight);
      biases.push_back(view(*matrix).bias);
    }
    weights_ = upload_array(weights, stream);
    biases_ = upload_array(biases, stream);
    const cuda::LinearView& first = view(*matrices_[0]);
    grouped_ = {weights_.data<const void*>(), first.bias != nullptr ? biases_.data<const void*>() : nullptr,
                first.out_features, first.in_features};
  }
  const cuda::GroupedWeights& grouped() const { return grouped_; }
  int64_t resident_bytes() const {
    int64_t bytes = 0;
    for (const auto& matrix : matrices_) bytes += matrix->resident_bytes();
    return bytes;
  }

 private:
  const std::vector<std::unique_ptr<LinearWeight>> matrices_;
  cuda::DeviceMemory weights_, biases_;  // [num_experts] addresses
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
