// CudaOps: the weights, each in the form that it has on the device.
#include <algorithm>
#include <utility>
#include <vector>

#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/cuda_weights.h"
#include "backend/cuda/stored_blocks.h"
#include "kernels/cuda/int4_pack.h"
#include "kernels/cuda/tuning.h"
#include "kernels/cuda/w4a8_pack.h"

namespace llmb {

using cuda::check;

std::unique_ptr<LinearWeight> CudaOps::make_linear(std::span<const TensorView> parts,
                                                   std::span<const TensorView> biases, WeightRole role) {
  int64_t out_features = 0;
  for (const TensorView& part : parts) out_features += part.rows;
  const int64_t in_features = parts[0].cols;
  const CudaForm form = form_of(role, parts, out_features);
  auto linear = std::make_unique<CudaLinear>(out_features, in_features, !biases.empty(), options_.dtype, form,
                                             role == WeightRole::kPartialSum);
  auto* bias = linear->bias();
  for (const TensorView& values : biases) {
    const DType dtype = CudaLinear::bias_dtype(options_.dtype, form);
    uploader_->upload(values, dtype, bias);
    bias += values.cols * dtype_bytes(dtype);
  }
  if (linear->is_int8() || linear->is_w4a8()) {
    max_int8_features_ = std::max(max_int8_features_, in_features);
    max_int8_out_ = std::max(max_int8_out_, out_features);
  }
  if (linear->is_w4a8()) {
    max_w4a8_bytes_ = std::max(max_w4a8_bytes_, out_features * cuda::int8_row_bytes(in_features));
    check(cudaMemsetAsync(linear->weight(), 0, linear->weight_bytes(), stream_), "cudaMemsetAsync");
  }
  if (linear->is_fp8()) max_fp8_features_ = std::max(max_fp8_features_, in_features);
  if (linear->has_units() || linear->is_sparse24()) {  // units at the edges reach beyond the matrix
    max_numbers_ = std::max(max_numbers_, out_features * in_features);
    has_int4_ |= linear->has_units();
    has_sparse24_ |= linear->is_sparse24();
    const int empty = linear->is_sparse24() ? cuda::sparse24::kEmptyByte : 0;
    check(cudaMemsetAsync(linear->weight(), empty, linear->weight_bytes(), stream_), "cudaMemsetAsync");
    if (const std::vector<int32_t> order = column_order(parts[0]); linear->has_units() && !order.empty()) {
      linear->set_order(upload_array(order, stream_));
      max_ordered_features_ = std::max(max_ordered_features_, in_features);
    }
  }
  int64_t row = 0;
  for (const TensorView& part : parts) {
    upload_rows(part, row, linear.get());
    row += part.rows;
  }
  return linear;
}

std::unique_ptr<LinearWeight> CudaOps::make_table_columns(std::span<const TensorView> parts, int64_t first,
                                                          int64_t count) {
  int64_t out_features = 0;
  for (const TensorView& part : parts) out_features += part.rows;
  auto linear = std::make_unique<CudaLinear>(out_features, count, false, options_.dtype, CudaForm::kInt8);
  int64_t row = 0;
  for (const TensorView& part : parts) {
    std::vector<uint8_t> memory;
    auto* const to = reinterpret_cast<int8_t*>(linear->weight()) + row * cuda::int8_row_bytes(count);
    uploader_->upload_int8_columns(as_numbers(part, &memory), first, count, to, linear->scales() + row);
    row += part.rows;
  }
  return linear;
}

void CudaOps::upload_rows(const TensorView& part, int64_t first_row, CudaLinear* linear) {
  if (linear->is_sparse24()) return uploader_->upload_sparse24(part, options_.dtype, first_row, linear->weight());
  if (linear->has_units() && part.blocks != BlockFormat::kNone) {
    cuda::BlockOrder order;
    if (linear->order() != nullptr) order = {linear->order(), linear->order() + part.cols, part.groups.count};
    return uploader_->upload_int4_blocks(part, options_.dtype, first_row, linear->meaning(), order, linear->weight());
  }
  auto* const fp8 = reinterpret_cast<cuda::E4m3*>(linear->weight()) + first_row * cuda::fp8::row_bytes(part.cols);
  if (linear->is_fp8() && has_fp8_rows(part))
    return uploader_->upload_fp8_blocks(part, fp8, linear->scales() + first_row);
  std::vector<uint8_t> memory;
  const TensorView numbers = as_numbers(part, &memory);
  if (linear->is_fp8()) return uploader_->upload_fp8(numbers, fp8, linear->scales() + first_row);
  if (linear->has_units()) return uploader_->upload_int4(numbers, options_.dtype, first_row, linear->weight());
  if (linear->is_w4a8())
    return uploader_->upload_w4a8(numbers, first_row, linear->weight(), linear->scales() + first_row);
  if (linear->is_int8()) {
    auto* const to = reinterpret_cast<int8_t*>(linear->weight()) + first_row * cuda::int8_row_bytes(part.cols);
    return uploader_->upload_int8(numbers, to, linear->scales() + first_row);
  }
  uploader_->upload(numbers, options_.dtype, linear->weight() + first_row * part.cols * dtype_bytes(options_.dtype));
}

// As on the CPU: all but what is small, and what much hangs on; beside int4, fp8 and w4a8, embedding and LM head are int8.
// Blocks of the checkpoint stay what they are.
CudaForm CudaOps::form_of(WeightRole role, std::span<const TensorView> parts, int64_t out_features) const {
  if (role == WeightRole::kSmall) return CudaForm::kNumbers;
  const bool is_table = role == WeightRole::kVocabulary;
  const int64_t in_features = parts[0].cols;
  const CudaForm as_int8 = in_features <= cuda::kMaxInt8Features ? CudaForm::kInt8 : CudaForm::kNumbers;
  switch (options_.quantization) {
    case Quantization::kNone:
      return is_table ? CudaForm::kNumbers : form_of_blocks(parts, options_.dtype);
    case Quantization::kInt4:
      if (!is_table) return cuda::LinearInt4::takes(out_features, in_features) ? CudaForm::kInt4 : CudaForm::kNumbers;
      return as_int8;
    case Quantization::kFp8:
      if (!is_table) return cuda::LinearFp8::takes(out_features, in_features) ? CudaForm::kFp8 : CudaForm::kNumbers;
      return as_int8;
    case Quantization::kInt8:
      return as_int8;
    case Quantization::kW4A8:
      if (!is_table && cuda::LinearW4A8::takes(out_features, in_features)) return CudaForm::kW4A8;
      return as_int8;
  }
  return CudaForm::kNumbers;
}

std::unique_ptr<ExpertsWeight> CudaOps::make_experts(std::vector<std::unique_ptr<LinearWeight>> gate_up,
                                                     std::vector<std::unique_ptr<LinearWeight>> down) {
  make_forms_equal(&gate_up);
  make_forms_equal(&down);
  return std::make_unique<CudaExperts>(std::move(gate_up), std::move(down), stream_);
}

// The numbers of w4a8 as int8, which experts' launches take: the same products.
std::unique_ptr<LinearWeight> CudaOps::widened(const CudaLinear& packed) {
  const cuda::W4A8View view = packed.w4a8_view();
  auto linear = std::make_unique<CudaLinear>(view.out_features, view.in_features, view.bias != nullptr, options_.dtype,
                                             CudaForm::kInt8);
  const auto copy = [&](void* to, const float* from) {
    check(cudaMemcpyAsync(to, from, view.out_features * sizeof(float), cudaMemcpyDeviceToDevice, stream_),
          "cudaMemcpyAsync");
  };
  check(cudaMemsetAsync(linear->weight(), 0, linear->weight_bytes(), stream_), "cudaMemsetAsync");
  cuda::widen_w4a8(view, reinterpret_cast<int8_t*>(linear->weight()), stream_);
  copy(linear->scales(), view.scales);
  if (view.bias != nullptr) copy(linear->bias(), view.bias);
  check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");  // the units go away
  return linear;
}

// One launch takes matrices of one form: where a scale or a zero of one expert has no place in units, all are numbers.
void CudaOps::make_forms_equal(std::vector<std::unique_ptr<LinearWeight>>* experts) {
  for (std::unique_ptr<LinearWeight>& expert : *experts)
    if (expert != nullptr && cuda_linear(*expert).is_w4a8()) expert = widened(cuda_linear(*expert));
  const auto is_numbers = [](const auto& expert) {
    return expert != nullptr && cuda_linear(*expert).form() == CudaForm::kNumbers;
  };
  if (std::none_of(experts->begin(), experts->end(), is_numbers)) return;
  for (std::unique_ptr<LinearWeight>& expert : *experts) {
    if (expert == nullptr || !cuda_linear(*expert).has_units()) continue;
    const CudaLinear& packed = cuda_linear(*expert);
    const cuda::Int4View view = packed.int4_view();
    auto linear = std::make_unique<CudaLinear>(view.out_features, view.in_features, view.bias != nullptr,
                                               options_.dtype, CudaForm::kNumbers);
    if (options_.dtype == DType::kF16)
      cuda::dequantize_int4(view, reinterpret_cast<__half*>(linear->weight()), stream_);
    else cuda::dequantize_int4(view, reinterpret_cast<__nv_bfloat16*>(linear->weight()), stream_);
    if (view.bias != nullptr)
      check(cudaMemcpyAsync(linear->bias(), view.bias, view.out_features * dtype_bytes(options_.dtype),
                            cudaMemcpyDeviceToDevice, stream_),
            "cudaMemcpyAsync");
    check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");  // the units go away
    expert = std::move(linear);
  }
}

std::unique_ptr<DeviceBuffer> CudaOps::make_vector(const TensorView& values) {
  auto buffer = std::make_unique<CudaBuffer>(1, values.cols, DType::kF32);
  uploader_->upload(values, DType::kF32, buffer->rows().data);
  return buffer;
}

std::unique_ptr<DeviceBuffer> CudaOps::allocate(int64_t rows, int64_t width, DType dtype) {
  if (ranks_ != nullptr) rows = ranks_->rows_with_room(rows);
  auto buffer = std::make_unique<CudaBuffer>(rows, width, dtype);
  check(cudaMemsetAsync(buffer->rows().data, 0, buffer->resident_bytes(), stream_), "cudaMemsetAsync");
  return buffer;
}

void CudaOps::end_of_weights() {
  check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
  uploader_.reset();
  int64_t most_rows = INT64_MAX;  // of the kernels that take weights as they are
  if (has_int4_) {
    cuda::LinearInt4Options int4{num_sms_};
    int4.hopper = options_.hopper, int4.deterministic = options_.deterministic;
    linear_int4_.emplace(int4, stream_);
    most_rows = linear_int4_->max_rows();
  }
  if (has_sparse24_) {
    linear_sparse24_.emplace(cuda::LinearCodesOptions{num_sms_}, stream_);
    most_rows = std::min(most_rows, cuda::LinearSparse24::kMaxRows);
  }
  if (!options_.deterministic && options_.limits.max_num_tokens > most_rows)
    numbers_ = cuda::DeviceMemory(max_numbers_ * dtype_bytes(options_.dtype));
  const int64_t max_rows = std::max<int64_t>(options_.limits.max_num_tokens, options_.limits.max_num_samples);
  if (max_ordered_features_ > 0)
    x_ordered_ = cuda::DeviceMemory(max_rows * max_ordered_features_ * dtype_bytes(options_.dtype));
  if (max_fp8_features_ > 0) {
    linear_fp8_.emplace(cuda::LinearCodesOptions{num_sms_}, stream_);
    if (!options_.deterministic && max_rows > cuda::tuning::kMaxFp8FewRows && cuda::cublas_lt_problem().empty()) {
      fp8_lt_.emplace();
      x_fp8_ = cuda::DeviceMemory(max_rows * cuda::fp8::row_bytes(max_fp8_features_));
      x_fp8_scales_ = cuda::DeviceMemory(max_rows * int64_t{sizeof(float)});
    }
  }
  if (max_w4a8_bytes_ > 0) {
    linear_w4a8_.emplace(cuda::LinearCodesOptions{num_sms_}, stream_);
    if (options_.limits.max_num_tokens > cuda::LinearW4A8::kMaxRows) widened_ = cuda::DeviceMemory(max_w4a8_bytes_);
  }
  if (max_int8_features_ == 0) return;
  x_int8_ = cuda::DeviceMemory(max_rows * cuda::int8_row_bytes(max_int8_features_));
  x_scales_ = cuda::DeviceMemory(max_rows * int64_t{sizeof(float)});
  if (options_.hopper) wgmma8_.emplace(num_sms_, stream_);
  else if (max_rows > cuda::tuning::kMaxInt8FewRows)
    int8_lt_.emplace(std::min(max_rows * max_int8_out_, cuda::tuning::kMaxInt8Sums));
}

}  // namespace llmb
