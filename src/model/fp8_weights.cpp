#include "model/fp8_weights.h"

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/float_formats.h"

namespace llmb {

namespace {

const std::array<float, 256>& fp8_values() {
  static const std::array<float, 256> values = [] {
    std::array<float, 256> table;
    for (int bits = 0; bits < 256; ++bits) table[bits] = fp8_e4m3_to_f32(static_cast<uint8_t>(bits));
    return table;
  }();
  return values;
}

Result<std::vector<float>> read_floats(const StoredTensor& tensor, int64_t count) {
  std::vector<float> out(count);
  for (int64_t i = 0; i < count; ++i) {
    uint16_t half = 0;
    if (tensor.dtype == "F32") {
      std::memcpy(&out[i], tensor.data + 4 * i, 4);
    } else if (tensor.dtype == "BF16" || tensor.dtype == "F16") {
      std::memcpy(&half, tensor.data + 2 * i, 2);
      out[i] = tensor.dtype == "BF16" ? bf16_to_f32(half) : f16_to_f32(half);
    } else {
      return unsupported(tensor.where + " has dtype " + std::string(tensor.dtype) + ", expected F32, F16 or BF16");
    }
    if (!std::isfinite(out[i])) return data_loss(tensor.where + " holds a scale that is not finite");
  }
  return out;
}

// Columns of a row, block by block.
template <typename Store>
void dequantise_row(const uint8_t* row, const float* scales, int64_t block_cols, const MatrixPart& part,
                    const Store& store) {
  const std::array<float, 256>& values = fp8_values();
  const int64_t last = part.first_col + part.num_cols;
  for (int64_t begin = part.first_col; begin < last;) {
    const int64_t block = begin / block_cols, end = std::min(last, (block + 1) * block_cols);
    for (int64_t col = begin; col < end; ++col) store(col - part.first_col, values[row[col]] * scales[block]);
    begin = end;
  }
}

}  // namespace

// How many rows and columns of the weight share a scale.
struct Fp8Source::Scales {
  std::vector<float> values;  // [ceil(rows / block_rows), ceil(cols / block_cols)]
  int64_t block_rows = 1, block_cols = 1;
  int64_t cols = 0;

  const float* of_row(int64_t row) const { return values.data() + row / block_rows * ceil_div(cols, block_cols); }
};

Result<Fp8Source::Scales> Fp8Source::read_scales(const StoredTensor& tensor, int64_t rows, int64_t cols) const {
  Scales scales;
  scales.cols = cols;
  int64_t count = 1;
  for (const int64_t dimension : tensor.shape) count *= dimension;  // fits: the file holds them
  const bool is_matrix = tensor.shape.size() == 2;
  const int64_t block_rows = config_.fp8_block_rows, block_cols = config_.fp8_block_cols;
  const bool is_blocks = is_matrix && block_rows > 0 && block_cols > 0 &&
                         tensor.shape[0] == ceil_div(rows, block_rows) && tensor.shape[1] == ceil_div(cols, block_cols);
  const bool is_rows = count == rows && (tensor.shape.size() == 1 || (is_matrix && tensor.shape[0] == rows));
  if (is_blocks) {
    scales.block_rows = block_rows;
    scales.block_cols = block_cols;
  } else if (count == 1) {
    scales.block_rows = rows;
    scales.block_cols = cols;
  } else if (is_rows) {
    scales.block_cols = cols;
  } else {
    std::string expected = "one scale, one for each of " + std::to_string(rows) + " rows";
    if (block_rows > 0) expected += ", or blocks of " + std::to_string(block_rows) + " x " + std::to_string(block_cols);
    return data_loss(tensor.where + " has shape " + shape_string(tensor.shape) + ", expected " + expected);
  }
  LLMB_ASSIGN_OR_RETURN(scales.values, read_floats(tensor, count));
  return scales;
}

// Blocks of codes with their scale, of which scales.block_cols are a multiple.
TensorView Fp8Source::blocks(const uint8_t* codes, const Scales& scales, const MatrixPart& part) {
  const BlockFormat format = config_.dtype == DType::kBF16 ? BlockFormat::kFp8BF16 : BlockFormat::kFp8F16;
  const BlockSize& block = block_size(format);
  TensorView view{nullptr, config_.dtype, part.num_rows, part.num_cols, format};
  if (access_ == WeightAccess::kShapes || part.num_rows == 0) return view;
  auto* const out = static_cast<uint8_t*>(buffers_.take(view.rows * view.row_bytes()));
  pool_.parallel_for(view.rows, [&](int64_t i, int) {
    const int64_t row = part.first_row + i;
    const uint8_t* const in = codes + row * scales.cols;
    const float* const row_scales = scales.of_row(row);
    uint8_t* to = out + i * view.row_bytes();
    const int64_t end = part.first_col + part.num_cols;
    for (int64_t col = part.first_col; col < end; col += block.size, to += block.bytes) {
      std::memcpy(to, &row_scales[col / scales.block_cols], 4);
      std::memcpy(to + 4, in + col, static_cast<size_t>(block.size));
    }
  });
  view.data = out;
  return view;
}

TensorView Fp8Source::numbers(const uint8_t* codes, const Scales& scales, const MatrixPart& part) {
  const DType dtype = config_.dtype;
  TensorView view{nullptr, dtype, part.num_rows, part.num_cols};
  if (access_ == WeightAccess::kShapes || part.num_rows == 0) return view;
  auto* const out = static_cast<uint8_t*>(buffers_.take(view.rows * view.row_bytes()));
  pool_.parallel_for(view.rows, [&](int64_t i, int) {
    const int64_t row = part.first_row + i;
    auto* const floats = reinterpret_cast<float*>(out + i * view.row_bytes());
    auto* const halves = reinterpret_cast<uint16_t*>(out + i * view.row_bytes());
    const auto convert = [&](const auto& store) {
      dequantise_row(codes + row * scales.cols, scales.of_row(row), scales.block_cols, part, store);
    };
    if (dtype == DType::kF32) convert([&](int64_t k, float x) { floats[k] = x; });
    else if (dtype == DType::kBF16) convert([&](int64_t k, float x) { halves[k] = f32_to_bf16(x); });
    else convert([&](int64_t k, float x) { halves[k] = f32_to_f16(x); });
  });
  view.data = out;
  return view;
}

Result<const uint8_t*> Fp8Source::bytes(const std::string& name, std::span<const int64_t> shape) {
  Result<const uint8_t*> stored = checkpoint_.bytes(name, shape);
  if (stored.ok() && access_ == WeightAccess::kShapes) return static_cast<const uint8_t*>(nullptr);
  if (stored.ok()) reads_.add(*stored, checkpoint_.find(name)->bytes);
  return stored;
}

bool Fp8Source::is_fp8(const std::string& name, std::span<const int64_t> shape) const {
  const std::optional<StoredTensor> stored = checkpoint_.find(name);
  return stored && stored->dtype == kFp8DType && shape.size() == 2;
}

Result<TensorView> Fp8Source::tensor(const std::string& name, std::span<const int64_t> shape) {
  if (is_fp8(name, shape)) return part(name, shape, {0, shape[0], 0, shape[1]});
  const std::optional<StoredTensor> stored = checkpoint_.find(name);
  if (stored && access_ == WeightAccess::kValues) reads_.add(stored->data, stored->bytes);
  Result<TensorView> view = checkpoint_.tensor(name, shape);
  if (view.ok() && access_ == WeightAccess::kShapes) view->data = nullptr;
  return view;
}

Result<std::optional<TensorView>> Fp8Source::outline(const std::string& name, std::span<const int64_t> shape) {
  if (!is_fp8(name, shape)) return std::optional<TensorView>();
  LLMB_ASSIGN_OR_RETURN(TensorView view, part(name, shape, {0, 0, 0, shape[1]}));
  view.rows = shape[0];
  return std::optional(view);
}

// Scales are read whole: they are few beside the codes, one for each row or block of rows and columns.
Result<TensorView> Fp8Source::part(const std::string& name, std::span<const int64_t> shape, const MatrixPart& part) {
  const std::optional<StoredTensor> stored = checkpoint_.find(name);
  LLMB_RETURN_IF_ERROR(check_shape(*stored, shape));
  std::optional<StoredTensor> scale = checkpoint_.find(name + "_scale_inv");
  if (!scale) scale = checkpoint_.find(name + "_scale");
  if (!scale)
    return data_loss(stored->where + " is F8_E4M3 without a scale (" + name + "_scale, " + name + "_scale_inv)");
  reads_.add(stored->data, stored->bytes);
  reads_.add(scale->data, scale->bytes);
  const int64_t cols = shape[1];
  LLMB_ASSIGN_OR_RETURN(const Scales scales, read_scales(*scale, shape[0], cols));
  const int64_t block = block_size(BlockFormat::kFp8BF16).size;
  const bool has_blocks = cols % block == 0 && (scales.block_cols == cols || scales.block_cols % block == 0);
  const bool is_cut = part.first_col % block != 0 || part.num_cols % block != 0;
  if (form_ == WeightForm::kBlocks && has_blocks && !is_cut && config_.dtype != DType::kF32)
    return blocks(stored->data, scales, part);
  return numbers(stored->data, scales, part);
}

}  // namespace llmb
