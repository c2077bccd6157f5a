// Tensors of a checkpoint in the form that the forward pass wants: rows of output features, norms as they are applied,
// quantised blocks as numbers. Private to src/model.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "base/reserved_addresses.h"
#include "base/status.h"
#include "core/tensor_view.h"
#include "model/weight_source.h"

namespace llmb {

// Rows [begin, begin + count) of a matrix, or elements of a vector.
TensorView slice_rows(const TensorView& matrix, int64_t begin, int64_t count);
TensorView slice_vector(const TensorView& vector, int64_t begin, int64_t count);

// Remembers the first error; after one every call returns an empty view. Views are valid until release(). One thread.
//
// Where parts of matrices are wanted, tensor() gives matrices that the source would have to read whole at addresses at
// which nothing lies: views of these can be cut into rows, and what is made of them reads the rows that are left. All
// functions here do; others take what read() gives.
class WeightReader {
 public:
  WeightReader(WeightSource& source, bool wants_parts) : source_(source), wants_parts_(wants_parts) {}

  // prefix + one of `names` ("a|b"), the first for which the source has that + suffix; the first of all where it has
  // none.
  std::string find(const std::string& prefix, const char* names, const char* suffix) const;
  bool has(const std::string& name) const { return source_.has(name); }

  TensorView tensor(const std::string& name, std::initializer_list<int64_t> shape);
  // The same view with its data, which is read if it is not there yet.
  TensorView read(const TensorView& view);
  // Turns a tensor stored [cols, rows] into [rows, cols].
  TensorView transposed(const TensorView& in_any_form);
  // Columns [begin, begin + count) of a matrix.
  TensorView columns(const TensorView& in_any_form, int64_t begin, int64_t count);
  // + offset, as fp32.
  TensorView plus(const TensorView& vector, double offset);
  // The product of two vectors, and vectors one behind the other; as fp32.
  TensorView times(const TensorView& a, const TensorView& b);
  // A matrix as fp32, its columns multiplied by a vector and `factor`.
  TensorView times_columns(const TensorView& in_any_form, const TensorView& vector, double factor);
  TensorView joined(std::span<const TensorView> vectors);
  // In every head_dim rows of a matrix, or elements of a vector where it has one row: the even ones of the first
  // rotary_dim, the odd ones of them, then the rest. Channels that rope turns together come to lie where ropes by
  // halves have them.
  TensorView pairs_apart(const TensorView& view, int64_t head_dim, int64_t rotary_dim);
  // Rows begin, begin + step, … of a matrix; elements of a vector where it has one row.
  TensorView every(const TensorView& view, int64_t begin, int64_t step);
  // MXFP4 (OCP Microscaling Formats 1.0): blocks of 32 numbers of 4 bits [rows, cols / 32, 16] that share a scale
  // [rows, cols / 32], in blocks (BlockFormat::kMXFP4) or as bfloat16, which holds them exactly. A slice of
  // 3-dimensional tensors: matrix `index` of `count`. A scale of 255 is no number, and is refused.
  TensorView mxfp4(const std::string& name, int64_t index, int64_t count, int64_t rows, int64_t cols);

  const Status& status() const { return status_; }
  void release();
  void release_copies();  // views of what the source gave stay valid

 private:
  // A matrix that is not read yet.
  struct Unread {
    std::string name;
    std::vector<int64_t> shape;
    TensorView view;
    ReservedAddresses addresses;
  };

  uint8_t* scratch(int64_t bytes);
  const Unread* find_unread(const TensorView& view) const;
  TensorView read_columns(const Unread& matrix, const TensorView& rows, int64_t begin, int64_t count);
  TensorView mxfp4_blocks(const uint8_t* codes, const uint8_t* exponents, TensorView shape);
  TensorView as_numbers(const TensorView& stored);  // of its dtype, which holds them exactly
  void fail(Status status) {
    if (status_.ok()) status_ = std::move(status);
  }

  WeightSource& source_;
  const bool wants_parts_;
  std::vector<Unread> unread_;
  Status status_;
  std::vector<std::unique_ptr<uint8_t[]>> scratch_;
};

}  // namespace llmb
