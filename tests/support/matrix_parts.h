// Parts of a matrix, as a source reads them alone, against the same rows and columns of the whole.
#pragma once

#include <doctest/doctest.h>

#include <bit>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/float_formats.h"
#include "model/weight_source.h"

namespace llmb::test {

// [rows, cols]
inline std::vector<float> numbers_of(const TensorView& view) {
  std::vector<float> out(static_cast<size_t>(view.rows * view.cols));
  const auto* const bytes = static_cast<const uint8_t*>(view.data);
  for (int64_t row = 0; row < view.rows && view.blocks != BlockFormat::kNone; ++row)
    decode_row(view, row, out.data() + row * view.cols);
  for (int64_t i = 0; i < view.rows * view.cols && view.blocks == BlockFormat::kNone; ++i) {
    uint16_t half = 0;
    if (view.dtype == DType::kF32) std::memcpy(&out[i], bytes + 4 * i, 4);
    else std::memcpy(&half, bytes + 2 * i, 2);
    if (view.dtype == DType::kBF16) out[i] = bf16_to_f32(half);
    if (view.dtype == DType::kF16) out[i] = f16_to_f32(half);
  }
  return out;
}

// REQUIRES: outline() tells of the matrix.
inline void check_part(WeightSource& source, const std::string& name, std::span<const int64_t> shape,
                       const MatrixPart& part, const TensorView& outline, const std::vector<float>& whole) {
  CAPTURE(part.first_row);
  CAPTURE(part.first_col);
  CAPTURE(part.num_cols);
  const auto view = source.part(name, shape, part);
  REQUIRE_MESSAGE(view.ok(), view.status().message());
  const int64_t block = block_size(outline.blocks).size;
  const bool is_cut = part.first_col % block != 0 || part.num_cols % block != 0;
  const bool is_whole_row = part.num_cols == outline.cols;
  CHECK(view->blocks ==
        (is_cut || (is_indexed(outline.blocks) && !is_whole_row) ? BlockFormat::kNone : outline.blocks));
  CHECK(view->dtype == outline.dtype);
  REQUIRE(view->rows == part.num_rows);
  REQUIRE(view->cols == part.num_cols);
  const std::vector<float> numbers = numbers_of(*view);
  int64_t num_wrong = 0;
  for (int64_t i = 0; i < part.num_rows; ++i)
    for (int64_t k = 0; k < part.num_cols; ++k) {
      const float right = whole[static_cast<size_t>((part.first_row + i) * outline.cols + part.first_col + k)];
      const float actual = numbers[static_cast<size_t>(i * part.num_cols + k)];
      num_wrong += std::bit_cast<uint32_t>(actual) != std::bit_cast<uint32_t>(right);
    }
  CHECK(num_wrong == 0);
  source.release();
}

// false: the source has nothing to convert.
inline bool check_parts(WeightSource& source, const std::string& name, std::span<const int64_t> shape) {
  CAPTURE(name);
  const auto outline = source.outline(name, shape);
  REQUIRE_MESSAGE(outline.ok(), outline.status().message());
  if (!outline->has_value()) return false;
  const TensorView all = source.tensor(name, shape).value();
  CHECK((*outline)->blocks == all.blocks);
  CHECK((*outline)->dtype == all.dtype);
  CHECK((*outline)->row_bytes() == all.row_bytes());
  REQUIRE((*outline)->rows == all.rows);
  const std::vector<float> whole = numbers_of(all);
  source.release();
  const int64_t rows = all.rows, cols = all.cols;
  const bool cuts_blocks = all.blocks == BlockFormat::kNone || rounds_numbers(all.blocks);
  for (const auto& [first_row, num_rows] :
       {std::pair{int64_t{0}, rows}, {rows / 2, rows - rows / 2}, {rows / 4, rows / 2}, {rows - 1, int64_t{1}}})
    for (const auto& [first_col, num_cols] : {std::pair{int64_t{0}, cols},
                                              {cols / 2, cols / 2},
                                              {cols / 4, cols / 4},
                                              {int64_t{3}, int64_t{2}},
                                              {cols / 2 - 5, cols / 2}}) {
      const int64_t block = block_size(all.blocks).size;
      if (first_col < 0 || num_cols < 1 || first_col + num_cols > cols) continue;
      if (!cuts_blocks && (first_col % block != 0 || num_cols % block != 0)) continue;
      check_part(source, name, shape, {first_row, num_rows, first_col, num_cols}, **outline, whole);
    }
  return true;
}

}  // namespace llmb::test
