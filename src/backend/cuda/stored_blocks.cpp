#include "backend/cuda/stored_blocks.h"

#include <algorithm>
#include <cstring>

#include "base/float_formats.h"
#include "kernels/cuda/linear_int4.h"
#include "kernels/cuda/linear_sparse24.h"

namespace llmb {

namespace {

constexpr uint8_t kMiddle = 8;  // the zero of codes without zeros

// The largest distance of a zero of the blocks from the middle; INT32_MAX where one has no place beside codes.
int32_t largest_shift(const TensorView& matrix) {
  const auto* const blocks = static_cast<const uint8_t*>(matrix.data);
  const int64_t bytes = block_size(matrix.blocks).bytes, size = matrix.rows * matrix.row_bytes();
  int32_t largest = 0;
  for (int64_t at = 2; at < size; at += bytes) {
    if (blocks[at] > cuda::int4::kMaxZero) return INT32_MAX;
    largest = std::max(largest, std::abs(int32_t{blocks[at]} - kMiddle));
  }
  return largest;
}

// Whether units have a place for every scale of MXFP4's blocks.
bool has_small_exponents(const TensorView& matrix) {
  const auto* const blocks = static_cast<const uint8_t*>(matrix.data);
  const int64_t bytes = block_size(matrix.blocks).bytes, size = matrix.rows * matrix.row_bytes();
  for (int64_t at = 0; at < size; at += bytes)
    if (blocks[at] > cuda::int4::kMaxExponent) return false;
  return true;
}

}  // namespace

CudaForm form_of_blocks(std::span<const TensorView> parts, DType dtype) {
  const BlockFormat integers = dtype == DType::kF16 ? BlockFormat::kInt4F16 : BlockFormat::kInt4BF16;
  const bool is_mxfp4 = parts[0].blocks == BlockFormat::kMXFP4;
  if (dtype == DType::kF32) return CudaForm::kNumbers;
  int64_t out_features = 0;
  for (const TensorView& part : parts) out_features += part.rows;
  if (std::all_of(parts.begin(), parts.end(), [](const TensorView& part) { return is_sparse24(part.blocks); }))
    return cuda::LinearSparse24::takes(out_features, parts[0].cols) ? CudaForm::kSparse24 : CudaForm::kNumbers;
  int32_t shift = 0;
  for (const TensorView& part : parts) {
    if (part.blocks != (is_mxfp4 ? BlockFormat::kMXFP4 : integers)) return CudaForm::kNumbers;
    if (is_mxfp4 && !has_small_exponents(part)) return CudaForm::kNumbers;
    if (!is_mxfp4) shift = std::max(shift, largest_shift(part));
  }
  if (shift == INT32_MAX || !cuda::LinearInt4::takes(out_features, parts[0].cols)) return CudaForm::kNumbers;
  if (is_mxfp4) return CudaForm::kMxfp4;
  return shift == 0 ? CudaForm::kInt4 : CudaForm::kInt4Zeros;
}

WeightForm form_to_read(StoredMethod stored, bool keeps_fp8, DType dtype) {
  if (keeps_fp8 || stored == StoredMethod::kSparse24) return WeightForm::kBlocks;
  if (stored == StoredMethod::kNumbers) return WeightForm::kNumbers;
  return dtype == DType::kF16 ? WeightForm::kFourBitsF16 : WeightForm::kFourBitsBF16;
}

bool has_fp8_rows(const TensorView& matrix) {
  if (matrix.blocks != BlockFormat::kFp8F16 && matrix.blocks != BlockFormat::kFp8BF16) return false;
  const auto* const blocks = static_cast<const uint8_t*>(matrix.data);
  const BlockSize& block = block_size(matrix.blocks);
  const int64_t row_bytes = matrix.row_bytes(), size = matrix.rows * row_bytes;
  for (int64_t at = 0; at < size; at += block.bytes) {
    if (std::memcmp(blocks + at, blocks + at / row_bytes * row_bytes, sizeof(float)) != 0) return false;
    for (int64_t i = sizeof(float); i < block.bytes; ++i)
      if ((blocks[at + i] & 0x7f) == 0x7f) return false;  // NaN
  }
  return true;
}

TensorView as_numbers(const TensorView& matrix, std::vector<uint8_t>* memory) {
  if (matrix.blocks == BlockFormat::kNone) return matrix;
  const int64_t each = dtype_bytes(matrix.dtype);
  memory->resize(static_cast<size_t>(matrix.rows * matrix.cols * each));
  std::vector<float> numbers(static_cast<size_t>(matrix.cols));
  uint8_t* to = memory->data();
  for (int64_t row = 0; row < matrix.rows; ++row) {
    decode_row(matrix, row, numbers.data());
    for (const float x : numbers) {
      const uint16_t half = matrix.dtype == DType::kF16 ? f32_to_f16(x) : f32_to_bf16(x);
      if (matrix.dtype == DType::kF32) std::memcpy(to, &x, 4);
      else std::memcpy(to, &half, 2);
      to += each;
    }
  }
  return {memory->data(), matrix.dtype, matrix.rows, matrix.cols};
}

}  // namespace llmb
