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

Result<TensorView> PackedSource::sparse24(const std::string& name, const Wanted& m) {
  const std::string stem = stem_of(name);
  const int64_t rows = m.rows, cols = m.cols;
  if (cols % 4 != 0)
    return unsupported("\"" + stem + ".compressed\": rows of " + std::to_string(cols) + ", which is no multiple of 4");
  const int64_t mask_bytes = ceil_div(cols, int64_t{8});
  LLMB_ASSIGN_OR_RETURN(const StoredTensor values, find(stem + ".compressed", "", std::array{rows, cols / 2}));
  LLMB_ASSIGN_OR_RETURN(const StoredTensor mask, find(stem + ".bitmask", "U8", std::array{rows, mask_bytes}));
  LLMB_ASSIGN_OR_RETURN(const DType dtype, scale_dtype(values));
  if (const std::optional<StoredTensor> shape = checkpoint_.find(stem + ".shape"); shape) {
    int64_t stored[2] = {-1, -1};
    if (shape->dtype == "I64" && shape->bytes == sizeof stored) std::memcpy(stored, shape->data, sizeof stored);
    if (stored[0] != rows || stored[1] != cols)
      return data_loss(shape->where + " does not say " + shape_string(std::array{rows, cols}));
  }
  const int64_t first = m.part.first_col / 8 * 8,
                fours = ceil_div(m.part.first_col + m.part.num_cols - first, int64_t{4});
  for (int64_t i = 0; access_ == WeightAccess::kValues && i < m.part.num_rows; ++i) {
    const int64_t row = m.part.first_row + i;
    const uint8_t* const bits = mask.data + row * mask_bytes + first / 8;
    const int64_t bad = first_bad_four(bits, fours);
    if (bad < fours)
      return data_loss(mask.where + " keeps " + std::to_string(std::popcount(bits_of_four(bits, bad))) +
                       " of 4 numbers in row " + std::to_string(row) + " from column " +
                       std::to_string(first + 4 * bad) + " on, expected 2");
  }
  const BlockFormat format = dtype == DType::kBF16 ? BlockFormat::kSparse24BF16 : BlockFormat::kSparse24F16;
  const int64_t size = block_size(format).size, each = dtype_bytes(dtype);
  if (form_ != WeightForm::kBlocks || dtype == DType::kF32 || cols % size != 0 || m.is_cut_at(size))
    return sparse24_numbers(values, mask, dtype, m);
  return make_blocks(dtype, format, m, [&](int64_t row, int64_t col, uint8_t* to) {
    std::memcpy(to, mask.data + row * mask_bytes + col / 8, 4);
    std::memcpy(to + 4, values.data + (row * cols + col) / 2 * each, static_cast<size_t>(size / 2 * each));
  });
}

TensorView PackedSource::sparse24_numbers(const StoredTensor& values, const StoredTensor& mask, DType dtype,
                                          const Wanted& m) {
  TensorView view{nullptr, dtype, m.part.num_rows, m.part.num_cols};
  if (!is_read(m)) return view;
  const int64_t each = dtype_bytes(dtype), mask_bytes = ceil_div(m.cols, int64_t{8});
  auto* const out = static_cast<uint8_t*>(buffers_.take(view.rows * view.row_bytes()));
  std::memset(out, 0, static_cast<size_t>(view.rows * view.row_bytes()));
  for_each_row(view.rows, [&](int64_t i) {
    const int64_t row = m.part.first_row + i, first = m.part.first_col;
    const int64_t from_four = first / 4 * 4;  // the numbers of fours have places of their own
    const uint8_t* from = values.data + (row * m.cols + from_four) / 2 * each;
    for (int64_t col = from_four; col < first + view.cols; ++col) {
      if ((mask.data[row * mask_bytes + col / 8] >> col % 8 & 1) == 0) continue;
      if (col >= first) std::memcpy(out + i * view.row_bytes() + (col - first) * each, from, static_cast<size_t>(each));
      from += each;
    }
  });
  view.data = out;
  return view;
}

}  // namespace llmb
