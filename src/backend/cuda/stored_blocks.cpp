#include "backend/cuda/stored_blocks.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>

#include "base/float_formats.h"
#include "kernels/cuda/linear_int4.h"
#include "kernels/cuda/linear_sparse24.h"

namespace llmb {

namespace {

constexpr int64_t kGroup = cuda::int4::kGroup;

bool is_integers(BlockFormat format) {
  return format >= BlockFormat::kInt4F16 && format <= BlockFormat::kIndexedInt8BF16;
}
bool has_bytes(BlockFormat format) {
  return format == BlockFormat::kInt8F16 || format == BlockFormat::kInt8BF16 ||
         format == BlockFormat::kIndexedInt8F16 || format == BlockFormat::kIndexedInt8BF16;
}

// f(zero), of every group of every row.
template <typename Function>
void for_each_zero(const TensorView& matrix, const Function& f) {
  const auto* row = static_cast<const uint8_t*>(matrix.data);
  const int64_t bytes = block_size(matrix.blocks).bytes, row_bytes = matrix.row_bytes();
  for (int64_t i = 0; i < matrix.rows; ++i, row += row_bytes) {
    if (is_indexed(matrix.blocks))
      for (int64_t group = 0; group < matrix.groups.count; ++group) f(row[row_bytes - matrix.groups.count + group]);
    else
      for (int64_t at = kGroupScaleBytes - 1; at < row_bytes; at += bytes) f(row[at]);
  }
}

// Whether there is a zero that is not the middle; nothing where one has no place beside codes.
std::optional<bool> has_zeros(const TensorView& matrix) {
  const int32_t middle = has_bytes(matrix.blocks) ? 128 : 8;
  const int32_t most = has_bytes(matrix.blocks) ? 255 : cuda::int4::kMaxZero;
  int32_t largest = 0;
  bool has_other = false;
  for_each_zero(matrix, [&](int32_t zero) {
    largest = std::max(largest, zero);
    has_other |= zero != middle;
  });
  if (largest > most) return std::nullopt;
  return has_other;
}

bool have_same_groups(const TensorView& a, const TensorView& b) {
  return a.groups.count == b.groups.count && std::equal(a.groups.of, a.groups.of + a.cols, b.groups.of);
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
  const BlockFormat format = parts[0].blocks;
  const bool is_mxfp4 = format == BlockFormat::kMXFP4;
  const bool has_form = is_mxfp4 || (is_integers(format) && has_bf16_numbers(format) == (dtype == DType::kBF16));
  if (dtype == DType::kF32) return CudaForm::kNumbers;
  int64_t out_features = 0;
  for (const TensorView& part : parts) out_features += part.rows;
  if (std::all_of(parts.begin(), parts.end(), [](const TensorView& part) { return is_sparse24(part.blocks); }))
    return cuda::LinearSparse24::takes(out_features, parts[0].cols) ? CudaForm::kSparse24 : CudaForm::kNumbers;
  if (!has_form || (is_indexed(format) && column_order(parts[0]).empty())) return CudaForm::kNumbers;
  bool any_zeros = false;
  for (const TensorView& part : parts) {
    if (part.blocks != format || (is_mxfp4 && !has_small_exponents(part))) return CudaForm::kNumbers;
    if (is_indexed(format) && !have_same_groups(part, parts[0])) return CudaForm::kNumbers;
    if (is_mxfp4) continue;
    const std::optional<bool> zeros = has_zeros(part);
    if (!zeros) return CudaForm::kNumbers;
    any_zeros |= *zeros;
  }
  if (!cuda::LinearInt4::takes(out_features, parts[0].cols)) return CudaForm::kNumbers;
  if (is_mxfp4) return CudaForm::kMxfp4;
  if (has_bytes(format)) return any_zeros ? CudaForm::kBytesZeros : CudaForm::kBytes;
  return any_zeros ? CudaForm::kInt4Zeros : CudaForm::kInt4;
}

std::vector<int32_t> column_order(const TensorView& matrix) {
  if (!is_indexed(matrix.blocks) || matrix.groups.of == nullptr || matrix.cols % kGroup != 0) return {};
  const uint16_t* const of = matrix.groups.of;
  std::vector<int32_t> order(static_cast<size_t>(matrix.cols));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return of[a] < of[b]; });
  for (int64_t first = 0; first < matrix.cols; first += kGroup) {
    const uint16_t group = of[order[first]];
    if (of[order[first + kGroup - 1]] != group) return {};
    order.push_back(group);
  }
  return order;
}

WeightForm form_to_read(StoredMethod stored, bool keeps_fp8, DType dtype) {
  if (keeps_fp8 || stored == StoredMethod::kSparse24) return WeightForm::kBlocks;
  if (stored == StoredMethod::kNumbers) return WeightForm::kNumbers;
  return dtype == DType::kF16 ? WeightForm::kIntegersF16 : WeightForm::kIntegersBF16;
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
