// The tensors of a GGUF file under the names of a Hugging Face checkpoint.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

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

// The same with pieces in the checkpoint's order.
void copy_pieces(const GgufTensorType& type, const uint8_t* from, int64_t cols, const GgufLayout& layout,
                 bool as_stored, DType dtype, uint8_t* to) {
  const int64_t width = layout.piece_cols;
  const bool has_whole_blocks = width % type.block_size == 0;
  const int64_t out_bytes = as_stored ? width / type.block_size * type.block_bytes : width * dtype_bytes(dtype);
  std::vector<uint8_t> row(has_whole_blocks ? 0 : static_cast<size_t>(cols * dtype_bytes(dtype)));
  if (!has_whole_blocks) copy_columns(type, from, cols, false, dtype, row.data());
  for (int64_t i = 0; i < cols / width; ++i) {
    const int64_t stored = layout.piece(i);
    if (has_whole_blocks)
      copy_columns(type, from + stored * width / type.block_size * type.block_bytes, width, as_stored, dtype,
                   to + i * out_bytes);
    else std::memcpy(to + i * out_bytes, row.data() + stored * out_bytes, out_bytes);
  }
}

// kDataLoss: a block's scale is infinite or NaN.
Status check_scales(BlockFormat format, const uint8_t* data, int64_t rows, int64_t cols, const std::string& tensor,
                    ThreadPool& pool) {
  const BlockSize& block = block_size(format);
  const int64_t num_blocks = cols / block.size;
  const int64_t none = rows * num_blocks;
  std::atomic<int64_t> bad{none};  // the first
  pool.parallel_for(rows, [&](int64_t row, int) {
    const int64_t b = first_bad_block(format, data + row * num_blocks * block.bytes, num_blocks);
    const int64_t here = b < num_blocks ? row * num_blocks + b : none;
    int64_t known = bad.load();
    while (here < known && !bad.compare_exchange_weak(known, here)) continue;
  });
  if (bad.load() == none) return {};
  return data_loss(tensor + ": block " + std::to_string(bad.load() % num_blocks) + " of row " +
                   std::to_string(bad.load() / num_blocks) + " (" + block.name +
                   ") has a scale that is not a finite number; the file is damaged, fetch it again");
}

// A tensor that was asked for, as rows in the file.
struct StoredRows {
  std::string quoted;  // its name
  const GgufTensorType* type = nullptr;
  GgufLayout layout;
  bool is_vector = false;
  int64_t num_rows = 0, num_cols = 0;  // as it was asked for
  int64_t rows = 0, cols = 0,
          all_rows = 0;  // where numbers stand by themselves, each is a row; all: of which some are it
  int64_t row_bytes = 0;
  const uint8_t* data = nullptr;
};

Result<StoredRows> find_rows(const GgufFile& file, const GgufArchitecture& architecture, const ModelConfig& config,
                             const std::string& name, std::span<const int64_t> shape) {
  const auto place = gguf_place(file, name, architecture, config);
  if (!place) return unsupported("tensor \"" + name + "\" has no name in a GGUF file");
  const GgufStored at = gguf_stored(file, config, place->name);
  if (at.tensor == nullptr)
    return data_loss("tensor \"" + place->name + "\" is missing, expected shape " + shape_string(shape));
  StoredRows r;
  r.quoted = "tensor \"" + std::string(at.tensor->name) + "\"";
  std::span<const int64_t> stored_shape = at.tensor->shape;
  const bool is_slice = place->index && stored_shape.size() == shape.size() + 1 && *place->index < stored_shape[0];
  if (is_slice) stored_shape = stored_shape.subspan(1);
  if (shape.size() == 2 && shape[0] == 1 && stored_shape.size() == 1) shape = shape.subspan(1);  // a row, squeezed
  r.is_vector = shape.size() == 1;
  r.layout = gguf_layout(name, place->name, r.is_vector, architecture, config);
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
  LLMB_ASSIGN_OR_RETURN(const StoredRows r, find_rows(file_, architecture_, config_, name, shape));
  const GgufTensorType& type = *r.type;
  const GgufLayout& layout = r.layout;
  const bool has_changed_values = layout.value != GgufLayout::Value::kSame;
  if (access_ == WeightAccess::kValues) reads_.add(r.data, r.all_rows * r.row_bytes);
  const BlockFormat format = find_block_format(type.name);
  if (access_ == WeightAccess::kValues && format != BlockFormat::kNone)
    LLMB_RETURN_IF_ERROR(check_scales(format, r.data, r.all_rows, r.cols, r.quoted, pool_));
  TensorView view = {r.data, has_changed_values ? DType::kF32 : loaded_dtype(type.name), r.num_rows, r.num_cols};
  const bool cuts_blocks = layout.piece && layout.piece_cols % type.block_size != 0;
  if (form_ == WeightForm::kBlocks && !r.is_vector && !has_changed_values && !cuts_blocks) view.blocks = format;
  const bool keeps_dtype = (type.block_size == 1 || view.blocks != BlockFormat::kNone) && !has_changed_values;
  if (access_ == WeightAccess::kShapes) view.data = nullptr;
  if (access_ == WeightAccess::kShapes || (keeps_dtype && !layout.row && !layout.piece)) return view;

  const int64_t row_bytes = keeps_dtype ? r.row_bytes : r.cols * dtype_bytes(view.dtype);
  auto* const out = static_cast<uint8_t*>(buffers_.take(r.rows * row_bytes));
  std::atomic<bool> has_no_logarithm{false};
  pool_.parallel_for(r.rows, [&](int64_t row, int) {
    const uint8_t* const from = r.data + (layout.row ? layout.row(row) : row) * r.row_bytes;
    uint8_t* const to = out + row * row_bytes;
    if (layout.piece) copy_pieces(type, from, r.cols, layout, keeps_dtype, view.dtype, to);
    else copy_columns(type, from, r.cols, keeps_dtype, view.dtype, to);
    if (!has_changed_values) return;
    auto* const floats = reinterpret_cast<float*>(to);
    for (int64_t i = 0; i < r.cols; ++i) {
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
