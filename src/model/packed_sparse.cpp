// compressed-tensors' sparse-24-bitmask: of every four numbers of a row two are stored, and a bit for each of the four.
#include <array>
#include <bit>
#include <cstring>
#include <string>

#include "model/packed_parts.h"
#include "model/packed_weights.h"

namespace llmb {

namespace {

// The bits of columns [4 · four, 4 · four + 4) of a row, in which the lowest bit of a byte comes first.
uint32_t bits_of_four(const uint8_t* row, int64_t four) { return row[four / 2] >> four % 2 * 4 & 15u; }

// The first four columns of which not two are kept; count: there are none.
int64_t first_bad_four(const uint8_t* row, int64_t count) {
  const auto are_twos = [](uint64_t bits) {  // in each four bits of it
    const uint64_t pairs = bits - (bits >> 1 & 0x5555555555555555);
    return (pairs & 0x3333333333333333) + (pairs >> 2 & 0x3333333333333333) == 0x2222222222222222;
  };
  for (int64_t four = 0; four < count; ++four) {
    uint64_t bits = 0;
    for (; four + 16 <= count; four += 16) {
      std::memcpy(&bits, row + four / 2, sizeof bits);
      if (!are_twos(bits)) break;
    }
    if (four < count && std::popcount(bits_of_four(row, four)) != 2) return four;
  }
  return count;
}

}  // namespace

Result<TensorView> PackedSource::sparse24(const std::string& stem, int64_t rows, int64_t cols) {
  if (cols % 4 != 0)
    return unsupported("\"" + stem + ".compressed\": rows of " + std::to_string(cols) + ", which is no multiple of 4");
  const int64_t mask_bytes = ceil_div(cols, int64_t{8});
  LLMB_ASSIGN_OR_RETURN(const StoredTensor values, part(stem + ".compressed", "", std::array{rows, cols / 2}));
  LLMB_ASSIGN_OR_RETURN(const StoredTensor mask, part(stem + ".bitmask", "U8", std::array{rows, mask_bytes}));
  LLMB_ASSIGN_OR_RETURN(const DType dtype, scale_dtype(values));
  if (const std::optional<StoredTensor> shape = checkpoint_.find(stem + ".shape"); shape) {
    int64_t stored[2] = {-1, -1};
    if (shape->dtype == "I64" && shape->bytes == sizeof stored) std::memcpy(stored, shape->data, sizeof stored);
    if (stored[0] != rows || stored[1] != cols)
      return data_loss(shape->where + " does not say " + shape_string(std::array{rows, cols}));
  }
  for (int64_t row = 0; access_ == WeightAccess::kValues && row < rows; ++row) {
    const uint8_t* const bits = mask.data + row * mask_bytes;
    const int64_t bad = first_bad_four(bits, cols / 4);
    if (bad < cols / 4)
      return data_loss(mask.where + " keeps " + std::to_string(std::popcount(bits_of_four(bits, bad))) +
                       " of 4 numbers in row " + std::to_string(row) + " from column " + std::to_string(4 * bad) +
                       " on, expected 2");
  }
  const int64_t each = dtype_bytes(dtype);
  const BlockFormat format = dtype == DType::kBF16 ? BlockFormat::kSparse24BF16 : BlockFormat::kSparse24F16;
  const BlockSize& block = block_size(format);
  if (form_ == WeightForm::kBlocks && dtype != DType::kF32 && cols % block.size == 0) {
    TensorView view{nullptr, dtype, rows, cols, format};
    if (access_ == WeightAccess::kShapes) return view;
    auto* const out = static_cast<uint8_t*>(buffers_.take(rows * view.row_bytes()));
    for_each_row(rows, [&](int64_t row) {
      uint8_t* to = out + row * view.row_bytes();
      for (int64_t col = 0; col < cols; col += block.size, to += block.bytes) {
        std::memcpy(to, mask.data + row * mask_bytes + col / 8, 4);
        std::memcpy(to + 4, values.data + (row * cols + col) / 2 * each, static_cast<size_t>(block.size / 2 * each));
      }
    });
    view.data = out;
    return view;
  }
  if (access_ == WeightAccess::kShapes) return TensorView{nullptr, dtype, rows, cols};
  auto* const out = static_cast<uint8_t*>(buffers_.take(rows * cols * each));
  std::memset(out, 0, static_cast<size_t>(rows * cols * each));
  for_each_row(rows, [&](int64_t row) {
    const uint8_t* from = values.data + row * cols / 2 * each;
    for (int64_t col = 0; col < cols; ++col)
      if ((mask.data[row * mask_bytes + col / 8] >> col % 8 & 1) != 0) {
        std::memcpy(out + (row * cols + col) * each, from, static_cast<size_t>(each));
        from += each;
      }
  });
  return TensorView{out, dtype, rows, cols};
}

}  // namespace llmb
