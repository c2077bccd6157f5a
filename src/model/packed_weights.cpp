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

uint32_t load_word(const uint8_t* words, int64_t index) {
  uint32_t word;
  std::memcpy(&word, words + 4 * index, 4);
  return word;
}

// Where AWQ has column n of eight in a word: its kernels want even ones first.
constexpr int kAwqPlaces[8] = {0, 4, 1, 5, 2, 6, 3, 7};

}  // namespace

// The scales and zeros of groups of columns, those of the wanted rows and columns.
struct PackedSource::Groups {
  DType dtype = DType::kF32;   // of the scales
  int64_t count = 1;           // of groups in a row
  std::vector<int32_t> of;     // the group of each column
  MatrixPart part;             // the wanted rows, and groups in place of columns
  std::vector<float> scales;   // [part.num_rows, part.num_cols]
  std::vector<int32_t> zeros;  // as scales

  // REQUIRES: `count` and `of` are there.
  void make_room(const MatrixPart& wanted) {
    part = {wanted.first_row, wanted.num_rows, 0, count};
    if (wanted.num_cols < static_cast<int64_t>(of.size())) {
      const auto begin = of.begin() + wanted.first_col;
      const auto [least, most] = std::minmax_element(begin, begin + wanted.num_cols);
      part.first_col = *least, part.num_cols = *most - *least + 1;
    }
    scales.resize(static_cast<size_t>(part.num_rows * part.num_cols));
    zeros.resize(scales.size());
  }
  int64_t of_group(int64_t row, int64_t group) const {
    return (row - part.first_row) * part.num_cols + group - part.first_col;
  }
  int64_t at(int64_t row, int64_t col) const { return of_group(row, of[static_cast<size_t>(col)]); }
  // f(row, group, its place in scales and zeros)
  template <typename Function>
  void for_each(const Function& f) const {
    int64_t i = 0;
    for (int64_t row = part.first_row; row < part.first_row + part.num_rows; ++row)
      for (int64_t group = part.first_col; group < part.first_col + part.num_cols; ++group) f(row, group, i++);
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
Result<StoredTensor> PackedSource::find(const std::string& name, std::string_view dtype,
                                        std::span<const int64_t> shape) {
  const std::optional<StoredTensor> found = checkpoint_.find(name);
  if (!found) return data_loss("tensor \"" + name + "\" is missing, expected shape " + shape_string(shape));
  LLMB_RETURN_IF_ERROR(check_shape(*found, shape));
  if (!dtype.empty() && found->dtype != dtype)
    return unsupported(found->where + " has dtype " + std::string(found->dtype) + ", expected " + std::string(dtype));
  reads_.add(found->data, found->bytes);
  return *found;
}

bool PackedSource::has(const std::string& name) const {
  if (others_.has(name)) return true;
  if (!name.ends_with(".weight")) return false;
  const std::string stem = stem_of(name);
  return (stored_.is_gptq_or_awq() && others_.has(stem + ".qweight")) ||
         (stored_.method == StoredMethod::kSparse24 && others_.has(stem + ".compressed")) ||
         (stored_.is_packed() && others_.has(name + "_packed"));
}

Result<TensorView> PackedSource::tensor(const std::string& name, std::span<const int64_t> shape) {
  const Make make_it = find_make(name, shape);
  if (make_it == nullptr) return others_.tensor(name, shape);
  return (this->*make_it)(name, {shape[0], shape[1], {0, shape[0], 0, shape[1]}});
}

Result<std::optional<TensorView>> PackedSource::outline(const std::string& name, std::span<const int64_t> shape) {
  const Make make_it = find_make(name, shape);
  if (make_it == nullptr) return others_.outline(name, shape);
  LLMB_ASSIGN_OR_RETURN(TensorView view, (this->*make_it)(name, {shape[0], shape[1], {0, 0, 0, shape[1]}}));
  view.rows = shape[0];
  return std::optional(view);
}

Result<TensorView> PackedSource::part(const std::string& name, std::span<const int64_t> shape, const MatrixPart& part) {
  const Make make_it = find_make(name, shape);
  return make_it == nullptr ? others_.part(name, shape, part) : (this->*make_it)(name, {shape[0], shape[1], part});
}

PackedSource::Make PackedSource::find_make(const std::string& name, std::span<const int64_t> shape) const {
  if (shape.size() != 2 || !name.ends_with(".weight")) return nullptr;
  const std::string stem = stem_of(name);
  const std::optional<StoredTensor> stored = checkpoint_.find(name);
  const bool is_int8 = stored && stored->dtype == "I8";
  switch (stored_.method) {
    case StoredMethod::kNumbers:
    case StoredMethod::kMxfp4:  // by way of bytes()
      return nullptr;
    case StoredMethod::kGptq:
    case StoredMethod::kAwq:
      return others_.has(stem + ".qweight") ? &PackedSource::gptq_or_awq : nullptr;
    case StoredMethod::kPackedInts:
    case StoredMethod::kInts:
      return is_int8 || others_.has(name + "_packed") ? &PackedSource::compressed : nullptr;
    case StoredMethod::kNvfp4:
      return others_.has(name + "_packed") ? &PackedSource::nvfp4 : nullptr;
    case StoredMethod::kSparse24:
      return others_.has(stem + ".compressed") ? &PackedSource::sparse24 : nullptr;
    case StoredMethod::kBitsandbytes:
      if (is_int8) return &PackedSource::eight_bits;
      return stored && stored->dtype == "U8" ? &PackedSource::four_bits : nullptr;
  }
  return nullptr;
}

// The blocks that hold these integers as they are; kNone: numbers it is. All parts of a matrix are alike, but for those
// whose columns cut blocks, or are of groups that lie anywhere.
BlockFormat PackedSource::block_format(const Groups& groups, const Wanted& m) const {
  constexpr int64_t kBlock = 32;
  const bool has_blocks = form_ != WeightForm::kNumbers && m.cols % kBlock == 0 && groups.dtype != DType::kF32;
  if (!has_blocks || m.is_cut_at(kBlock) || (stored_.bits != 4 && stored_.bits != 8)) return BlockFormat::kNone;
  bool is_indexed = false;  // narrow groups, or columns in another order, whose neighbours are of other groups
  for (int64_t col = 0; col < m.cols; ++col) is_indexed |= groups.of[col] != groups.of[col / kBlock * kBlock];
  if (is_indexed && (groups.count > UINT16_MAX || m.part.num_cols < m.cols)) return BlockFormat::kNone;
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
TensorView PackedSource::make_integers(const Groups& groups, int32_t offset, const Wanted& m, const Code& code) {
  const BlockFormat format = block_format(groups, m);
  if (format == BlockFormat::kNone)
    return make(groups.dtype, m, [&](int64_t row, int64_t col) {
      const int64_t at = groups.at(row, col);
      return groups.scales[at] * static_cast<float>(code(row, col) - groups.zeros[at]);
    });
  const BlockSize& block = block_size(format);
  TensorView view{nullptr, groups.dtype, m.part.num_rows, m.part.num_cols, format, {nullptr, groups.count}};
  if (!is_read(m)) return view;
  auto* const out = static_cast<uint8_t*>(buffers_.take(view.rows * view.row_bytes()));
  const auto store_scale = [&](int64_t at, uint8_t* scale, uint8_t* zero) {
    const float x = groups.scales[at];
    const uint16_t half = groups.dtype == DType::kBF16 ? f32_to_bf16(x) : f32_to_f16(x);
    std::memcpy(scale, &half, 2);
    *zero = static_cast<uint8_t>(groups.zeros[at] + offset);
  };
  for_each_row(view.rows, [&](int64_t i) {
    const int64_t row = m.part.first_row + i, end = m.part.first_col + m.part.num_cols;
    uint8_t* to = out + i * view.row_bytes();
    for (int64_t col = m.part.first_col; col < end; col += block.size, to += block.bytes) {
      const bool has_scale = !is_indexed(format);
      if (has_scale) store_scale(groups.at(row, col), to, to + 2);
      pack_codes(
          stored_.bits, [&](int64_t k) { return static_cast<uint8_t>(code(row, col + k) + offset); },
          has_scale ? to + kGroupScaleBytes : to);
    }
    for (int64_t g = 0; is_indexed(format) && g < groups.count; ++g)
      store_scale(groups.of_group(row, g), to + 2 * g, to + 2 * groups.count + g);
  });
  if (is_indexed(format)) {
    auto* const of = static_cast<uint16_t*>(buffers_.take(m.cols * int64_t{sizeof(uint16_t)}));
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
  LLMB_ASSIGN_OR_RETURN(const StoredTensor stored, find(name, "I32", std::array{cols}));
  for (int64_t col = 0; col < cols; ++col) {
    (*of)[col] = static_cast<int32_t>(load_word(stored.data, col));
    if ((*of)[col] < 0 || (*of)[col] >= num_groups)
      return data_loss(stored.where + " puts column " + std::to_string(col) + " into group " +
                       std::to_string((*of)[col]) + " of " + std::to_string(num_groups));
  }
  return {};
}

// qweight: GPTQ packs along the input features of the layer, which are the columns here, AWQ along the output features.
Result<TensorView> PackedSource::gptq_or_awq(const std::string& name, const Wanted& m) {
  const std::string stem = stem_of(name);
  const bool is_awq = stored_.method == StoredMethod::kAwq;
  const int64_t rows = m.rows, cols = m.cols, bits = stored_.bits, per_word = 32 / bits;
  const int64_t size = stored_.group_size > 0 ? stored_.group_size : cols, count = ceil_div(cols, size);
  if (rows % per_word != 0 || cols % per_word != 0)
    return unsupported("\"" + stem + ".qweight\": sizes that are no multiples of " + std::to_string(per_word));
  const std::array<int64_t, 2> shape = is_awq ? std::array{cols, rows / per_word} : std::array{cols / per_word, rows};
  LLMB_ASSIGN_OR_RETURN(const StoredTensor codes, find(stem + ".qweight", "I32", shape));
  LLMB_ASSIGN_OR_RETURN(const StoredTensor zeros, find(stem + ".qzeros", "I32", std::array{count, rows / per_word}));
  LLMB_ASSIGN_OR_RETURN(const StoredTensor stored_scales, find(stem + ".scales", "", std::array{count, rows}));
  LLMB_ASSIGN_OR_RETURN(StoredScales scales, StoredScales::of(stored_scales));
  Groups groups;
  groups.count = count;
  groups.dtype = scales.dtype();
  LLMB_RETURN_IF_ERROR(read_group_index(stem + ".g_idx", cols, count, stored_.has_order, &groups.of));
  if (!checkpoint_.find(stem + ".g_idx"))
    for (int64_t col = 0; col < cols; ++col) groups.of[col] = static_cast<int32_t>(col / size);
  groups.make_room(m.part);
  const auto place = [is_awq](int64_t i) { return is_awq ? i / 8 * 8 + kAwqPlaces[i % 8] : i; };
  const Codes zero_codes{zeros.data, bits}, weight_codes{codes.data, bits};
  const int32_t more = stored_.zeros_are_one_less ? 1 : 0, mask = (1 << bits) - 1;
  groups.for_each([&](int64_t row, int64_t g, int64_t i) {
    groups.scales[i] = scales.read(g * rows + row);
    groups.zeros[i] = (zero_codes.get(g * (rows / per_word), place(row)) + more) & mask;
  });
  LLMB_RETURN_IF_ERROR(scales.status());
  return make_integers(groups, 0, m, [&](int64_t row, int64_t col) {
    return is_awq ? weight_codes.get(col * (rows / per_word), place(row))
                  : Codes{codes.data + 4 * (col / per_word * rows + row), bits}.get(0, col % per_word);
  });
}

// The scales of compressed-tensors: one, one a row, or one for each group of columns.
Result<PackedSource::Groups> PackedSource::read_groups(const std::string& name, const Wanted& m) {
  const std::optional<StoredTensor> stored = checkpoint_.find(name + "_scale");
  if (!stored) return data_loss("tensor \"" + name + "_scale\" is missing");
  reads_.add(stored->data, stored->bytes);
  LLMB_ASSIGN_OR_RETURN(StoredScales scales, StoredScales::of(*stored));
  Groups groups;
  groups.dtype = scales.dtype();
  const int64_t expected = stored_.group_size > 0 ? ceil_div(m.cols, stored_.group_size) : 1;
  const bool is_one = scales.size() == 1 && m.rows > 1;
  if (!is_one && scales.size() == m.rows * expected) groups.count = expected;
  else if (!is_one)
    return data_loss(stored->where + " has shape " + shape_string(stored->shape) + ", expected one scale or " +
                     shape_string(std::array{m.rows, expected}));
  LLMB_RETURN_IF_ERROR(read_group_index(name + "_g_idx", m.cols, groups.count, false, &groups.of));
  if (!checkpoint_.find(name + "_g_idx") && stored_.group_size > 0)
    for (int64_t col = 0; col < m.cols; ++col)
      groups.of[col] = static_cast<int32_t>(std::min(col / stored_.group_size, groups.count - 1));
  groups.make_room(m.part);
  groups.for_each(
      [&](int64_t row, int64_t g, int64_t i) { groups.scales[i] = scales.read(is_one ? 0 : row * groups.count + g); });
  LLMB_RETURN_IF_ERROR(scales.status());
  return groups;
}

// Packed codes are not negative: where no zeros are stored, the middle of them was added to them.
Status PackedSource::read_zeros(const std::string& name, bool is_packed, const Wanted& m, Groups* groups) {
  const int64_t bits = stored_.bits, per_word = 32 / bits;
  if (!checkpoint_.find(name)) {
    groups->zeros.assign(groups->zeros.size(), is_packed ? 1 << (bits - 1) : 0);
    return {};
  }
  if (!is_packed) {
    const StoredTensor stored = *checkpoint_.find(name);
    if (stored.dtype != "I8" || (stored.bytes != 1 && stored.bytes != m.rows * groups->count))
      return data_loss(stored.where + " does not fit its scales");
    groups->for_each([&](int64_t row, int64_t g, int64_t i) {
      groups->zeros[i] = static_cast<int8_t>(stored.data[stored.bytes == 1 ? 0 : row * groups->count + g]);
    });
    return {};
  }
  LLMB_ASSIGN_OR_RETURN(const StoredTensor stored,
                        find(name, "I32", std::array{ceil_div(m.rows, per_word), groups->count}));
  groups->for_each([&](int64_t row, int64_t g, int64_t i) {
    const uint32_t word = load_word(stored.data, row / per_word * groups->count + g);
    groups->zeros[i] = static_cast<int32_t>(word >> row % per_word * bits & ((uint32_t{1} << bits) - 1));
  });
  return {};
}

Result<TensorView> PackedSource::compressed(const std::string& name, const Wanted& m) {
  const int64_t bits = stored_.bits, words = ceil_div(m.cols, 32 / bits);
  const bool is_packed = others_.has(name + "_packed");
  LLMB_ASSIGN_OR_RETURN(const StoredTensor codes, is_packed ? find(name + "_packed", "I32", std::array{m.rows, words})
                                                            : find(name, "I8", std::array{m.rows, m.cols}));
  LLMB_ASSIGN_OR_RETURN(Groups groups, read_groups(name, m));
  LLMB_RETURN_IF_ERROR(read_zeros(name + "_zero_point", is_packed, m, &groups));
  const Codes weight_codes{codes.data, bits};
  return make_integers(groups, is_packed ? 0 : 128, m, [&](int64_t row, int64_t col) {
    return is_packed ? weight_codes.get(row * words, col)
                     : static_cast<int32_t>(static_cast<int8_t>(codes.data[row * m.cols + col]));
  });
}

// Codes in pairs, a scale in E4M3 for every 16 columns, and one for all by which those are divided.
Result<TensorView> PackedSource::nvfp4(const std::string& name, const Wanted& m) {
  constexpr int64_t kGroup = 16;
  if (m.cols % kGroup != 0)
    return unsupported("\"" + name + "_packed\": rows of " + std::to_string(m.cols) + ", which is no multiple of 16");
  const int64_t groups = m.cols / kGroup;
  LLMB_ASSIGN_OR_RETURN(const StoredTensor codes, find(name + "_packed", "U8", std::array{m.rows, m.cols / 2}));
  LLMB_ASSIGN_OR_RETURN(const StoredTensor scales, find(name + "_scale", kFp8DType, std::array{m.rows, groups}));
  LLMB_ASSIGN_OR_RETURN(const StoredTensor divisor, find(name + "_global_scale", "F32", std::array{int64_t{1}}));
  float of_all;
  std::memcpy(&of_all, divisor.data, 4);
  if (!(of_all > 0) || !std::isfinite(of_all) || !std::isfinite(448 / of_all))
    return data_loss(divisor.where + " is " + std::to_string(of_all) + ", by which no scale can be divided");
  const int64_t first = m.part.first_col / kGroup, last = ceil_div(m.part.first_col + m.part.num_cols, kGroup);
  for (int64_t row = m.part.first_row; row < m.part.first_row + m.part.num_rows; ++row)
    for (int64_t g = first; g < last; ++g)
      if ((scales.data[row * groups + g] & 0x7f) == 0x7f)
        return data_loss(scales.where + " holds a scale that is not finite");
  const auto code = [&](int64_t row, int64_t col) {
    const uint8_t pair = codes.data[(row * m.cols + col) / 2];
    return static_cast<uint8_t>(col % 2 == 0 ? pair & 15 : pair >> 4);
  };
  const int64_t size = block_size(BlockFormat::kNVFP4).size;
  if (form_ != WeightForm::kBlocks || m.cols % size != 0 || m.is_cut_at(size)) {
    std::array<float, 256> numbers;  // of scales
    for (int i = 0; i < 256; ++i) numbers[i] = fp8_e4m3_to_f32(static_cast<uint8_t>(i)) / of_all;
    return make(DType::kBF16, m, [&](int64_t row, int64_t col) {
      return kNvfp4Values[code(row, col)] * numbers[scales.data[(row * m.cols + col) / kGroup]];
    });
  }
  return make_blocks(DType::kBF16, BlockFormat::kNVFP4, m, [&](int64_t row, int64_t col, uint8_t* to) {
    std::memcpy(to, &of_all, 4);
    for (int64_t run = 0; run < 2; ++run)
      pack_codes(
          4, [&](int64_t i) { return code(row, col + 32 * run + i); }, to + 4 + 16 * run);
    std::memcpy(to + 36, scales.data + (row * m.cols + col) / kGroup, 4);
  });
}

}  // namespace llmb
