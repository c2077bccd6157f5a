#include "model/packed_weights.h"

#include <array>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/float_formats.h"
#include "model/config_fields.h"

namespace llmb {

namespace {

constexpr std::string_view kWeight = ".weight";
constexpr int64_t kRowsOfTask = 16;  // the codes of a line of memory belong to so many rows of the matrix

uint32_t load_word(const uint8_t* words, int64_t index) {
  uint32_t word;
  std::memcpy(&word, words + 4 * index, 4);
  return word;
}

Result<DType> scale_dtype(const StoredTensor& tensor) {
  if (tensor.dtype == "F16") return DType::kF16;
  if (tensor.dtype == "BF16") return DType::kBF16;
  if (tensor.dtype == "F32") return DType::kF32;
  return unsupported(tensor.where + " has dtype " + std::string(tensor.dtype) + ", expected F32, F16 or BF16");
}

Result<std::vector<float>> read_finite(const StoredTensor& tensor) {
  LLMB_ASSIGN_OR_RETURN(const DType dtype, scale_dtype(tensor));
  std::vector<float> values(static_cast<size_t>(tensor.bytes / dtype_bytes(dtype)));
  for (size_t i = 0; i < values.size(); ++i) {
    uint16_t half = 0;
    if (dtype == DType::kF32) std::memcpy(&values[i], tensor.data + 4 * i, 4);
    else std::memcpy(&half, tensor.data + 2 * i, 2);
    if (dtype == DType::kBF16) values[i] = bf16_to_f32(half);
    if (dtype == DType::kF16) values[i] = f16_to_f32(half);
    if (!std::isfinite(values[i])) return data_loss(tensor.where + " holds a scale that is not finite");
  }
  return values;
}

// Where AWQ has column n of eight in a word: its kernels want even ones first.
constexpr int kAwqPlaces[8] = {0, 4, 1, 5, 2, 6, 3, 7};

}  // namespace

// The scales and zeros of a matrix [rows, cols] in groups of columns.
struct PackedSource::Groups {
  DType dtype = DType::kF32;   // of the scales
  int64_t count = 1;           // of groups in a row
  std::vector<float> scales;   // [rows, count], or [count, rows] where by_columns
  std::vector<int32_t> zeros;  // as scales
  std::vector<int32_t> of;     // the group of each column
  bool by_columns = false;

  int64_t at(int64_t row, int64_t col, int64_t rows) const {
    return by_columns ? of[static_cast<size_t>(col)] * rows + row : row * count + of[static_cast<size_t>(col)];
  }
};

// Codes of `bits` bits in words of 32, the lowest bits first.
struct PackedSource::Codes {
  const uint8_t* words;
  int64_t bits;

  int32_t get(int64_t first_word, int64_t index) const {
    const int64_t per_word = 32 / bits;
    const uint32_t word = load_word(words, first_word + index / per_word);
    return static_cast<int32_t>(word >> index % per_word * bits & ((uint32_t{1} << bits) - 1));
  }
};

// A tensor that belongs to a matrix, of exactly this dtype ("": any) and shape.
Result<StoredTensor> PackedSource::part(const std::string& name, std::string_view dtype,
                                        std::span<const int64_t> shape) {
  const std::optional<StoredTensor> found = checkpoint_.find(name);
  if (!found) return data_loss("tensor \"" + name + "\" is missing, expected shape " + shape_string(shape));
  LLMB_RETURN_IF_ERROR(check_shape(*found, shape));
  if (!dtype.empty() && found->dtype != dtype)
    return unsupported(found->where + " has dtype " + std::string(found->dtype) + ", expected " + std::string(dtype));
  if (access_ == WeightAccess::kValues) reads_.add(found->data, found->bytes);
  return *found;
}

bool PackedSource::has(const std::string& name) const {
  if (others_.has(name)) return true;
  if (!name.ends_with(kWeight)) return false;
  const std::string stem = name.substr(0, name.size() - kWeight.size());
  return (stored_.is_gptq_or_awq() && others_.has(stem + ".qweight")) ||
         (stored_.method == StoredMethod::kPackedInts && others_.has(name + "_packed"));
}

Result<TensorView> PackedSource::tensor(const std::string& name, std::span<const int64_t> shape) {
  if (shape.size() != 2 || !name.ends_with(kWeight)) return others_.tensor(name, shape);
  const std::string stem = name.substr(0, name.size() - kWeight.size());
  const int64_t rows = shape[0], cols = shape[1];
  const std::optional<StoredTensor> stored = checkpoint_.find(name);
  const bool is_int8 = stored && stored->dtype == "I8";
  switch (stored_.method) {
    case StoredMethod::kNumbers:
      break;
    case StoredMethod::kGptq:
    case StoredMethod::kAwq:
      if (others_.has(stem + ".qweight")) return gptq_or_awq(stem, rows, cols);
      break;
    case StoredMethod::kPackedInts:
    case StoredMethod::kInts:
      if (is_int8 || others_.has(name + "_packed")) return compressed(name, rows, cols);
      break;
    case StoredMethod::kBitsandbytes:
      if (is_int8) return eight_bits(name, rows, cols);
      if (stored && stored->dtype == "U8") return four_bits(name, rows, cols);
      break;
  }
  return others_.tensor(name, shape);
}

// value(row, col): in fp32, to be rounded.
template <typename Value>
TensorView PackedSource::make(DType dtype, int64_t rows, int64_t cols, const Value& value) {
  if (access_ == WeightAccess::kShapes) return {nullptr, dtype, rows, cols};
  auto* const out = static_cast<uint8_t*>(buffers_.take(rows * cols * dtype_bytes(dtype)));
  auto* const floats = reinterpret_cast<float*>(out);
  auto* const halves = reinterpret_cast<uint16_t*>(out);
  pool_.parallel_for(ceil_div(rows, kRowsOfTask), [&](int64_t task, int) {
    for (int64_t row = task * kRowsOfTask; row < std::min(rows, (task + 1) * kRowsOfTask); ++row)
      for (int64_t col = 0; col < cols; ++col) {
        const float x = value(row, col);
        if (dtype == DType::kF32) floats[row * cols + col] = x;
        else halves[row * cols + col] = dtype == DType::kBF16 ? f32_to_bf16(x) : f32_to_f16(x);
      }
  });
  return {out, dtype, rows, cols};
}

// Which group each column is in: as stored, where columns were quantised in another order, else in turn.
Status PackedSource::read_group_index(const std::string& name, int64_t cols, int64_t num_groups, bool required,
                                      std::vector<int32_t>* of) {
  of->resize(static_cast<size_t>(cols));
  if (!checkpoint_.find(name)) {
    if (required) return data_loss("tensor \"" + name + "\" is missing, which says the order of the columns");
    const int64_t size = ceil_div(cols, num_groups);
    for (int64_t col = 0; col < cols; ++col) (*of)[col] = static_cast<int32_t>(col / size);
    return {};
  }
  LLMB_ASSIGN_OR_RETURN(const StoredTensor stored, part(name, "I32", std::array{cols}));
  for (int64_t col = 0; col < cols; ++col) {
    (*of)[col] = static_cast<int32_t>(load_word(stored.data, col));
    if ((*of)[col] < 0 || (*of)[col] >= num_groups)
      return data_loss(stored.where + " puts column " + std::to_string(col) + " into group " +
                       std::to_string((*of)[col]) + " of " + std::to_string(num_groups));
  }
  return {};
}

// qweight: GPTQ packs along the input features of the layer, which are the columns here, AWQ along the output features.
Result<TensorView> PackedSource::gptq_or_awq(const std::string& stem, int64_t rows, int64_t cols) {
  const bool is_awq = stored_.method == StoredMethod::kAwq;
  const int64_t bits = stored_.bits, per_word = 32 / bits;
  const int64_t size = stored_.group_size > 0 ? stored_.group_size : cols, count = ceil_div(cols, size);
  if (rows % per_word != 0 || cols % per_word != 0)
    return unsupported("\"" + stem + ".qweight\": sizes that are no multiples of " + std::to_string(per_word));
  const std::array<int64_t, 2> shape = is_awq ? std::array{cols, rows / per_word} : std::array{cols / per_word, rows};
  LLMB_ASSIGN_OR_RETURN(const StoredTensor codes, part(stem + ".qweight", "I32", shape));
  LLMB_ASSIGN_OR_RETURN(const StoredTensor zeros, part(stem + ".qzeros", "I32", std::array{count, rows / per_word}));
  LLMB_ASSIGN_OR_RETURN(const StoredTensor scales, part(stem + ".scales", "", std::array{count, rows}));
  Groups groups;
  groups.by_columns = true;
  groups.count = count;
  LLMB_ASSIGN_OR_RETURN(groups.dtype, scale_dtype(scales));
  LLMB_ASSIGN_OR_RETURN(groups.scales, read_finite(scales));
  LLMB_RETURN_IF_ERROR(read_group_index(stem + ".g_idx", cols, count, stored_.has_order, &groups.of));
  if (!checkpoint_.find(stem + ".g_idx"))
    for (int64_t col = 0; col < cols; ++col) groups.of[col] = static_cast<int32_t>(col / size);
  const auto place = [is_awq](int64_t i) { return is_awq ? i / 8 * 8 + kAwqPlaces[i % 8] : i; };
  const Codes zero_codes{zeros.data, bits}, weight_codes{codes.data, bits};
  const int32_t more = stored_.zeros_are_one_less ? 1 : 0, mask = (1 << bits) - 1;
  for (int64_t g = 0; g < count; ++g)
    for (int64_t row = 0; row < rows; ++row)
      groups.zeros.push_back((zero_codes.get(g * (rows / per_word), place(row)) + more) & mask);
  return make(groups.dtype, rows, cols, [&](int64_t row, int64_t col) {
    const int32_t code = is_awq ? weight_codes.get(col * (rows / per_word), place(row))
                                : Codes{codes.data + 4 * (col / per_word * rows + row), bits}.get(0, col % per_word);
    const int64_t at = groups.at(row, col, rows);
    return groups.scales[at] * static_cast<float>(code - groups.zeros[at]);
  });
}

// The scales of compressed-tensors: one, one a row, or one for each group of columns.
Result<PackedSource::Groups> PackedSource::read_groups(const std::string& name, int64_t rows, int64_t cols) {
  const std::optional<StoredTensor> scales = checkpoint_.find(name + "_scale");
  if (!scales) return data_loss("tensor \"" + name + "_scale\" is missing");
  if (access_ == WeightAccess::kValues) reads_.add(scales->data, scales->bytes);
  Groups groups;
  LLMB_ASSIGN_OR_RETURN(groups.dtype, scale_dtype(*scales));
  LLMB_ASSIGN_OR_RETURN(groups.scales, read_finite(*scales));
  const auto count = static_cast<int64_t>(groups.scales.size());
  const int64_t expected = stored_.group_size > 0 ? ceil_div(cols, stored_.group_size) : 1;
  if (count == 1 && rows > 1) groups.scales.assign(static_cast<size_t>(rows), groups.scales[0]);
  else if (count == rows * expected) groups.count = expected;
  else
    return data_loss(scales->where + " has shape " + shape_string(scales->shape) + ", expected one scale or " +
                     shape_string(std::array{rows, expected}));
  LLMB_RETURN_IF_ERROR(read_group_index(name + "_g_idx", cols, groups.count, false, &groups.of));
  if (!checkpoint_.find(name + "_g_idx") && stored_.group_size > 0)
    for (int64_t col = 0; col < cols; ++col)
      groups.of[col] = static_cast<int32_t>(std::min(col / stored_.group_size, groups.count - 1));
  return groups;
}

Result<TensorView> PackedSource::compressed(const std::string& name, int64_t rows, int64_t cols) {
  const int64_t bits = stored_.bits, per_word = 32 / bits, words = ceil_div(cols, per_word);
  const bool is_packed = others_.has(name + "_packed");
  const int32_t middle = 1 << (bits - 1);  // packed codes are not negative: this much is added to them
  LLMB_ASSIGN_OR_RETURN(const StoredTensor codes, is_packed ? part(name + "_packed", "I32", std::array{rows, words})
                                                            : part(name, "I8", std::array{rows, cols}));
  LLMB_ASSIGN_OR_RETURN(Groups groups, read_groups(name, rows, cols));
  groups.zeros.assign(groups.scales.size(), is_packed ? middle : 0);
  if (const std::string zero = name + "_zero_point"; checkpoint_.find(zero)) {
    if (is_packed) {
      LLMB_ASSIGN_OR_RETURN(const StoredTensor stored,
                            part(zero, "I32", std::array{ceil_div(rows, per_word), groups.count}));
      for (int64_t row = 0; row < rows; ++row)
        for (int64_t g = 0; g < groups.count; ++g) {
          const uint32_t word = load_word(stored.data, row / per_word * groups.count + g);
          groups.zeros[row * groups.count + g] =
              static_cast<int32_t>(word >> row % per_word * bits & ((uint32_t{1} << bits) - 1));
        }
    } else {
      const StoredTensor stored = *checkpoint_.find(zero);
      if (stored.dtype != "I8" || (stored.bytes != 1 && stored.bytes != rows * groups.count))
        return data_loss(stored.where + " does not fit its scales");
      for (size_t i = 0; i < groups.zeros.size(); ++i)
        groups.zeros[i] = static_cast<int8_t>(stored.data[stored.bytes == 1 ? 0 : i]);
    }
  }
  const Codes weight_codes{codes.data, bits};
  return make(groups.dtype, rows, cols, [&](int64_t row, int64_t col) {
    const int32_t code = is_packed ? weight_codes.get(row * words, col)
                                   : static_cast<int32_t>(static_cast<int8_t>(codes.data[row * cols + col]));
    const int64_t at = groups.at(row, col, rows);
    return groups.scales[at] * static_cast<float>(code - groups.zeros[at]);
  });
}

namespace {

// The JSON object beside a matrix of bitsandbytes.
Result<nlohmann::json> read_state(const StoredTensor& stored) {
  const std::string_view text(reinterpret_cast<const char*>(stored.data), static_cast<size_t>(stored.bytes));
  Result<nlohmann::json> state = parse_config_object(text);
  if (!state.ok()) return state.status().with_context(stored.where);
  return state;
}

}  // namespace

// The scales of blocks of four-bit codes, which may be stored as codes of eight bits with scales themselves.
Result<std::vector<float>> PackedSource::four_bit_scales(const std::string& name, const std::string& state,
                                                         int64_t count) {
  LLMB_ASSIGN_OR_RETURN(const nlohmann::json object, read_state(*checkpoint_.find(state)));
  ConfigFields f(object);
  if (!f.has("nested_blocksize")) {
    LLMB_ASSIGN_OR_RETURN(const StoredTensor stored, part(name + ".absmax", "F32", std::array{count}));
    return read_finite(stored);
  }
  const int64_t block = f.integer("nested_blocksize", {}, 1, 1 << 20);
  const double offset = f.number("nested_offset", 0, -1e30, 1e30);
  LLMB_RETURN_IF_ERROR(f.status());
  LLMB_ASSIGN_OR_RETURN(const StoredTensor codes, part(name + ".absmax", "U8", std::array{count}));
  LLMB_ASSIGN_OR_RETURN(const StoredTensor table, part(name + ".nested_quant_map", "F32", std::array{int64_t{256}}));
  LLMB_ASSIGN_OR_RETURN(const StoredTensor scales,
                        part(name + ".nested_absmax", "F32", std::array{ceil_div(count, block)}));
  LLMB_ASSIGN_OR_RETURN(const std::vector<float> numbers, read_finite(table));
  LLMB_ASSIGN_OR_RETURN(const std::vector<float> of_blocks, read_finite(scales));
  std::vector<float> out(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    const float product = numbers[codes.data[i]] * of_blocks[i / block];
    out[i] = product + static_cast<float>(offset);
  }
  return out;
}

// bitsandbytes' NF4 and FP4: two codes a byte, the first in the high bits, row after row.
Result<TensorView> PackedSource::four_bits(const std::string& name, int64_t rows, int64_t cols) {
  std::string state = name + ".quant_state.bitsandbytes__nf4";
  if (!checkpoint_.find(state)) state = name + ".quant_state.bitsandbytes__fp4";
  if (!checkpoint_.find(state))
    return data_loss("tensor \"" + name + "\" has dtype U8, but no \"" + name + ".quant_state.bitsandbytes__nf4\"");
  LLMB_ASSIGN_OR_RETURN(const nlohmann::json object, read_state(*checkpoint_.find(state)));
  ConfigFields f(object);
  const int64_t block = f.integer("blocksize", {}, 2, 1 << 20);
  LLMB_RETURN_IF_ERROR(f.status().with_context(state));
  const int64_t size = rows * cols, count = ceil_div(size, block);
  LLMB_ASSIGN_OR_RETURN(const StoredTensor codes, part(name, "U8", std::array{ceil_div(size, 2), int64_t{1}}));
  LLMB_ASSIGN_OR_RETURN(const StoredTensor table, part(name + ".quant_map", "F32", std::array{int64_t{16}}));
  LLMB_ASSIGN_OR_RETURN(const std::vector<float> numbers, read_finite(table));
  LLMB_ASSIGN_OR_RETURN(const std::vector<float> scales, four_bit_scales(name, state, count));
  return make(config_.dtype, rows, cols, [&](int64_t row, int64_t col) {
    const int64_t i = row * cols + col;
    const uint8_t byte = codes.data[i / 2];
    return numbers[i % 2 == 0 ? byte >> 4 : byte & 15] * scales[i / block];
  });
}

// bitsandbytes' LLM.int8(): the largest magnitude of each row, which is the code 127.
Result<TensorView> PackedSource::eight_bits(const std::string& name, int64_t rows, int64_t cols) {
  const std::string stem = name.substr(0, name.size() - kWeight.size());
  LLMB_ASSIGN_OR_RETURN(const StoredTensor codes, part(name, "I8", std::array{rows, cols}));
  LLMB_ASSIGN_OR_RETURN(const StoredTensor largest, part(stem + ".SCB", "F32", std::array{rows}));
  LLMB_ASSIGN_OR_RETURN(const std::vector<float> scales, read_finite(largest));
  return make(config_.dtype, rows, cols, [&](int64_t row, int64_t col) {
    const float product = static_cast<float>(static_cast<int8_t>(codes.data[row * cols + col])) * scales[row];
    return product * 7.874015718698502e-3f;  // 1 / 127, as bitsandbytes has it
  });
}

}  // namespace llmb
