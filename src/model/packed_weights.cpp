#include "model/packed_weights.h"

#include <array>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "base/float_formats.h"
#include "model/packed_parts.h"

namespace llmb {

namespace {

constexpr std::string_view kWeight = ".weight";

uint32_t load_word(const uint8_t* words, int64_t index) {
  uint32_t word;
  std::memcpy(&word, words + 4 * index, 4);
  return word;
}

}  // namespace

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

namespace {

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

  int64_t of_group(int64_t row, int64_t group, int64_t rows) const {
    return by_columns ? group * rows + row : row * count + group;
  }
  int64_t at(int64_t row, int64_t col, int64_t rows) const { return of_group(row, of[static_cast<size_t>(col)], rows); }
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
         (stored_.method == StoredMethod::kSparse24 && others_.has(stem + ".compressed")) ||
         (stored_.is_packed() && others_.has(name + "_packed"));
}

Result<TensorView> PackedSource::tensor(const std::string& name, std::span<const int64_t> shape) {
  if (shape.size() != 2 || !name.ends_with(kWeight)) return others_.tensor(name, shape);
  const std::string stem = name.substr(0, name.size() - kWeight.size());
  const int64_t rows = shape[0], cols = shape[1];
  const std::optional<StoredTensor> stored = checkpoint_.find(name);
  const bool is_int8 = stored && stored->dtype == "I8";
  switch (stored_.method) {
    case StoredMethod::kNumbers:
    case StoredMethod::kMxfp4:  // by way of bytes()
      break;
    case StoredMethod::kGptq:
    case StoredMethod::kAwq:
      if (others_.has(stem + ".qweight")) return gptq_or_awq(stem, rows, cols);
      break;
    case StoredMethod::kPackedInts:
    case StoredMethod::kInts:
      if (is_int8 || others_.has(name + "_packed")) return compressed(name, rows, cols);
      break;
    case StoredMethod::kNvfp4:
      if (others_.has(name + "_packed")) return nvfp4(name, rows, cols);
      break;
    case StoredMethod::kSparse24:
      if (others_.has(stem + ".compressed")) return sparse24(stem, rows, cols);
      break;
    case StoredMethod::kBitsandbytes:
      if (is_int8) return eight_bits(name, rows, cols);
      if (stored && stored->dtype == "U8") return four_bits(name, rows, cols);
      break;
  }
  return others_.tensor(name, shape);
}

// The blocks that hold these integers as they are; kNone: numbers it is.
BlockFormat PackedSource::block_format(const Groups& groups, int64_t cols) const {
  constexpr int64_t kBlock = 32;
  const bool has_blocks = form_ != WeightForm::kNumbers && cols % kBlock == 0 && groups.dtype != DType::kF32;
  if (!has_blocks || (stored_.bits != 4 && stored_.bits != 8)) return BlockFormat::kNone;
  bool is_indexed = false;  // narrow groups, or columns in another order, whose neighbours are of other groups
  for (int64_t col = 0; col < cols; ++col) is_indexed |= groups.of[col] != groups.of[col / kBlock * kBlock];
  if (is_indexed && groups.count > UINT16_MAX) return BlockFormat::kNone;
  const bool is_bf16 = groups.dtype == DType::kBF16;
  if (form_ != WeightForm::kBlocks) {
    std::vector<int64_t> sizes(static_cast<size_t>(groups.count), 0);
    for (const int32_t group : groups.of) ++sizes[group];
    const bool are_whole = std::all_of(sizes.begin(), sizes.end(), [](int64_t size) { return size % kBlock == 0; });
    if (!are_whole || is_bf16 != (form_ == WeightForm::kIntegersBF16)) return BlockFormat::kNone;
  }
  if (stored_.bits == 4 && is_indexed) return is_bf16 ? BlockFormat::kIndexedInt4BF16 : BlockFormat::kIndexedInt4F16;
  if (stored_.bits == 4) return is_bf16 ? BlockFormat::kInt4BF16 : BlockFormat::kInt4F16;
  if (is_indexed) return is_bf16 ? BlockFormat::kIndexedInt8BF16 : BlockFormat::kIndexedInt8F16;
  return is_bf16 ? BlockFormat::kInt8BF16 : BlockFormat::kInt8F16;
}

// scale · (code(row, col) − zero). offset: added to codes and zeros, none of them is negative.
template <typename Code>
TensorView PackedSource::make_integers(const Groups& groups, int32_t offset, int64_t rows, int64_t cols,
                                       const Code& code) {
  const BlockFormat format = block_format(groups, cols);
  if (format == BlockFormat::kNone)
    return make(groups.dtype, rows, cols, [&](int64_t row, int64_t col) {
      const int64_t at = groups.at(row, col, rows);
      return groups.scales[at] * static_cast<float>(code(row, col) - groups.zeros[at]);
    });
  const BlockSize& block = block_size(format);
  TensorView view{nullptr, groups.dtype, rows, cols, format, {nullptr, groups.count}};
  if (access_ == WeightAccess::kShapes) return view;
  auto* const out = static_cast<uint8_t*>(buffers_.take(rows * view.row_bytes()));
  const auto store_scale = [&](int64_t at, uint8_t* scale, uint8_t* zero) {
    const float x = groups.scales[at];
    const uint16_t half = groups.dtype == DType::kBF16 ? f32_to_bf16(x) : f32_to_f16(x);
    std::memcpy(scale, &half, 2);
    *zero = static_cast<uint8_t>(groups.zeros[at] + offset);
  };
  for_each_row(rows, [&](int64_t row) {
    uint8_t* to = out + row * view.row_bytes();
    for (int64_t col = 0; col < cols; col += block.size, to += block.bytes) {
      const bool has_scale = !is_indexed(format);
      if (has_scale) store_scale(groups.at(row, col, rows), to, to + 2);
      pack_codes(
          stored_.bits, [&](int64_t i) { return static_cast<uint8_t>(code(row, col + i) + offset); },
          has_scale ? to + kGroupScaleBytes : to);
    }
    for (int64_t g = 0; is_indexed(format) && g < groups.count; ++g)
      store_scale(groups.of_group(row, g, rows), to + 2 * g, to + 2 * groups.count + g);
  });
  if (is_indexed(format)) {
    auto* const of = static_cast<uint16_t*>(buffers_.take(cols * int64_t{sizeof(uint16_t)}));
    std::copy(groups.of.begin(), groups.of.end(), of);
    view.groups.of = of;
  }
  view.data = out;
  return view;
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
  return make_integers(groups, 0, rows, cols, [&](int64_t row, int64_t col) {
    return is_awq ? weight_codes.get(col * (rows / per_word), place(row))
                  : Codes{codes.data + 4 * (col / per_word * rows + row), bits}.get(0, col % per_word);
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
  return make_integers(groups, is_packed ? 0 : 128, rows, cols, [&](int64_t row, int64_t col) {
    return is_packed ? weight_codes.get(row * words, col)
                     : static_cast<int32_t>(static_cast<int8_t>(codes.data[row * cols + col]));
  });
}

// Codes in pairs, a scale in E4M3 for every 16 columns, and one for all by which those are divided.
Result<TensorView> PackedSource::nvfp4(const std::string& name, int64_t rows, int64_t cols) {
  constexpr int64_t kGroup = 16;
  if (cols % kGroup != 0)
    return unsupported("\"" + name + "_packed\": rows of " + std::to_string(cols) + ", which is no multiple of 16");
  LLMB_ASSIGN_OR_RETURN(const StoredTensor codes, part(name + "_packed", "U8", std::array{rows, cols / 2}));
  LLMB_ASSIGN_OR_RETURN(const StoredTensor scales, part(name + "_scale", kFp8DType, std::array{rows, cols / kGroup}));
  LLMB_ASSIGN_OR_RETURN(const StoredTensor divisor, part(name + "_global_scale", "F32", std::array{int64_t{1}}));
  float of_all;
  std::memcpy(&of_all, divisor.data, 4);
  if (!(of_all > 0) || !std::isfinite(of_all) || !std::isfinite(448 / of_all))
    return data_loss(divisor.where + " is " + std::to_string(of_all) + ", by which no scale can be divided");
  for (int64_t i = 0; i < scales.bytes; ++i)
    if ((scales.data[i] & 0x7f) == 0x7f) return data_loss(scales.where + " holds a scale that is not finite");
  const auto code = [&](int64_t row, int64_t col) {
    const uint8_t pair = codes.data[(row * cols + col) / 2];
    return static_cast<uint8_t>(col % 2 == 0 ? pair & 15 : pair >> 4);
  };
  const BlockSize& block = block_size(BlockFormat::kNVFP4);
  if (form_ != WeightForm::kBlocks || cols % block.size != 0) {
    std::array<float, 256> numbers;  // of scales
    for (int i = 0; i < 256; ++i) numbers[i] = fp8_e4m3_to_f32(static_cast<uint8_t>(i)) / of_all;
    return make(DType::kBF16, rows, cols, [&](int64_t row, int64_t col) {
      return kNvfp4Values[code(row, col)] * numbers[scales.data[(row * cols + col) / kGroup]];
    });
  }
  TensorView view{nullptr, DType::kBF16, rows, cols, BlockFormat::kNVFP4};
  if (access_ == WeightAccess::kShapes) return view;
  auto* const out = static_cast<uint8_t*>(buffers_.take(rows * view.row_bytes()));
  for_each_row(rows, [&](int64_t row) {
    uint8_t* to = out + row * view.row_bytes();
    for (int64_t col = 0; col < cols; col += block.size, to += block.bytes) {
      std::memcpy(to, &of_all, 4);
      for (int64_t run = 0; run < 2; ++run)
        pack_codes(
            4, [&](int64_t i) { return code(row, col + 32 * run + i); }, to + 4 + 16 * run);
      std::memcpy(to + 36, scales.data + (row * cols + col) / kGroup, 4);
    }
  });
  view.data = out;
  return view;
}

}  // namespace llmb
