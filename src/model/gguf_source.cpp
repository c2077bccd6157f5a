// The tensors of a GGUF file under the names of a Hugging Face checkpoint.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/float_formats.h"
#include "core/block_format.h"
#include "core/block_scales.h"
#include "formats/safetensors.h"
#include "model/gguf_dequantise.h"
#include "model/gguf_layout.h"
#include "model/gguf_model.h"

namespace llmb {

namespace {

// Without dimensions of 1.
std::vector<int64_t> squeezed(std::span<const int64_t> shape) {
  std::vector<int64_t> out(shape.begin(), shape.end());
  std::erase(out, 1);
  return out;
}

// Norms of groups lie in rows of one each.
bool has_shape(const std::string& name, std::span<const int64_t> stored, std::span<const int64_t> wanted) {
  if (squeezed(stored) == squeezed(wanted)) return true;
  const bool is_grouped = name.ends_with(".ssm_norm.weight") && stored.size() == 2 && wanted.size() == 1;
  return is_grouped && stored[0] * stored[1] == wanted[0];
}

// F16 and BF16 as they are; MXFP4 without loss.
DType loaded_dtype(std::string_view type) {
  return type == "F16" ? DType::kF16 : type == "BF16" || type == "MXFP4" ? DType::kBF16 : DType::kF32;
}

void dequantise_row_bf16(const GgufTensorType& type, const uint8_t* row, int64_t cols, uint16_t* out) {
  constexpr int64_t kChunk = 256;
  float values[kChunk];
  for (int64_t col = 0; col < cols; col += kChunk) {
    const int64_t count = std::min(kChunk, cols - col);
    dequantise_row(type, row + col / type.block_size * type.block_bytes, count, values);
    for (int64_t i = 0; i < count; ++i) out[col + i] = f32_to_bf16(values[i]);
  }
}

// Columns of a row as they are stored, or as numbers of `dtype`.
void copy_columns(const GgufTensorType& type, const uint8_t* from, int64_t cols, bool as_stored, DType dtype,
                  uint8_t* to) {
  if (as_stored) std::memcpy(to, from, cols / type.block_size * type.block_bytes);
  else if (dtype == DType::kBF16) dequantise_row_bf16(type, from, cols, reinterpret_cast<uint16_t*>(to));
  else dequantise_row(type, from, cols, reinterpret_cast<float*>(to));
}

// The same of columns that may cut blocks, where they become numbers.
void copy_any_columns(const GgufTensorType& type, const uint8_t* row, int64_t first, int64_t count, bool as_stored,
                      DType dtype, uint8_t* to) {
  const int64_t size = type.block_size, begin = first / size, end = ceil_div(first + count, size);
  const uint8_t* const from = row + begin * type.block_bytes;
  if (first % size == 0 && count % size == 0) return copy_columns(type, from, count, as_stored, dtype, to);
  LLMB_CHECK(!as_stored);
  std::vector<uint8_t> whole(static_cast<size_t>((end - begin) * size * dtype_bytes(dtype)));
  copy_columns(type, from, (end - begin) * size, false, dtype, whole.data());
  std::memcpy(to, whole.data() + (first - begin * size) * dtype_bytes(dtype),
              static_cast<size_t>(count * dtype_bytes(dtype)));
}

}  // namespace

int64_t gguf_interleaved_row(int64_t row, const ModelConfig& config) {
  const int64_t head_dim = config.head_dim, in_head = row % head_dim;
  const int64_t rotary_dim = config.ropes.empty() ? head_dim : config.rotary_dim(config.ropes[0]),
                half = rotary_dim / 2;
  return in_head >= rotary_dim ? row : row - in_head + in_head % half * 2 + in_head / half;
}

Status check_gguf_tensors(const GgufFile& file) {
  for (const GgufTensor& tensor : file.tensors())
    if (!can_dequantise(*tensor.type))
      return unsupported(
          "tensor \"" + std::string(tensor.name) + "\" has type " + tensor.type->name +
          ", which is not supported; supported: F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q2_K, Q3_K, Q4_K, Q5_K, "
          "Q6_K, IQ4_NL, IQ4_XS, MXFP4");
  return {};
}

// A tensor that was asked for, as rows in the file.
struct GgufSource::Rows {
  std::string quoted;  // its name
  const GgufTensorType* type = nullptr;
  GgufLayout layout;
  bool is_vector = false;
  int64_t num_rows = 0, num_cols = 0;  // as it was asked for
  int64_t rows = 0, cols = 0,
          all_rows = 0;  // where numbers stand by themselves, each is a row; all: of which some are it
  int64_t row_bytes = 0;
  const uint8_t* data = nullptr;

  int64_t stored(int64_t row) const { return layout.row ? layout.row(row) : row; }  // where it lies in the file
  bool changes_values() const { return layout.value != GgufLayout::Value::kSame; }
};

Result<GgufSource::Rows> GgufSource::find_rows(const std::string& name, std::span<const int64_t> shape) const {
  const auto place = gguf_place(file_, name, architecture_, config_);
  if (!place) return unsupported("tensor \"" + name + "\" has no name in a GGUF file");
  const GgufStored at = gguf_stored(file_, config_, place->name);
  if (at.tensor == nullptr)
    return data_loss("tensor \"" + place->name + "\" is missing, expected shape " + shape_string(shape));
  Rows r;
  r.quoted = "tensor \"" + std::string(at.tensor->name) + "\"";
  std::span<const int64_t> stored_shape = at.tensor->shape;
  const bool is_slice = place->index && stored_shape.size() == shape.size() + 1 && *place->index < stored_shape[0];
  if (is_slice) stored_shape = stored_shape.subspan(1);
  if (shape.size() == 2 && shape[0] == 1 && stored_shape.size() == 1) shape = shape.subspan(1);  // a row, squeezed
  r.is_vector = shape.size() == 1;
  r.layout = gguf_layout(name, place->name, r.is_vector, architecture_, config_);
  const int64_t shared_rows = at.num_rows > 0 ? at.num_rows : r.layout.stored_rows;
  std::vector<int64_t> wanted(shape.begin(), shape.end());
  if (shared_rows > 0) wanted[0] = shared_rows;
  r.type = at.tensor->type;
  if (place->index.has_value() != is_slice || !has_shape(place->name, stored_shape, wanted) ||
      shape.back() % r.type->block_size != 0)
    return data_loss(r.quoted + " has shape " + shape_string(at.tensor->shape) + ", expected " +
                     (place->index ? "matrices of shape " : "") + shape_string(wanted));
  // Each number of a bias, and of norms of heads, is a row.
  const bool are_rows = (r.is_vector && (r.layout.row || at.num_rows > 0)) || r.layout.moves_numbers;
  if (are_rows && r.type->block_size != 1)
    return unsupported(r.quoted + " is a " + (r.layout.moves_numbers ? "norm" : "bias") + " of type " + r.type->name +
                       ", which is not supported");
  r.num_rows = 1;
  r.num_cols = shape.back();
  for (size_t i = 0; i + 1 < shape.size(); ++i) r.num_rows *= shape[i];
  r.rows = are_rows ? r.num_rows * r.num_cols : r.num_rows;
  r.cols = are_rows ? 1 : r.num_cols;
  r.all_rows = r.layout.stored_rows > 0 ? r.layout.stored_rows : r.rows;
  r.row_bytes = r.cols / r.type->block_size * r.type->block_bytes;
  const int64_t rows_before = at.first_row + (is_slice ? *place->index * (at.num_rows > 0 ? at.num_rows : r.rows) : 0);
  r.data = at.tensor->data.data() + rows_before * r.row_bytes;
  return r;
}

GgufSource::GgufSource(const GgufFile& file, const ModelConfig& config, ThreadPool& pool, WeightAccess access,
                       WeightForm form)
    : file_(file),
      config_(config),
      architecture_(*gguf_architecture(file)),
      pool_(pool),
      access_(access),
      form_(form),
      reads_(file.files()) {}

bool GgufSource::has(const std::string& name) const {
  const auto place = gguf_place(file_, name, architecture_, config_);
  return place && gguf_stored(file_, config_, place->name).tensor != nullptr;
}

Result<TensorView> GgufSource::tensor(const std::string& name, std::span<const int64_t> shape) {
  LLMB_ASSIGN_OR_RETURN(const Rows r, find_rows(name, shape));
  return make(r, {0, r.num_rows, 0, r.num_cols});
}

Result<std::optional<TensorView>> GgufSource::outline(const std::string& name, std::span<const int64_t> shape) {
  LLMB_ASSIGN_OR_RETURN(const Rows r, find_rows(name, shape));
  const bool is_stored_so = r.type->block_size == 1 && !r.layout.row && !r.layout.piece;
  if (r.rows != r.num_rows || r.is_vector || is_stored_so || r.changes_values()) return std::optional<TensorView>();
  LLMB_ASSIGN_OR_RETURN(TensorView view, make(r, {0, 0, 0, r.num_cols}));
  view.rows = r.num_rows;
  return std::optional(view);
}

Result<TensorView> GgufSource::part(const std::string& name, std::span<const int64_t> shape, const MatrixPart& part) {
  LLMB_ASSIGN_OR_RETURN(const Rows r, find_rows(name, shape));
  return make(r, part);
}

// kDataLoss: a block of the wanted rows and columns has a scale that is infinite or NaN.
Status GgufSource::check_scales(BlockFormat format, const Rows& r, const MatrixPart& part) {
  const BlockSize& block = block_size(format);
  const int64_t first = part.first_col / block.size;
  const int64_t count = ceil_div(part.first_col + part.num_cols, block.size) - first, in_row = r.cols / block.size;
  const int64_t none = r.all_rows * in_row;
  std::atomic<int64_t> bad{none};  // the first
  pool_.parallel_for(part.num_rows, [&](int64_t i, int) {
    const int64_t row = r.stored(part.first_row + i);
    const int64_t b = first_bad_block(format, r.data + row * r.row_bytes + first * block.bytes, count);
    const int64_t here = b < count ? row * in_row + first + b : none;
    int64_t known = bad.load();
    while (here < known && !bad.compare_exchange_weak(known, here)) continue;
  });
  if (bad.load() == none) return {};
  return data_loss(r.quoted + ": block " + std::to_string(bad.load() % in_row) + " of row " +
                   std::to_string(bad.load() / in_row) + " (" + block.name +
                   ") has a scale that is not a finite number; the file is damaged, fetch it again");
}

// Columns of a row. Pieces that lie in another order in the file are taken one by one.
void GgufSource::copy_row(const Rows& r, int64_t row, const MatrixPart& part, bool as_stored, DType dtype,
                          uint8_t* to) const {
  const uint8_t* const from = r.data + r.stored(row) * r.row_bytes;
  if (!r.layout.piece) return copy_any_columns(*r.type, from, part.first_col, part.num_cols, as_stored, dtype, to);
  const int64_t width = r.layout.piece_cols, end = part.first_col + part.num_cols;
  for (int64_t col = part.first_col; col < end;) {
    const int64_t in_piece = col % width, count = std::min(width - in_piece, end - col);
    copy_any_columns(*r.type, from, r.layout.piece(col / width) * width + in_piece, count, as_stored, dtype, to);
    to += as_stored ? count / r.type->block_size * r.type->block_bytes : count * dtype_bytes(dtype);
    col += count;
  }
}

Result<TensorView> GgufSource::make(const Rows& r, const MatrixPart& part) {
  const GgufTensorType& type = *r.type;
  const GgufLayout& layout = r.layout;
  const BlockFormat format = find_block_format(type.name);
  TensorView view = {nullptr, r.changes_values() ? DType::kF32 : loaded_dtype(type.name), part.num_rows, part.num_cols};
  const bool cuts_blocks = layout.piece && layout.piece_cols % type.block_size != 0;
  if (form_ == WeightForm::kBlocks && !r.is_vector && !r.changes_values() && !cuts_blocks) view.blocks = format;
  if (access_ == WeightAccess::kShapes || part.num_rows == 0) return view;
  reads_.add(r.data, r.all_rows * r.row_bytes);
  if (format != BlockFormat::kNone) LLMB_RETURN_IF_ERROR(check_scales(format, r, part));
  const bool keeps_dtype = (type.block_size == 1 || view.blocks != BlockFormat::kNone) && !r.changes_values();
  if (keeps_dtype && !layout.row && !layout.piece && part.num_cols == r.num_cols) {
    view.data = r.data + part.first_row * r.row_bytes;
    return view;
  }
  // Numbers that are rows by themselves are wanted all at once.
  const MatrixPart own = r.rows != r.num_rows ? MatrixPart{0, r.rows, 0, 1} : part;
  const int64_t row_bytes =
      keeps_dtype ? own.num_cols / type.block_size * type.block_bytes : own.num_cols * dtype_bytes(view.dtype);
  auto* const out = static_cast<uint8_t*>(buffers_.take(own.num_rows * row_bytes));
  std::atomic<bool> has_no_logarithm{false};
  pool_.parallel_for(own.num_rows, [&](int64_t row, int) {
    uint8_t* const to = out + row * row_bytes;
    copy_row(r, own.first_row + row, own, keeps_dtype, view.dtype, to);
    if (!r.changes_values()) return;
    auto* const floats = reinterpret_cast<float*>(to);
    for (int64_t i = 0; i < own.num_cols; ++i) {
      const float value = floats[i];
      floats[i] = layout.value == GgufLayout::Value::kMinusOne ? value - 1 : std::log(-value);
      if (layout.value == GgufLayout::Value::kLogOfNegated && !std::isfinite(floats[i])) has_no_logarithm = true;
    }
  });
  if (has_no_logarithm) return data_loss(r.quoted + " holds a number that is not below 0");
  view.data = out;
  return view;
}

}  // namespace llmb
