#include "model/packed_parts.h"

#include <cmath>
#include <cstring>

#include "base/float_formats.h"

namespace llmb {

Result<DType> scale_dtype(const StoredTensor& tensor) {
  if (tensor.dtype == "F16") return DType::kF16;
  if (tensor.dtype == "BF16") return DType::kBF16;
  if (tensor.dtype == "F32") return DType::kF32;
  return unsupported(tensor.where + " has dtype " + std::string(tensor.dtype) + ", expected F32, F16 or BF16");
}

Result<StoredScales> StoredScales::of(const StoredTensor& tensor) {
  StoredScales out;
  LLMB_ASSIGN_OR_RETURN(out.dtype_, scale_dtype(tensor));
  out.data_ = tensor.data;
  out.size_ = tensor.bytes / dtype_bytes(out.dtype_);
  out.where_ = tensor.where;
  return out;
}

float StoredScales::read(int64_t index) {
  uint16_t half = 0;
  float value = 0;
  if (dtype_ == DType::kF32) std::memcpy(&value, data_ + 4 * index, 4);
  else std::memcpy(&half, data_ + 2 * index, 2);
  if (dtype_ == DType::kBF16) value = bf16_to_f32(half);
  if (dtype_ == DType::kF16) value = f16_to_f32(half);
  are_finite_ = are_finite_ && std::isfinite(value);
  return value;
}

Status StoredScales::status() const {
  return are_finite_ ? Status() : data_loss(where_ + " holds a scale that is not finite");
}

Result<std::vector<float>> read_finite(const StoredTensor& tensor) {
  LLMB_ASSIGN_OR_RETURN(StoredScales scales, StoredScales::of(tensor));
  std::vector<float> values(static_cast<size_t>(scales.size()));
  for (size_t i = 0; i < values.size(); ++i) values[i] = scales.read(static_cast<int64_t>(i));
  LLMB_RETURN_IF_ERROR(scales.status());
  return values;
}

}  // namespace llmb
