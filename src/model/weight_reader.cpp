#include "model/weight_reader.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/float_formats.h"

namespace llmb {

namespace {

const uint8_t* bytes_of(const TensorView& view) { return static_cast<const uint8_t*>(view.data); }

float element(const TensorView& view, int64_t index) {
  const uint8_t* at = bytes_of(view) + index * dtype_bytes(view.dtype);
  if (view.dtype == DType::kF32) {
    float value;
    std::memcpy(&value, at, sizeof value);
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, at, sizeof bits);
  return view.dtype == DType::kBF16 ? bf16_to_f32(bits) : f16_to_f32(bits);
}

template <typename Word>
void transpose(const uint8_t* from, int64_t rows, int64_t cols, uint8_t* to) {
  constexpr int64_t kTile = 32;  // so that both sides stay in the cache
  for (int64_t r0 = 0; r0 < rows; r0 += kTile)
    for (int64_t c0 = 0; c0 < cols; c0 += kTile)
      for (int64_t r = r0; r < std::min(rows, r0 + kTile); ++r)
        for (int64_t c = c0; c < std::min(cols, c0 + kTile); ++c)
          std::memcpy(to + (c * rows + r) * int64_t{sizeof(Word)}, from + (r * cols + c) * int64_t{sizeof(Word)},
                      sizeof(Word));
}

}  // namespace

TensorView slice_rows(const TensorView& matrix, int64_t begin, int64_t count) {
  // After an error, or where only shapes are looked at.
  if (matrix.data == nullptr) return {nullptr, matrix.dtype, count, matrix.cols, matrix.blocks, matrix.groups};
  LLMB_CHECK(begin + count <= matrix.rows);
  return {
      bytes_of(matrix) + begin * matrix.row_bytes(), matrix.dtype, count, matrix.cols, matrix.blocks, matrix.groups};
}

TensorView slice_vector(const TensorView& vector, int64_t begin, int64_t count) {
  if (vector.data == nullptr) return {nullptr, vector.dtype, 1, count};
  LLMB_CHECK(begin + count <= vector.rows * vector.cols);
  return {bytes_of(vector) + begin * dtype_bytes(vector.dtype), vector.dtype, 1, count};
}

std::string WeightReader::find(const std::string& prefix, const char* names, const char* suffix) const {
  const std::string_view all(names);
  for (size_t begin = 0; begin <= all.size();) {
    const size_t end = std::min(all.find('|', begin), all.size());
    const std::string name = prefix + std::string(all.substr(begin, end - begin));
    if (has(name + suffix)) return name;
    begin = end + 1;
  }
  return prefix + std::string(all.substr(0, all.find('|')));
}

TensorView WeightReader::tensor(const std::string& name, std::initializer_list<int64_t> shape) {
  if (!status_.ok()) return {};
  const std::span<const int64_t> dimensions(shape.begin(), shape.size());
  // Rows of a few numbers, as of convolutions, are little and are cut one by one.
  if (wants_parts_ && dimensions.size() > 1 && dimensions.back() >= 32) {
    const Result<std::optional<TensorView>> outline = source_.outline(name, dimensions);
    if (!outline.ok()) return fail(outline.status()), TensorView();
    if (outline->has_value()) {
      TensorView view = **outline;
      Unread matrix{name, {shape.begin(), shape.end()}, view, ReservedAddresses(view.rows * view.row_bytes())};
      view.data = matrix.addresses.begin();
      if (view.data != nullptr) return unread_.push_back(std::move(matrix)), view;
    }
  }
  const Result<TensorView> view = source_.tensor(name, dimensions);
  if (view.ok()) return *view;
  fail(view.status());
  return {};
}

const WeightReader::Unread* WeightReader::find_unread(const TensorView& view) const {
  for (const Unread& matrix : unread_)
    if (matrix.addresses.contains(view.data)) return &matrix;
  return nullptr;
}

TensorView WeightReader::read(const TensorView& view) {
  const Unread* const matrix = find_unread(view);
  if (matrix == nullptr) return view;
  TensorView out = view;
  out.data = nullptr;
  if (!status_.ok()) return out;
  const int64_t row_bytes = matrix->view.row_bytes(), begin = bytes_of(view) - matrix->addresses.begin();
  LLMB_CHECK(view.row_bytes() == row_bytes && begin % row_bytes == 0);
  const MatrixPart part = {begin / row_bytes, view.rows, 0, view.cols};
  const Result<TensorView> rows = source_.part(matrix->name, matrix->shape, part);
  if (rows.ok()) return *rows;
  fail(rows.status());
  return out;
}

// `rows` is of the matrix.
TensorView WeightReader::read_columns(const Unread& matrix, const TensorView& rows, int64_t begin, int64_t count) {
  const int64_t first = (bytes_of(rows) - matrix.addresses.begin()) / matrix.view.row_bytes();
  const Result<TensorView> part = source_.part(matrix.name, matrix.shape, {first, rows.rows, begin, count});
  if (part.ok()) return *part;
  fail(part.status());
  return {};
}

TensorView WeightReader::as_numbers(const TensorView& any) {
  const TensorView stored = read(any);
  if (stored.blocks == BlockFormat::kNone || stored.data == nullptr)
    return {stored.data, stored.dtype, stored.rows, stored.cols};
  uint8_t* const to = scratch(stored.rows * stored.cols * dtype_bytes(stored.dtype));
  std::vector<float> numbers(static_cast<size_t>(stored.cols));
  for (int64_t row = 0; row < stored.rows; ++row) {
    decode_row(stored, row, numbers.data());
    for (int64_t k = 0; k < stored.cols; ++k) {
      const int64_t i = row * stored.cols + k;
      const uint16_t half = stored.dtype == DType::kF16 ? f32_to_f16(numbers[k]) : f32_to_bf16(numbers[k]);
      if (stored.dtype == DType::kF32) std::memcpy(to + i * 4, &numbers[k], 4);
      else std::memcpy(to + i * 2, &half, 2);
    }
  }
  return {to, stored.dtype, stored.rows, stored.cols};
}

TensorView WeightReader::columns(const TensorView& in_any_form, int64_t begin, int64_t count) {
  if (!status_.ok()) return {};
  if (in_any_form.data == nullptr || count == in_any_form.cols) {
    TensorView same = in_any_form;
    same.cols = count;
    return same;
  }
  LLMB_CHECK(begin + count <= in_any_form.cols);
  // The columns of a group may lie anywhere in a row; checkpoints' blocks are cut anywhere, but not GGUF's, whose
  // numbers would take fp32.
  const int64_t block = block_size(in_any_form.blocks).size;
  const bool is_cut = begin % block != 0 || count % block != 0;
  if (is_cut && !rounds_numbers(in_any_form.blocks)) {
    fail(unsupported("rows of " + std::to_string(in_any_form.cols) + " numbers in blocks of " + std::to_string(block) +
                     " cannot be divided into parts of " + std::to_string(count) + " for ranks"));
    return {};
  }
  if (const Unread* const matrix = find_unread(in_any_form); matrix != nullptr)
    return read_columns(*matrix, in_any_form, begin, count);
  const TensorView matrix = is_cut || is_indexed(in_any_form.blocks) ? as_numbers(in_any_form) : in_any_form;
  TensorView out = matrix;
  out.cols = count;
  const bool has_blocks = matrix.blocks != BlockFormat::kNone;
  const int64_t first =
      has_blocks ? begin / block * block_size(matrix.blocks).bytes : begin * dtype_bytes(matrix.dtype);
  uint8_t* const to = scratch(matrix.rows * out.row_bytes());
  for (int64_t row = 0; row < matrix.rows; ++row)
    std::memcpy(to + row * out.row_bytes(), bytes_of(matrix) + row * matrix.row_bytes() + first,
                static_cast<size_t>(out.row_bytes()));
  out.data = to;
  return out;
}

TensorView WeightReader::transposed(const TensorView& in_any_form) {
  if (!status_.ok()) return {};
  const TensorView stored = as_numbers(in_any_form);  // blocks are of rows
  if (stored.data == nullptr) return {nullptr, stored.dtype, stored.cols, stored.rows};
  uint8_t* to = scratch(stored.rows * stored.cols * dtype_bytes(stored.dtype));
  if (stored.dtype == DType::kF32) transpose<uint32_t>(bytes_of(stored), stored.rows, stored.cols, to);
  else transpose<uint16_t>(bytes_of(stored), stored.rows, stored.cols, to);
  return {to, stored.dtype, stored.cols, stored.rows};
}

TensorView WeightReader::plus(const TensorView& any, double offset) {
  if (!status_.ok() || offset == 0) return any;
  const TensorView vector = read(any);
  if (vector.data == nullptr) return {nullptr, DType::kF32, 1, vector.cols};
  auto* to = reinterpret_cast<float*>(scratch(vector.cols * int64_t{sizeof(float)}));
  for (int64_t i = 0; i < vector.cols; ++i) to[i] = static_cast<float>(element(vector, i) + offset);
  return {to, DType::kF32, 1, vector.cols};
}

TensorView WeightReader::times(const TensorView& a, const TensorView& b) {
  if (!status_.ok()) return {};
  if (a.data == nullptr) return {nullptr, DType::kF32, 1, a.cols};
  auto* to = reinterpret_cast<float*>(scratch(a.cols * int64_t{sizeof(float)}));
  for (int64_t i = 0; i < a.cols; ++i) to[i] = element(a, i) * element(b, i);
  return {to, DType::kF32, 1, a.cols};
}

TensorView WeightReader::times_columns(const TensorView& in_any_form, const TensorView& vector, double factor) {
  if (!status_.ok()) return {};
  const TensorView matrix = as_numbers(in_any_form);
  if (matrix.data == nullptr) return {nullptr, DType::kF32, matrix.rows, matrix.cols};
  auto* to = reinterpret_cast<float*>(scratch(matrix.rows * matrix.cols * int64_t{sizeof(float)}));
  for (int64_t i = 0; i < matrix.rows * matrix.cols; ++i)
    to[i] = static_cast<float>(element(matrix, i) * (element(vector, i % matrix.cols) * factor));
  return {to, DType::kF32, matrix.rows, matrix.cols};
}

TensorView WeightReader::joined(std::span<const TensorView> vectors) {
  if (!status_.ok()) return {};
  int64_t size = 0;
  for (const TensorView& v : vectors) size += v.cols;
  if (vectors[0].data == nullptr) return {nullptr, DType::kF32, 1, size};
  auto* const begin = reinterpret_cast<float*>(scratch(size * int64_t{sizeof(float)}));
  float* to = begin;
  for (const TensorView& any : vectors) {
    const TensorView v = read(any);
    if (v.data == nullptr) return {nullptr, DType::kF32, 1, size};
    for (int64_t i = 0; i < v.cols; ++i) *to++ = element(v, i);
  }
  return {begin, DType::kF32, 1, size};
}

TensorView WeightReader::every(const TensorView& any, int64_t begin, int64_t step) {
  if (!status_.ok()) return {};
  const TensorView view = read(any);
  const bool is_vector = view.rows == 1;
  const int64_t size = is_vector ? view.cols : view.rows, count = (size - begin + step - 1) / step;
  const TensorView shape = {nullptr,     view.dtype, is_vector ? 1 : count, is_vector ? count : view.cols,
                            view.blocks, view.groups};
  if (view.data == nullptr) return shape;
  const int64_t bytes = is_vector ? dtype_bytes(view.dtype) : view.row_bytes();
  uint8_t* to = scratch(count * bytes);
  for (int64_t i = 0; i < count; ++i)
    std::memcpy(to + i * bytes, bytes_of(view) + (begin + i * step) * bytes, static_cast<size_t>(bytes));
  return {to, shape.dtype, shape.rows, shape.cols, shape.blocks, shape.groups};
}

TensorView WeightReader::pairs_apart(const TensorView& any, int64_t head_dim, int64_t rotary_dim) {
  const TensorView view = read(any);
  if (!status_.ok() || view.data == nullptr) return view;
  const bool is_vector = view.rows == 1;
  const int64_t size = is_vector ? view.cols : view.rows;
  const int64_t bytes = is_vector ? dtype_bytes(view.dtype) : view.row_bytes();
  uint8_t* to = scratch(size * bytes);
  for (int64_t i = 0; i < size; ++i) {
    const int64_t channel = i % head_dim, half = rotary_dim / 2;
    const int64_t from = channel >= rotary_dim ? channel : channel < half ? 2 * channel : 2 * (channel - half) + 1;
    std::memcpy(to + i * bytes, bytes_of(view) + (i - channel + from) * bytes, static_cast<size_t>(bytes));
  }
  return {to, view.dtype, view.rows, view.cols, view.blocks, view.groups};
}

TensorView WeightReader::mxfp4(const std::string& name, int64_t index, int64_t count, int64_t rows, int64_t cols) {
  constexpr int64_t kBlock = 32;  // numbers
  static constexpr std::array<float, 16> kValues = {0,    0.5f,  1,  1.5f,  2,  3,  4,  6,
                                                    -0.f, -0.5f, -1, -1.5f, -2, -3, -4, -6};
  if (cols % kBlock != 0)
    fail(unsupported("\"" + name + "_blocks\" would need rows of a multiple of 32 numbers, not " +
                     std::to_string(cols)));
  if (!status_.ok()) return {};
  const int64_t blocks_per_row = cols / kBlock, num_blocks = rows * blocks_per_row;
  const auto blocks = source_.bytes(name + "_blocks", std::array{count, rows, blocks_per_row, kBlock / 2});
  const auto scales = source_.bytes(name + "_scales", std::array{count, rows, blocks_per_row});
  if (!blocks.ok()) fail(blocks.status());
  if (!scales.ok()) fail(scales.status());
  if (!status_.ok()) return {};
  const bool keeps_blocks = source_.keeps_mxfp4();
  const TensorView shape{nullptr, DType::kBF16, rows, cols, keeps_blocks ? BlockFormat::kMXFP4 : BlockFormat::kNone};
  if (*blocks == nullptr || *scales == nullptr) return shape;
  const uint8_t* codes = *blocks + index * num_blocks * (kBlock / 2);
  const uint8_t* exponents = *scales + index * num_blocks;
  if (const uint8_t* const bad = std::find(exponents, exponents + num_blocks, 255); bad != exponents + num_blocks) {
    const int64_t row = (bad - exponents) / blocks_per_row;
    fail(data_loss("\"" + name + "_scales\": a scale in row " + std::to_string(row) + " of matrix " +
                   std::to_string(index) + " is not a number (255)"));
    return shape;
  }
  if (keeps_blocks) return mxfp4_blocks(codes, exponents, shape);
  auto* to = reinterpret_cast<uint16_t*>(scratch(rows * cols * 2));
  for (int64_t b = 0; b < num_blocks; ++b) {
    const float scale = std::ldexp(1.0f, exponents[b] - 127);
    for (int64_t i = 0; i < kBlock; ++i) {  // the lower half of a byte comes first
      const uint8_t byte = codes[b * (kBlock / 2) + i / 2];
      to[b * kBlock + i] = f32_to_bf16(kValues[i % 2 == 0 ? byte & 15 : byte >> 4] * scale);
    }
  }
  return {to, DType::kBF16, rows, cols};
}

// Codes of neighbours share a byte as stored, those 16 apart in a block.
TensorView WeightReader::mxfp4_blocks(const uint8_t* codes, const uint8_t* exponents, TensorView shape) {
  const BlockSize& block = block_size(BlockFormat::kMXFP4);
  const int64_t num_blocks = shape.rows * shape.cols / block.size;
  uint8_t* const to = scratch(num_blocks * block.bytes);
  for (int64_t b = 0; b < num_blocks; ++b) {
    uint8_t* const out = to + b * block.bytes;
    const uint8_t* const in = codes + b * block.size / 2;
    out[0] = exponents[b];
    for (int64_t i = 0; i < 8; ++i) {
      out[1 + 2 * i] = static_cast<uint8_t>((in[i] & 15) | (in[8 + i] & 15) << 4);
      out[2 + 2 * i] = static_cast<uint8_t>(in[i] >> 4 | (in[8 + i] & 0xf0));
    }
  }
  shape.data = to;
  return shape;
}

uint8_t* WeightReader::scratch(int64_t bytes) {
  return scratch_.emplace_back(new uint8_t[static_cast<size_t>(bytes)]).get();
}

void WeightReader::release_copies() { scratch_.clear(); }

void WeightReader::release() {
  scratch_.clear();
  unread_.clear();
  source_.release();
}

}  // namespace llmb
